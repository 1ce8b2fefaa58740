"""Graphs of attention against the edges of the generator, session by session.

Enters: attention of a session, its graphs, and the truth. Leaves: F1 of skeletons: of the trained
attention, of attention drawn at random, of attention made from the truth, and of pairs chosen more
simply.
"""

from collections.abc import Sequence
from itertools import combinations
from statistics import fmean

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.explaining.graph import CausalGraph, Learner, graph_of_attention
from orbitlens_papers.causal_attention.linear import Pair, f1

PLANTED = 0.8  # coefficient of every edge of the truth

Pairs = frozenset[Pair]


def edge_scores(
    true: Pairs,
    attention: Float[Tensor, "head tokens tokens"],
    graphs: Sequence[CausalGraph],
    random: Sequence[Sequence[CausalGraph]],
    planted: CausalGraph,
) -> dict[str, float]:
    """Return F1 by where the edges are from; means over heads.

    Args:
        true: pairs of places that the generator links.
        attention: of the trained heads.
        graphs: of the trained heads.
        random: graphs of two draws of random attention.
        planted: the graph of attention that was made from the truth.
    """
    first, second = (fmean(f1(graph.pairs, true) for graph in drawn) for drawn in random)
    return {
        "trained": fmean(f1(graph.pairs, true) for graph in graphs),
        "any head": f1(frozenset().union(*(graph.pairs for graph in graphs)), true),
        "random attention": first,
        "random again": second,
        "planted": f1(planted.pairs, true),
        "as many by attention": fmean(
            f1(most_attention(head, len(graph.pairs)), true)
            for head, graph in zip(attention, graphs, strict=True)
        ),
        "as many at random": fmean(
            expected_f1(len(graph.pairs), len(true), len(graph.nodes)) for graph in graphs
        ),
    }


def most_attention(attention: Float[Tensor, "tokens tokens"], n_pairs: int) -> Pairs:
    """Return the pairs of tokens with the most attention, both directions together."""
    both = attention + attention.T
    pairs = combinations(range(len(attention)), 2)
    ranked = sorted(pairs, key=lambda pair: -float(both[pair]))
    return frozenset(frozenset(pair) for pair in ranked[:n_pairs])


def expected_f1(n_found: int, n_true: int, n_nodes: int) -> float:
    """Return the F1 that as many pairs drawn at random have in the mean."""
    n_pairs = n_nodes * (n_nodes - 1) / 2
    total = n_found + n_true
    return 2 * n_found * n_true / n_pairs / total if total else 1.0


def planted_graph(true: Pairs, n_nodes: int, samples: int, alpha: float) -> CausalGraph:
    """Return the graph of A = (I − G)⁻¹ where G has the edges of the truth, earlier to later."""
    weights = torch.zeros(n_nodes, n_nodes, dtype=torch.float64)
    for pair in true:
        weights[max(pair), min(pair)] = PLANTED
    mixing = torch.linalg.inv(torch.eye(n_nodes, dtype=torch.float64) - weights)
    rows = mixing / mixing.sum(dim=1, keepdim=True)  # as softmax leaves them; changes nothing
    return graph_of_attention(rows, samples, alpha, learner=Learner.ICD)
