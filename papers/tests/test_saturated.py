"""The saturated-attention study, on cases whose answer is known."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from orbitlens_papers.bench import Bench, Scale, Settings
from orbitlens_papers.jobs import Job
from orbitlens_papers.saturated import certificates, circuits, compiling, learned, precision
from orbitlens_papers.saturated.circuits import Circuit, Layer
from orbitlens_papers.saturated.majority import (
    accepts,
    bound,
    distance,
    majority_of,
    narrow_strings,
    random_strings,
)
from orbitlens_papers.saturated.reader import all_strings, random_reader, straight_through
from orbitlens_papers.saturated.selection import hard, saturated


@pytest.fixture
def bench(tmp_path):
    return Bench(Settings(scale=Scale.SMOKE, seeds=1), tmp_path)


# --- majority --------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 3, 9])
def test_the_saturated_head_is_right_on_all_strings_and_the_hard_one_sees_the_first(length):
    strings = all_strings(length)
    assert torch.equal(accepts(strings, saturated), majority_of(strings))
    assert torch.equal(accepts(strings, hard), strings[:, 0] == 1)


def test_narrow_strings_are_decided_by_one_bit(generator):
    strings = narrow_strings(10, 7, generator)
    assert set(strings.sum(dim=1).tolist()) == {3, 4}


def test_an_even_string_with_as_many_ones_as_zeros_has_no_majority():
    assert not majority_of(torch.tensor([[1, 0, 0, 1]])).item()


def test_the_bound_of_the_limit_is_met_and_not_by_hard_weights(generator):
    scores = torch.randint(-3, 4, (200, 12), generator=generator)
    assert (distance(scores, 4, saturated) <= bound(scores, 4) + 1e-15).all()
    ties = torch.zeros(1, 5, dtype=torch.long)
    assert distance(ties, 4, saturated) < 1e-15
    assert bound(ties, 4) == 0
    assert distance(ties, 4, hard) > 0.5


# --- certificates ----------------------------------------------------------------------------


def test_strings_are_binary_numbers():
    assert all_strings(3)[6].tolist() == [1, 1, 0]
    assert certificates.completions(3, {1: 1}).tolist() == [
        [0, 1, 0],
        [0, 1, 1],
        [1, 1, 0],
        [1, 1, 1],
    ]


def test_a_bit_a_head_leaves_a_hard_reader_blind_and_fewer_do_not(generator):
    for n_heads in (1, 2, 3):
        reader = random_reader(n_heads, 8, generator)
        fixed = certificates.restriction(reader, 8)
        assert len(fixed) <= n_heads
        assert certificates.spread(reader, hard, certificates.completions(8, fixed)) < 1e-12
        assert certificates.spread(reader, hard, all_strings(8)) > 1e-3


def test_heads_that_want_opposite_bits_of_one_place_get_two_places():
    reader = random_reader(2, 4, torch.Generator().manual_seed(3))
    with torch.no_grad():
        reader.embed.copy_(torch.stack([torch.ones(8), -torch.ones(8)]))
        reader.places.zero_()
        reader.query.copy_(torch.stack([torch.ones(8), -torch.ones(8)]))
    assert certificates.restriction(reader, 4) == {0: 0, 1: 1}
    strings = certificates.completions(4, {0: 0, 1: 1})
    assert certificates.spread(reader, hard, strings) < 1e-12


def test_a_saturated_reader_whose_scores_tie_is_not_blinded(generator):
    reader = random_reader(2, 7, generator, spread=0.0)
    strings = certificates.completions(7, certificates.restriction(reader, 7))
    assert certificates.spread(reader, saturated, strings) > 1e-3
    assert certificates.spread(reader, hard, strings) < 1e-12


def test_least_certificates_of_known_functions():
    strings = all_strings(7)
    tables = {
        "constant": torch.ones(128),
        "first bit": strings[:, 0],
        "and": strings.all(dim=1),
        "majority": majority_of(strings),
        "parity": strings.sum(dim=1) % 2,
    }
    found = {k: certificates.least_certificate(v.long().numpy()) for k, v in tables.items()}
    assert found == {"constant": 0, "first bit": 1, "and": 1, "majority": 4, "parity": 7}


def test_training_improves_a_hard_reader_but_not_beyond_its_certificate():
    strings, truth = all_strings(11), majority_of(all_strings(11))
    before, after = (
        certificates.train_hard(Job(setup=certificates.ReaderSetup(n_heads=1, steps=steps), seed=5))
        for steps in (0, 120)
    )
    wrong = [certificates._wrong(reader, strings, truth) for reader in (before, after)]
    inside = majority_of(certificates.completions(11, certificates.restriction(after, 11)))
    assert wrong[1] < wrong[0]
    assert wrong[1] >= min(inside.sum(), (~inside).sum()) > 0


def test_straight_through_is_hard_forward_and_soft_backward():
    scores = torch.tensor([0.3, 0.1], requires_grad=True)
    weights = straight_through(scores)
    assert weights.tolist() == pytest.approx([1.0, 0.0])
    weights[0].backward()
    slope = float(torch.softmax(scores.detach(), dim=0).prod())
    assert scores.grad.tolist() == pytest.approx([slope, -slope])


# --- circuits --------------------------------------------------------------------------------


def test_a_gate_counts_its_wires():
    circuit = Circuit(n_inputs=3)
    node = circuit.add({0: 2, 1: -1, 2: 1}, 2)
    circuit.outputs = (node,)
    said = circuit.evaluate(all_strings(3).numpy())[:, 0]
    assert said.tolist() == [2 * a - b + c >= 2 for a, b, c in all_strings(3).tolist()]
    assert (circuit.n_wires, circuit.depth(), circuit.depth(fan_in=2)) == (4, 1, 2)


def exact(layer, bits):
    """The layer once more, in fractions."""
    out = []
    for i, own in enumerate(bits):
        scores = [int(layer.scores[i, own, j, bit]) for j, bit in enumerate(bits)]
        values = [int(layer.values[j, bit]) for j, bit in enumerate(bits)]
        out.append(precision.saturated_mean(scores, values) > layer.threshold)
    return out


@pytest.mark.parametrize("threshold", [Fraction(0), Fraction(1, 2), Fraction(-3, 13)])
def test_circuits_are_exact_also_where_a_mean_meets_the_threshold(threshold):
    for seed in range(4):
        layer = circuits.random_layer(6, np.random.default_rng(seed), threshold)
        strings = all_strings(6)
        said = circuits.compiled([layer]).evaluate(strings.numpy())
        assert said.tolist() == [exact(layer, bits) for bits in strings.tolist()]


def test_majority_compiles_to_majority():
    layer = Layer(
        scores=np.zeros((5, 2, 5, 2), dtype=int),
        values=np.tile([-1, 1], (5, 1)),
        threshold=Fraction(0),
    )
    circuit = circuits.compiled([layer])
    strings = all_strings(5)
    said = circuit.evaluate(strings.numpy())
    assert (said == majority_of(strings).numpy()[:, None]).all()
    assert circuit.depth() == 3
    assert circuits.compiled([layer, layer]).depth() == 6


def test_a_wrong_threshold_is_noticed(bench):
    layers = compiling.draw_layers(bench, "test", 8, 1)
    strings = all_strings(8)
    circuit = circuits.compiled(layers)
    right = compiling.run_layers(layers, strings, saturated)
    assert (circuit.evaluate(strings.numpy()) == right).all()
    gates = [circuits.Gate(weights=g.weights, least=g.least + 1) for g in circuit.gates]
    off = Circuit(n_inputs=8, gates=gates, outputs=circuit.outputs)
    assert (off.evaluate(strings.numpy()) != right).any()
    assert (compiling.run_layers(layers, strings, hard) != right).any()


# --- bits ------------------------------------------------------------------------------------


def test_bits_of_known_fractions():
    assert precision.bits_of(Fraction(0)) == 1
    assert precision.bits_of(Fraction(-255, 7)) == 8
    assert precision.harmonic_mean_of_places(3) == Fraction(11, 18)
    assert precision.excess([16], [7]) == pytest.approx([7 - np.log2(80)])


# --- learned ---------------------------------------------------------------------------------


def test_labels_count_only_what_is_there():
    strings = learned.Strings(
        bits=torch.tensor([[1, 0, 1], [1, 1, 0], [1, 0, 0]]),
        there=torch.tensor([[True, False, False], [True, True, True], [True, True, False]]),
    )
    assert strings.labels.tolist() == [1, 1, 0]


def test_lengths_are_about_their_mean(generator):
    lengths = learned.draw_strings(400, 50, generator).there.sum(dim=1).double()
    assert float(lengths.mean()) == pytest.approx(50, abs=1)
    assert float(lengths.std()) == pytest.approx(5, abs=1)


@pytest.mark.parametrize("name", ["none", "sinusoidal", "hard reader", "LSTM"])
def test_padding_does_not_change_an_answer(name, generator):
    torch.manual_seed(0)
    model = learned.build(name).eval()
    bits = random_strings(4, 9, generator)
    short = learned.Strings(bits=bits, there=torch.ones_like(bits).bool())
    padded = learned.Strings(
        bits=torch.nn.functional.pad(bits, (0, 5), value=1),
        there=torch.nn.functional.pad(short.there, (0, 5), value=False),
    )
    with torch.no_grad():
        assert torch.allclose(model(short), model(padded), atol=1e-5)


def test_without_encoding_order_is_nothing_and_with_one_it_is_something(generator):
    bits = random_strings(6, 12, generator)
    there = torch.ones_like(bits).bool()
    for name, blind in (("none", True), ("sinusoidal", False)):
        torch.manual_seed(0)
        model = learned.build(name).eval()
        with torch.no_grad():
            found, flipped = (
                model(learned.Strings(bits=b, there=there)) for b in (bits, bits.flip(1))
            )
        assert torch.allclose(found, flipped, atol=1e-6) == blind


@pytest.mark.parametrize("name", learned.ENCODINGS)
def test_the_class_token_alone_says_what_it_says_among_all(name):
    torch.manual_seed(0)
    model = learned.build(name).double()
    inputs = torch.tensor([[learned.START, 1, 0, 1], [learned.START, 0, 1, learned.PADDING]])
    mask = inputs != learned.PADDING
    with torch.no_grad():
        found, whole = model.in_front(inputs, mask), model.whole(inputs, mask)
        deaf = model.in_front(inputs, torch.ones_like(mask))
    assert torch.allclose(found, whole, atol=1e-12)
    assert not torch.allclose(deaf[1], whole[1], atol=1e-9)  # padding that is seen changes it


def test_a_model_trains_and_is_tested_at_every_length():
    job = Job(setup=learned.MajoritySetup(name="soft reader", steps=2, batch=8, tested=100), seed=1)
    found, clear = learned.train_and_test(job)
    assert len(found) == len(clear) == len(learned.MEANS)
    assert (found, clear) == learned.train_and_test(job)


def test_clear_strings_lead_by_more_than_a_fiftieth():
    bits = torch.tensor([[1] * 51 + [0] * 49, [1] * 52 + [0] * 48, [0] * 52 + [1] * 48])
    strings = learned.Strings(bits=bits, there=torch.ones_like(bits).bool())
    assert strings.lead.tolist() == [2, 4, -4]
    assert strings.clear.tolist() == [False, True, True]
