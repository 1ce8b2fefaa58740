"""The distance at which order stops mattering: swaps of two neighbours, further and further back.

Enters: a model and contexts. Leaves: what each swap does to the prediction of the last token, in
bits, by how far back it is (the audit's measure, `order/sensitivity.py`).
"""

import torch

from orbitlens.encodings.reach_result import OrderPoint
from orbitlens.order.comparing import Bench, compare
from orbitlens.order.permutations import Permutations
from orbitlens.order.sensitivity import doublings
from orbitlens.order.subject import make_subject
from orbitlens.running.model import Model
from orbitlens.running.surprise import Rows

N_CONTEXTS = 16


def order_points(model: Model, rows: Rows, seed: int) -> tuple[OrderPoint, ...]:
    """Return what a swap of neighbours does to the next prediction, by its distance."""
    contexts = rows[:N_CONTEXTS, :-1]
    n = contexts.shape[1]
    distances = doublings(1, n - 2)
    bench = Bench(
        subject=make_subject(model.module),
        items=contexts,
        generator=torch.Generator().manual_seed(seed),
    )
    found = compare(bench, bench.subject.own_cell, swaps_back(n, distances))
    means = _of_moved(found.values, found.moved)
    return tuple(
        OrderPoint(distance=distance, bits=value)
        for distance, value in zip(distances, means, strict=True)
    )


def swaps_back(n: int, distances: list[int]) -> Permutations:
    """Return the swaps of the tokens `distance` and `distance + 1` back from the last.

    >>> swaps_back(4, [1]).tolist()
    [[0, 2, 1, 3]]
    """
    rows = torch.arange(n).repeat(len(distances), 1)
    for row, distance in zip(rows, distances, strict=True):
        near, far = n - 1 - distance, n - 2 - distance
        row[near], row[far] = far, near
    return rows


def _of_moved(values: torch.Tensor, moved: torch.Tensor) -> list[float]:
    """Return the mean over contexts in which the two tokens differ."""
    total = moved.sum(dim=0).clamp(min=1)
    means: list[float] = ((values * moved).sum(dim=0) / total).tolist()
    return means
