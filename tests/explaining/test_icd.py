"""Iterative causal discovery: exact tests give FCI's graph, and its candidates are as defined."""

import numpy as np
import pytest
import torch

from orbitlens.explaining.graph import Learner, graph_of_attention
from orbitlens.explaining.icd import View, discovered, possible_causes
from orbitlens.explaining.orienting import ARROW, CIRCLE, NONE, TAIL, oriented

EXACT = 10**16  # samples at which a test errs for want of digits alone


def random_mixing(n, n_latent, seed, density=0.35):
    """Return A of a linear model; the last rows are left out, as latent variables are."""
    draw = torch.Generator().manual_seed(seed)
    sizes = 0.4 + 0.6 * torch.rand(n, n, generator=draw).double()
    there = torch.rand(n, n, generator=draw) < density
    order = torch.randperm(n, generator=draw)
    weights = torch.tril(sizes * there, diagonal=-1)[order][:, order]
    mixing = torch.linalg.inv(torch.eye(n, dtype=torch.float64) - weights)
    return mixing[: n - n_latent]


def table(n, *edges):
    """Return marks; an edge is (a, mark at a, mark at b, b)."""
    marks = np.full((n, n), NONE)
    for a, at_a, at_b, b in edges:
        marks[a, b], marks[b, a] = at_a, at_b
    return marks


@pytest.mark.parametrize("seed", range(12))
def test_exact_tests_give_the_graph_of_fci_also_with_latents(seed):
    mixing = random_mixing(8, 2, seed)
    icd, fci = (
        graph_of_attention(mixing, EXACT, learner=learner) for learner in (Learner.ICD, Learner.FCI)
    )
    assert icd == fci and len(icd.edges) > 2


def test_the_comparison_can_tell_graphs_apart():
    first, second = (
        graph_of_attention(random_mixing(8, 2, seed), EXACT, learner=Learner.ICD) for seed in (0, 1)
    )
    assert first != second


def test_a_test_that_is_wrong_once_changes_the_graph():
    # 0 -> 1 -> 2: 0 and 2 are independent given 1. A test that never says so leaves a triangle.
    right = discovered(3, lambda a, b, given: {a, b} == {0, 2} and given == (1,))
    wrong = discovered(3, lambda a, b, given: False)
    assert right[0, 2] == NONE and right[0, 1] == right[2, 1] == CIRCLE
    assert (wrong + CIRCLE * np.eye(3) == CIRCLE).all()


def test_nothing_is_asked_given_more_than_could_matter():
    asked = []

    def independent(a, b, given):
        asked.append(len(given))
        return not given

    assert not discovered(5, independent).any()
    assert asked == [0] * 10


def test_names_of_nodes_move_the_graph_and_do_nothing_else(generator):
    attention = torch.randn(9, 9, generator=generator).double().softmax(-1)
    order = torch.randperm(9, generator=generator).tolist()
    base = graph_of_attention(attention, 64, learner=Learner.ICD)
    moved = graph_of_attention(attention[order][:, order], 64, learner=Learner.ICD)
    assert moved == base.relabelled({old: new for new, old in enumerate(order)})


def test_sets_lie_on_paths_within_themselves_and_the_nearest_come_first():
    # 0 - 1 - 2 - 3 with 1 a collider and 2 none: 3 is not reached from 0, 2 only through 1.
    marks = table(4, (0, CIRCLE, ARROW, 1), (1, ARROW, CIRCLE, 2), (2, CIRCLE, CIRCLE, 3))
    view = View(marks)
    assert view.distances(0, frozenset({1, 2, 3}), 3) == {1: 1, 2: 2}
    assert not view.holds_together(0, (2,)) and view.holds_together(0, (1, 2))
    assert view.distances(0, frozenset({1, 2}), 1) == {1: 1}
    dense = View(table(4, *[(a, CIRCLE, CIRCLE, b) for a in range(4) for b in range(a)]))
    assert dense.candidates(0, 3, 1) == [(1,), (2,)] and dense.candidates(0, 3, 2) == [(1, 2)]


def test_what_cannot_be_a_cause_of_either_is_not_tried():
    # 2 has an arrowhead from both ends: it causes neither 0 nor 1.
    marks = table(3, (0, CIRCLE, CIRCLE, 1), (0, TAIL, ARROW, 2), (1, TAIL, ARROW, 2))
    assert View(marks).candidates(0, 1, 1) == []
    assert possible_causes(marks)[0, 2] and not possible_causes(marks)[2, 0]


# --- orientation -----------------------------------------------------------------------------


def skeleton(n, *pairs):
    return table(n, *[(a, CIRCLE, CIRCLE, b) for a, b in pairs])


def test_a_collider_points_and_what_it_causes_is_caused():
    found = oriented(skeleton(4, (0, 2), (1, 2), (2, 3)), {
        frozenset((0, 1)): frozenset(), frozenset((0, 3)): frozenset((2,)),
        frozenset((1, 3)): frozenset((2,)),
    })  # fmt: skip
    assert found[2, 0] == found[2, 1] == ARROW and found[0, 2] == CIRCLE
    assert (found[2, 3], found[3, 2]) == (TAIL, ARROW)


@pytest.mark.parametrize("given", [True, False])
def test_a_discriminating_path_tells_a_cause_from_a_confounder(given):
    # 0 -> 1 <-> 2 (a collider at 1), 1 -> 3, 2 o-o 3: 0 and 3 are apart, 2 is what is asked about.
    separating = {
        frozenset((0, 2)): frozenset(),
        frozenset((0, 3)): frozenset({1, 2} if given else {1}),
    }
    found = oriented(skeleton(4, (0, 1), (1, 2), (1, 3), (2, 3)), separating)
    assert (found[1, 0], found[1, 2]) == (ARROW, ARROW)
    assert (found[2, 3], found[3, 2]) == ((TAIL, ARROW) if given else (ARROW, ARROW))
