"""The permutation defect and its assertions, on functions whose symmetry is known."""

import itertools

import pytest
import torch

from orbitlens.errors import InputError
from orbitlens.order.defect import assert_equivariant, assert_invariant, permutation_defect
from orbitlens.order.permutations import (
    adjacent,
    all_permutations,
    generated_by,
    ngram_shuffles,
    rows_and_columns,
    shuffles,
    swaps_at_distance,
    window_shuffles,
)


@pytest.fixture
def tokens(generator):
    return torch.randn(7, 3, dtype=torch.float64, generator=generator)


def attention(x):
    return torch.softmax(x @ x.T, dim=-1) @ x


def test_the_mean_is_invariant_and_attention_equivariant(tokens):
    assert permutation_defect(lambda x: x.mean(0), tokens) < 1e-14
    assert permutation_defect(attention, tokens, equivariant=True) < 1e-14
    assert_invariant(lambda x: x.mean(0), tokens)
    assert_equivariant(attention, tokens)


def test_a_function_that_sees_order_has_a_defect_of_known_size():
    x = torch.tensor([3.0, 4.0, 0.0], dtype=torch.float64)
    swap = generated_by([[0, 2, 1]])
    # f(x) = x: |(3, 0, 4) - (3, 4, 0)| / |(3, 4, 0)| = sqrt(32) / 5
    assert permutation_defect(lambda x: x, x, swap) == pytest.approx(32**0.5 / 5)


def test_asserting_a_symmetry_that_is_not_there_fails_with_the_number(tokens):
    with pytest.raises(AssertionError, match=r"not invariant: .* changes the output by"):
        assert_invariant(lambda x: x[0], tokens)
    causal = torch.ones(7, 7, dtype=torch.bool).triu(1)

    def masked(x):
        return torch.softmax((x @ x.T).masked_fill(causal, -torch.inf), dim=-1) @ x

    with pytest.raises(AssertionError, match="not equivariant"):
        assert_equivariant(masked, tokens)


def test_a_function_may_be_invariant_under_a_subgroup_only(tokens):
    def first_half_as_a_set(x):
        return torch.cat([x[:3].sum(0), x[3]])

    subgroup = all_permutations(7, movable=range(3))
    assert permutation_defect(first_half_as_a_set, tokens, subgroup) < 1e-14
    assert permutation_defect(first_half_as_a_set, tokens) > 0.1


def test_rows_and_columns_of_an_image_are_a_subgroup_of_their_own(generator):
    image = torch.randn(12, dtype=torch.float64, generator=generator)

    def sorted_row_sums(x):  # sees which patches share a row
        return x.reshape(3, 4).sum(1).sort().values

    assert permutation_defect(sorted_row_sums, image, rows_and_columns(3, 4)) < 1e-14
    assert permutation_defect(sorted_row_sums, image) > 0.01


def test_free_swaps_at_one_input_do_not_hide_an_order_that_products_reach():
    """f is unmoved by every neighbour swap of x, but not by their products."""
    x = torch.arange(4.0, dtype=torch.float64)
    reached = {tuple(x[list(p)].tolist()) for p in itertools.permutations(range(4))}
    near = {tuple(x.tolist())}
    near |= {tuple(x[swap].tolist()) for swap in adjacent(4).generators}
    assert len(near) < len(reached)

    def f(y):
        return torch.tensor(1.0 if tuple(y.tolist()) in near else 2.0)

    assert all(f(x[swap]) == f(x) for swap in adjacent(4).generators)
    assert permutation_defect(f, x, adjacent(4)) >= 0.5


def test_a_group_of_another_size_is_refused(tokens):
    with pytest.raises(InputError, match="the group acts on 5 items, the input has 7"):
        permutation_defect(torch.sum, tokens, all_permutations(5))


@pytest.mark.parametrize("rows", [[[0, 0, 1]], [[0, 1, 3]], []])
def test_generators_that_are_no_permutations_are_refused(rows):
    with pytest.raises(InputError, match=r"no permutation|at least one"):
        generated_by(rows)


def test_a_generated_group_stays_in_itself_and_reaches_all_of_it(generator):
    cyclic = generated_by([[1, 2, 3, 4, 0]])
    drawn = {tuple(row) for row in cyclic.draw(200, generator).tolist()}
    assert drawn == {tuple((k + s) % 5 for k in range(5)) for s in range(5)}


def test_random_elements_of_all_permutations_are_uniform(generator):
    drawn = shuffles(4, range(3), 6000, generator).tolist()
    counts = dict.fromkeys(itertools.permutations(range(3)), 0)
    for *moving, last in drawn:
        assert last == 3
        counts[tuple(moving)] += 1
    assert all(850 < count < 1150 for count in counts.values())


def test_shuffles_in_windows_stay_in_their_windows(generator):
    rows = window_shuffles(11, range(1, 10), 3, 50, generator)
    assert (rows.sort(dim=1).values == torch.arange(11)).all()
    assert (rows[:, 0] == 0).all() and (rows[:, 10] == 10).all()
    place = torch.arange(1, 10)
    assert ((rows[:, 1:10] - 1) // 3 == (place - 1) // 3).all()
    assert (rows != torch.arange(11)).any()


def test_ngram_shuffles_keep_ngrams_together(generator):
    rows = ngram_shuffles(12, range(12), 4, 50, generator)
    assert (rows.sort(dim=1).values == torch.arange(12)).all()
    kept = (rows.diff(dim=1) == 1).sum(1)
    assert (kept >= 12 - 4).all()  # at most four pieces, whatever the first cut
    assert (kept < 11).any()


def test_a_swap_moves_two_items_the_given_distance_apart(generator):
    for row in swaps_at_distance(9, range(1, 8), 5, 20, generator):
        moved = (row != torch.arange(9)).nonzero().flatten().tolist()
        assert len(moved) == 2
        assert moved[1] - moved[0] == 5
        assert moved[0] >= 1
        assert moved[1] < 8
