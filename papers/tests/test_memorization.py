"""The memorization study: a network of whole numbers, ids by attention, and counts in a block."""

import math
from fractions import Fraction
from itertools import pairwise

import pytest
import torch

from orbitlens.errors import InputError
from orbitlens_papers.bench import Bench, Scale, Settings
from orbitlens_papers.memorization import exact, learning, separated
from orbitlens_papers.memorization.block import CountBlock
from orbitlens_papers.memorization.network import (
    Form,
    Network,
    Unit,
    bumps,
    extractor,
    lookup,
    run_exact,
    run_rounded,
)
from orbitlens_papers.memorization.sequences import (
    LABEL_BITS,
    Case,
    Kind,
    attend,
    build,
    context_ids,
    multisets,
)


@pytest.fixture
def bench(tmp_path):
    return Bench(Settings(scale=Scale.SMOKE, seeds=1), tmp_path)


def case(kind, n_sequences=16, length=8):
    return Case(kind=kind, n_sequences=n_sequences, length=length, number=5)


# --- the network -----------------------------------------------------------------------------


def test_three_ids_are_recalled_and_any_other_number_gets_zero():
    labels = {1: 7, 5: 0, 12: 3}
    network = extractor(labels, id_bits=4, label_bits=3)
    answers = dict(zip(range(16), run_exact(network, range(16)), strict=True))
    assert answers == {k: labels.get(k, 0) for k in range(16)}


@pytest.mark.parametrize("n", [1, 2, 3, 5, 16, 17, 50])
def test_any_number_of_ids_is_recalled_also_where_groups_are_not_full(n):
    labels = {3 * k + 1: (5 * k + 2) % 8 for k in range(n)}
    network = extractor(labels, id_bits=8, label_bits=3)
    assert run_exact(network, list(labels)) == list(labels.values())


def test_the_staircase_recalls_the_same():
    labels = {2: 4, 3: 1, 9: 6}
    assert run_exact(lookup(labels), list(labels)) == [4, 1, 6]
    assert lookup(labels).n_parameters == 3 * 6  # two units an id, three scalars a unit


@pytest.mark.parametrize(
    ("n", "prototype"), [(16, 576), (64, 1408), (256, 3328), (1024, 7680), (4096, 17408)]
)
def test_the_count_is_that_of_the_prototype_and_seven_more_a_group(n, prototype):
    """It left out the second unit's outgoing weights, and the clearing of registers."""
    m, bits = math.isqrt(n), (32 * n**2 - 1).bit_length()
    assert 6 * m + m * ((bits + 3) * 8 + 10) == prototype
    network = extractor(dict.fromkeys(range(n), 0), id_bits=bits, label_bits=3)
    assert network.n_parameters == prototype + 7 * m
    assert network.depth == 1 + m * (bits + 2)


def test_a_unit_is_a_relu_that_reads_what_the_block_before_left():
    first = Unit(reads={"x": 2}, bias=-5, writes={"out": 3})
    second = Unit(reads={"out": -1}, bias=4, writes={"out": 1})
    network = Network(blocks=((first,), (second,)))
    # x = 3: out = 3 relu(1) = 3, then + relu(4 - 3) = 4; x = 0: out = 0, then 4.
    assert run_exact(network, [3, 0]) == [4, 4]
    together = Network(blocks=((first, second),))
    assert run_exact(together, [3, 0]) == [7, 4]
    assert (network.n_parameters, network.largest_bits) == (6, 3)


def test_floats_agree_where_weights_are_short_and_fail_where_they_are_long():
    small, large = (build(case(Kind.SEQUENCE, n)) for n in (4, 64))
    for problem, right in ((small, True), (large, False)):
        network = extractor(problem.first_labels, id_bits=problem.id_bits, label_bits=LABEL_BITS)
        rounded = run_rounded(network, problem.ids).tolist()
        assert (rounded == problem.labels) is right
        assert run_exact(network, problem.ids) == problem.labels


def test_numbers_beyond_the_largest_float_are_wrong_and_not_an_error():
    labels = {(1 << 400) + k: 3 for k in range(9)}
    network = extractor(labels, id_bits=401, label_bits=3)
    assert run_exact(network, list(labels)) == [3] * 9
    assert not (run_rounded(network, list(labels)) == 3).all()


@pytest.mark.parametrize(
    ("labels", "words"), [({}, "no ids"), ({300: 1}, "ids from 300"), ({3: 9}, "labels from 9")]
)
def test_what_does_not_fit_is_refused(labels, words):
    with pytest.raises(InputError, match=words):
        extractor(labels, id_bits=8, label_bits=3)


# --- sequences and their ids -----------------------------------------------------------------


def test_uniform_attention_sees_a_multiset(generator):
    sequences = [(1, 2, 3), (3, 1, 2), (1, 1, 3)]
    ids, _ = context_ids(sequences, placed=False, generator=generator, injective=False)
    assert ids[0] == ids[1] != ids[2]
    placed, _ = context_ids(sequences, placed=True, generator=generator)
    assert len(set(placed)) == 3
    assert attend([7, 7, 7, 8]) == 29


def test_a_map_that_cannot_tell_sequences_apart_is_refused(generator):
    with pytest.raises(InputError, match="equal ids"):
        context_ids([(1, 2), (2, 1)], placed=False, generator=generator)


def test_multisets_differ_and_run_out(generator):
    found = multisets(50, 4, distinct=False, generator=generator)
    assert len({tuple(sorted(x)) for x in found}) == 50
    with pytest.raises(InputError, match="too few multisets"):
        multisets(65, 1, distinct=False, generator=generator)


def test_a_label_a_token_gives_ids_of_token_and_context():
    own, nameless = build(case(Kind.TOKEN)), build(case(Kind.UNNAMED))
    assert len(set(own.ids)) == len(own.ids) == 16 * 8
    assert nameless.n_shared == 16 * 7
    assert own.labels == nameless.labels
    assert max(own.ids).bit_length() <= own.id_bits


def test_controls_lose_what_tells_rows_apart():
    assert exact.solve(case(Kind.SEQUENCE, 64))["wrong"] == 0
    assert exact.solve(case(Kind.UNATTENDED, 64))["wrong"] > 10
    assert exact.solve(case(Kind.PLACED, 64))["wrong"] == 0
    assert exact.solve(case(Kind.PERMUTED, 64))["wrong"] > 20


def test_problems_depend_on_their_number_alone():
    assert build(case(Kind.SEQUENCE)) == build(case(Kind.SEQUENCE))
    other = Case(kind=Kind.SEQUENCE, n_sequences=16, length=8, number=6)
    assert build(other) != build(case(Kind.SEQUENCE))


# --- trained blocks --------------------------------------------------------------------------


def test_counts_give_the_same_as_attention_over_tokens(generator):
    """A plain softmax over the tokens of each sequence, one after the other."""
    block = CountBlock(6, 10, 8, generator=generator).double()
    sequences = [[1, 4, 4, 9], [2, 9], [7, 7, 7, 9]]
    counts = torch.zeros(3, 10, dtype=torch.float64)
    for row, x in enumerate(sequences):
        for token in x:
            counts[row, token] += 1
    asked = torch.tensor([9, 2, 7])
    expected = []
    for x, token in zip(sequences, asked.tolist(), strict=True):
        e = block.embedding[torch.tensor(x)]
        q = block.query(block.embedding[token])
        weights = (block.key(e) @ q / 6**0.5).softmax(dim=0)
        y = block.embedding[token] + block.output(weights @ block.value(e))
        y = y + block.down(block.up(block.before(y)).relu())
        expected.append(block.readout(block.after(y)))
    assert torch.allclose(block(counts.log(), asked), torch.stack(expected), atol=1e-12)


def test_parameters_of_a_block_are_counted_without_embeddings(generator):
    w = 6
    counted = CountBlock(w, 10, 8, generator=generator).n_parameters
    assert counted == 4 * w * w + 4 * w + (8 * w * w + 5 * w) + (8 * w + 8)


def search(**changes):
    usual = {
        "each": False, "n_sequences": 12, "length": 4, "steps": 150, "widest": 12, "number": 3
    }  # fmt: skip
    return learning.Search(**(usual | changes))


def test_a_search_finds_a_width_that_is_enough_and_a_smaller_one_that_is_not():
    row = learning.fewest(search())
    assert row["reached"]
    assert row["tried"][str(row["width"])] >= learning.ENOUGH
    below = [score for width, score in row["tried"].items() if int(width) < row["width"]]
    assert all(score < learning.ENOUGH for score in below)


def test_a_search_that_no_width_satisfies_says_so():
    row = learning.fewest(search(n_sequences=200, steps=25, widest=4))
    assert not row["reached"]
    assert "did not learn 200 labels" in learning._too_narrow([[row]])


def test_contexts_of_a_lesson_hold_their_tokens_and_the_end():
    one = learning.lesson(search())
    assert one.counts.sum(dim=1).tolist() == [5.0] * 12
    assert (one.tokens == learning.VOCABULARY).all()
    each = learning.lesson(search(each=True))
    assert len(each.labels) == 48
    assert (each.counts.gather(1, each.tokens[:, None]) == 1).all()


# --- separated vectors -----------------------------------------------------------------------


def separated_setting(**changes):
    given = {"n_sequences": 12, "length": 3, "number": 0} | changes
    return separated.Setting(**given)


def recalled(setting, generator):
    given = separated.lesson(setting, generator)
    made = separated.memory(given, setting, generator)
    return given, made, made(given.vectors, given.sequences)


def test_vectors_are_short_and_as_far_apart_as_asked_for(generator):
    x = separated.separated_vectors(50, generator).double() / separated.UNIT
    assert float(x.norm(dim=1).max()) <= separated.RADIUS
    assert float(torch.pdist(x).min()) >= float(separated.SEPARATION)


def test_a_vector_too_near_is_noticed(generator):
    x = separated.separated_vectors(5, generator)
    near = torch.cat([x, x[2:3] + 1])
    assert separated._too_near(near).tolist() == [False] * 5 + [True]


def test_more_vectors_than_fit_are_refused(generator, monkeypatch):
    monkeypatch.setattr(separated, "SEPARATION", 3)
    with pytest.raises(InputError, match="Expected fewer"):
        separated.separated_vectors(2, generator)


def test_on_the_line_all_tokens_are_two_apart(generator):
    vectors = separated.separated_vectors(40, generator)
    line = separated.project(vectors, generator)
    places = sorted(line(vectors))
    assert min(b - a for a, b in pairwise(places)) >= 2
    assert 0 <= places[0]
    assert places[-1] < 2**line.id_bits


def test_telling_tokens_tell_all_sequences_apart_and_are_fewer(generator):
    sequences = multisets(60, 4, distinct=False, generator=generator)
    chosen = separated.telling_tokens(sequences)
    assert len(chosen) < len(sequences)
    left = {tuple(sorted(t for t in x if t in chosen)) for x in sequences}
    assert len(left) == len(sequences)


def test_permuted_sequences_have_no_telling_token():
    with pytest.raises(InputError, match="permutations of each other"):
        separated.telling_tokens([(1, 2), (2, 1)])


@pytest.mark.parametrize(
    "changes",
    [{}, {"form": Form(narrow=True)}, {"plain": True}, {"form": Form(size=2)}, {"length": 1}],
)
def test_separated_sequences_are_recalled_in_every_form(changes, generator):
    given, _, labels = recalled(separated_setting(**changes), generator)
    assert labels == given.labels


def test_vectors_nearer_than_promised_are_mistaken(generator):
    given, _, labels = recalled(separated_setting(twins=True), generator)
    assert sum(a != b for a, b in zip(labels, given.labels, strict=True)) >= 2


def test_narrow_networks_have_the_same_weights_and_eleven_units_a_layer(generator):
    (_, root, _), (_, narrow, _) = (
        recalled(separated_setting(n_sequences=40, form=form), torch.Generator().manual_seed(3))
        for form in (Form(), Form(narrow=True))
    )
    assert root.n_parameters == narrow.n_parameters
    assert narrow.token_map.width == narrow.reader.width == 11
    assert root.token_map.width > 11
    assert narrow.token_map.depth > root.token_map.depth


def test_fractions_get_the_label_of_the_number_they_are_rounded_down_to():
    labels = {2: 5, 7: 3, 12: 6}
    network = extractor(labels, id_bits=4, label_bits=3, form=Form(real=True))
    numbers = [Fraction(5, 2), Fraction(29, 4), 12, Fraction(9, 2), Fraction(19, 2)]
    assert run_exact(network, numbers) == [5, 3, 6, 0, 0]
    assert run_exact(bumps(labels), numbers) == [5, 3, 6, 0, 0]
    assert run_exact(lookup(labels), numbers[3:]) == [5, 3]  # a staircase holds its last step


def test_a_dense_network_counts_its_zeros_too():
    network = lookup({1: 7, 5: 0})
    assert network.n_dense == 2 * (4 + 7) + (4 + 7 + 1)  # four units, seven registers
    assert network.n_dense > network.n_parameters
