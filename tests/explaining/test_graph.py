"""Graphs of attention: textbook graphs come back, names do not matter, bad input is refused."""

import sys

import numpy as np
import pytest
import torch

from orbitlens.errors import InputError, MissingPackageError
from orbitlens.explaining.graph import (
    AlikeError,
    CausalGraph,
    Learner,
    Mark,
    correlation_of,
    graph_of_attention,
)
from orbitlens.explaining.independence import Name, PartialCorrelation


def mixing(edges, n):
    """Return A of X = G X + U with unit coefficients; edges are (parent, child)."""
    weights = torch.zeros(n, n, dtype=torch.float64)
    for parent, child in edges:
        weights[child, parent] = 1.0
    return torch.linalg.inv(torch.eye(n, dtype=torch.float64) - weights)


def shown(graph):
    return [str(edge) for edge in graph.edges]


def softmax(n, seed):
    return torch.randn(n, n, generator=torch.Generator().manual_seed(seed)).double().softmax(-1)


@pytest.mark.parametrize(
    ("edges", "n", "expected"),
    [
        ([(0, 1), (1, 2)], 3, ["0 o-o 1", "1 o-o 2"]),
        ([(0, 2), (1, 2)], 3, ["0 o-> 2", "1 o-> 2"]),
        ([(0, 2), (1, 2), (2, 3)], 4, ["0 o-> 2", "1 o-> 2", "2 --> 3"]),
        ([], 3, []),
    ],
    ids=["chain", "collider", "what a collider causes", "nothing"],
)
def test_textbook_graphs_come_back_with_their_marks(edges, n, expected):
    assert shown(graph_of_attention(mixing(edges, n), 2000)) == expected


def test_a_latent_common_cause_shows_as_two_arrowheads():
    whole = mixing([(0, 1), (3, 2), (4, 1), (4, 2)], 5)  # 0 -> 1 <- 4 -> 2 <- 3, and 4 is not seen
    found = graph_of_attention(whole, 2000, nodes=[0, 1, 2, 3])
    assert shown(found) == ["0 o-> 1", "1 <-> 2", "2 <-o 3"]


def test_without_latents_ends_are_tails():
    found = graph_of_attention(mixing([(0, 2), (1, 2)], 3), 2000, learner=Learner.PC)
    assert shown(found) == ["0 --> 2", "1 --> 2"]


def test_correlations_do_not_see_the_size_of_rows_but_that_of_columns(generator):
    rows = torch.rand(6, 6, dtype=torch.float64, generator=generator)
    scales = torch.rand(6, dtype=torch.float64, generator=generator) + 0.1
    before = correlation_of(rows)
    assert (correlation_of(scales[:, None] * rows) - before).abs().max() < 1e-14
    assert (correlation_of(rows * scales) - before).abs().max() > 1e-3


@pytest.mark.parametrize("given", [[], [2], [0, 3, 4]])
def test_p_values_are_those_of_the_library_on_data_with_these_correlations(given):
    from causallearn.utils.cit import FisherZ

    wanted, samples = correlation_of(softmax(6, 1)).numpy(), 64
    time = (np.arange(samples) + 0.5)[:, None] / samples
    white = np.cos(np.pi * time * np.arange(1, 7)[None])  # orthogonal, and to a constant
    data = white @ np.linalg.cholesky(wanted).T
    ours = PartialCorrelation(wanted, samples)(5, 1, given)
    assert ours == pytest.approx(FisherZ(data)(1, 5, given), rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("seed", range(8))
def test_relabelling_tokens_relabels_the_graph(seed):
    attention = softmax(9, seed)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(seed)).tolist()
    base = graph_of_attention(attention, 64)
    moved = graph_of_attention(attention[order][:, order], 64)
    assert moved == base.relabelled({old: new for new, old in enumerate(order)})
    assert base.edges


def test_permuting_columns_changes_nothing_and_permuting_each_row_does():
    attention = softmax(8, 3)
    base = graph_of_attention(attention, 200)
    generator = torch.Generator().manual_seed(0)
    assert graph_of_attention(attention[:, torch.randperm(8, generator=generator)], 200) == base
    mixed = torch.stack([row[torch.randperm(8, generator=generator)] for row in attention])
    assert graph_of_attention(mixed, 200) != base


def test_names_of_nodes_hash_alike_in_every_process():
    assert [hash(Name(k)) for k in range(3)] == [0, 1, 2]


def test_marks_are_there_in_both_directions_and_names_can_change():
    graph = graph_of_attention(mixing([(0, 2), (1, 2)], 3), 2000)
    assert graph.marks[2, 0] is Mark.ARROW and graph.marks[0, 2] is Mark.CIRCLE
    assert graph.neighbours(2) == (0, 1) and graph.neighbours(0) == (2,)
    assert shown(graph.relabelled({0: 5, 1: 6, 2: 4})) == ["4 <-o 5", "4 <-o 6"]
    assert graph.pairs == {frozenset((0, 2)), frozenset((1, 2))}


def test_nothing_is_printed(capsys):
    graph_of_attention(mixing([(0, 2), (1, 2), (2, 3)], 4), 2000)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: graph_of_attention(torch.eye(4), 5), "5 samples are too few.*at least 6"),
        (lambda: graph_of_attention(torch.eye(4), 64, 1.0), "alpha is 1.0"),
        (lambda: graph_of_attention(torch.eye(4), 64, nodes=[1]), "1 tokens has no edges"),
        (lambda: correlation_of(torch.zeros(2, 2)), "row 0 of attention is all zeros"),
        (lambda: correlation_of(torch.full((2, 2), torch.nan)), "not finite"),
    ],
)
def test_what_means_nothing_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_tokens_that_attend_alike_are_named():
    rows = torch.eye(4, dtype=torch.float64)
    rows[3] = 2 * rows[1]
    with pytest.raises(AlikeError, match="tokens 1 and 3"):
        graph_of_attention(rows, 64)


def test_the_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "causallearn.search.ConstraintBased.FCI", None)
    monkeypatch.delitem(sys.modules, "orbitlens.explaining.independence")
    with pytest.raises(MissingPackageError, match=r"orbitlens\[explain\]"):
        graph_of_attention(torch.eye(3), 64)


def test_an_empty_graph_has_no_pairs():
    assert CausalGraph((0, 1), ()).pairs == frozenset()
