"""Iterative causal discovery (ICD): a partial ancestral graph by tests of growing size.

Enters: how many nodes, and a test of independence. Leaves: a table of marks. After Rohekar,
Nisimov, Gurwicz and Novik (NeurIPS 2021, arXiv 2111.04095); arXiv 2310.20307 learns graphs of
attention with it. Written from the mathematics.

It begins with all pairs adjacent and round r = 0. In a round, every adjacent pair is tested given
each set of r nodes that could still separate it; then all marks are set anew, and the next round
looks at the graph that is left. A set can separate x from y only if

- a possible-d-sep path within the set leads from x to each of its nodes (every inner node of the
  path is a collider or a corner of a triangle), so that none lies farther than r from x, and
- each of its nodes is possibly a cause of x or of y.

The search ends with the first round that finds no such set for any pair. Pairs are all tested in
the graph that the round began with, so that their order does not matter.
"""

from collections.abc import Callable, Iterable
from itertools import combinations

import numpy as np
from jaxtyping import Bool

from orbitlens.explaining.orienting import ARROW, CIRCLE, NONE, TAIL, Marks, neighbours, oriented

Independent = Callable[[int, int, tuple[int, ...]], bool]


def discovered(n_nodes: int, independent: Independent) -> Marks:
    """Return the marks at the first node of each adjacent pair; 0 where two are not adjacent.

    Args:
        n_nodes: how many there are, numbered from 0.
        independent: says whether two nodes are independent given others.
    """
    marks = np.full((n_nodes, n_nodes), CIRCLE) - CIRCLE * np.eye(n_nodes, dtype=np.int64)
    separating: dict[frozenset[int], frozenset[int]] = {}
    for size in range(n_nodes - 1):
        view = View(marks)
        offered = {
            (a, b): sets
            for a, b in combinations(range(n_nodes), 2)
            if marks[a, b] != NONE and (sets := view.candidates(a, b, size))
        }
        if not offered:
            break
        for (a, b), sets in offered.items():
            found = _first(sets, a, b, independent)
            if found is not None:
                separating[frozenset((a, b))] = frozenset(found)
                marks[a, b] = marks[b, a] = NONE
        marks = oriented(marks, separating)
    return marks


def _first(
    sets: Iterable[tuple[int, ...]], a: int, b: int, independent: Independent
) -> tuple[int, ...] | None:
    """Return the first set that separates a pair; None where none does."""
    return next((chosen for chosen in sets if independent(a, b, chosen)), None)


class View:
    """A graph as a round finds it: what its possible-d-sep paths reach, each asked for once."""

    def __init__(self, marks: Marks) -> None:
        """Take the marks as they are now."""
        self.marks: list[list[int]] = marks.tolist()
        self.beside = [neighbours(marks, node) for node in range(len(marks))]
        self.above: list[list[bool]] = possible_causes(marks).tolist()
        self.known: dict[tuple[int, tuple[int, ...]], bool] = {}

    def candidates(self, a: int, b: int, size: int) -> list[tuple[int, ...]]:
        """Return the sets of that size that could separate two nodes, the nearest first."""
        offered: dict[tuple[int, ...], int] = {}
        for start, other in ((a, b), (b, a)):
            others = frozenset(range(len(self.marks))) - {start, other}
            far = self.distances(start, others, size)
            allowed = [node for node in far if self.above[node][a] or self.above[node][b]]
            for chosen in combinations(sorted(allowed), size):
                if self.holds_together(start, chosen):
                    total = sum(far[node] for node in chosen)
                    offered[chosen] = min(total, offered.get(chosen, total))
        return sorted(offered, key=lambda chosen: (offered[chosen], chosen))

    def holds_together(self, start: int, chosen: tuple[int, ...]) -> bool:
        """Say whether paths within a set lead from a node to all of it."""
        if (start, chosen) not in self.known:
            beside = self.beside[start]
            self.known[start, chosen] = all(node in beside for node in chosen) or (
                len(self.distances(start, frozenset(chosen), len(chosen))) == len(chosen)
            )
        return self.known[start, chosen]

    def distances(self, start: int, inside: frozenset[int], most: int) -> dict[int, int]:
        """Return how far nodes lie from one along possible-d-sep paths inside a set, up to most."""
        edges = [(start, node) for node in self.beside[start] if node in inside and most > 0]
        far = {node: 1 for _, node in edges}
        seen = set(edges)
        for length in range(2, most + 1):
            if len(far) == len(inside):
                break
            after = []
            for one, two in edges:
                for three in self.beside[two]:
                    step = (two, three)
                    if three == one or three not in inside or step in seen:
                        continue
                    if self.passes(one, two, three):
                        seen.add(step)
                        far.setdefault(three, length)
                        after.append(step)
            edges = after
        return far

    def passes(self, one: int, two: int, three: int) -> bool:
        """Say whether a path may go on: a collider in the middle, or a triangle."""
        middle = self.marks[two]
        return self.marks[one][three] != NONE or (middle[one] == ARROW == middle[three])


def possible_causes(marks: Marks) -> Bool[np.ndarray, "nodes nodes"]:
    """Say who may be above whom: [a, b] if a path from a to b has no edge that points back."""
    step = (marks != NONE) & (marks != ARROW) & (marks.T != TAIL)
    reached = step.copy()
    for middle in range(len(marks)):
        reached |= reached[:, middle : middle + 1] & reached[middle : middle + 1]
    return reached
