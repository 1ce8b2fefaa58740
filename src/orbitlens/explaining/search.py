"""Sets of tokens that may explain a prediction, the most plausible first (arXiv 2310.20307).

Enters: graphs over tokens and the token whose prediction is asked about. Leaves: sets in the order
in which they are to be tried, and the first that changes the prediction, with what that cost. As in
the authors' code, a set counts if each of its tokens is linked with the target by a possible-d-sep
path inside the set; sets are ordered by size, then by the sum of distances along such paths.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from orbitlens.explaining.graph import CausalGraph, Mark

TokenSet = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Search:
    """What a search found, and how many predictions of masked inputs it took."""

    tokens: TokenSet | None  # None: no set that was tried changes the prediction
    tried: int


def reach(
    graph: CausalGraph, target: int, *, within: frozenset[int] | None = None
) -> dict[int, int]:
    """Return how far from the target tokens lie along possible-d-sep paths.

    On such a path every inner token is a collider or a corner of a triangle. With `within`, only
    paths inside that set count.

    >>> chain = CausalGraph((0, 1, 2), ())
    >>> reach(chain, 0)
    {}
    """
    inside = frozenset(graph.nodes) if within is None else within
    first = [(target, node) for node in graph.neighbours(target) if node in inside]
    distances = {node: 1 for _, node in first}
    queue, seen = deque((pair, 1) for pair in first), set(first)
    while queue:
        (a, b), distance = queue.popleft()
        for c in graph.neighbours(b):
            step = (b, c)
            if c in (a, target) or c not in inside or step in seen or not _passes(graph, a, b, c):
                continue
            seen.add(step)
            distances.setdefault(c, distance + 1)
            queue.append((step, distance + 1))
    return distances


def _passes(graph: CausalGraph, a: int, b: int, c: int) -> bool:
    collider = graph.marks[b, a] is Mark.ARROW and graph.marks[b, c] is Mark.ARROW
    return collider or (a, c) in graph.marks


def graph_order(
    graphs: Sequence[CausalGraph],
    target: int,
    *,
    strengths: Mapping[int, float],
    fixed: frozenset[int] = frozenset(),
) -> Iterator[TokenSet]:
    """Yield the sets that at least one graph offers, in the order in which they are to be tried.

    Args:
        graphs: one a head.
        target: the token whose prediction is explained.
        strengths: of each token, such as its correlation with the target; breaks ties, so that the
            order does not depend on how tokens are numbered.
        fixed: tokens that are never part of a set.
    """
    far = [reach(graph, target) for graph in graphs]
    tokens = sorted(frozenset().union(*far) - fixed - {target})
    for size in range(1, len(tokens) + 1):
        ranked = []
        for chosen in combinations(tokens, size):
            distance = _distance(graphs, target, far, chosen)
            if distance is not None:
                ranked.append((distance, -sum(strengths[t] for t in chosen), chosen))
        yield from (chosen for _, _, chosen in sorted(ranked))


def _distance(
    graphs: Sequence[CausalGraph],
    target: int,
    far: Sequence[Mapping[int, int]],
    chosen: TokenSet,
) -> int | None:
    """Return the least sum of distances over graphs that offer a set; None where none does."""
    within = frozenset(chosen)
    sums = [
        sum(distances[token] for token in chosen)
        for graph, distances in zip(graphs, far, strict=True)
        if within <= distances.keys() and within <= reach(graph, target, within=within).keys()
    ]
    return min(sums, default=None)


def ranked_order(tokens: Sequence[int]) -> Iterator[TokenSet]:
    """Yield the first token of a ranking, the first two, the first three, and so on."""
    for size in range(1, len(tokens) + 1):
        yield tuple(sorted(tokens[:size]))


def every_set(tokens: Sequence[int]) -> Iterator[TokenSet]:
    """Yield all sets by size: what an exhaustive search tries."""
    for size in range(1, len(tokens) + 1):
        yield from combinations(sorted(tokens), size)


def first_change(
    sets: Iterable[TokenSet],
    changes: Callable[[TokenSet], bool],
    *,
    most: int | None = None,
) -> Search:
    """Return the first set whose masking changes the prediction; at most `most` are tried.

    >>> first_change(every_set([4, 7, 9]), lambda chosen: 9 in chosen)
    Search(tokens=(9,), tried=3)
    """
    tried = 0
    for chosen in sets:
        if most is not None and tried >= most:
            break
        tried += 1
        if changes(chosen):
            return Search(tokens=chosen, tried=tried)
    return Search(tokens=None, tried=tried)
