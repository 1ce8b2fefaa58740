"""Marks of a partial ancestral graph from its skeleton: the rules of FCI.

Enters: which nodes are adjacent, and the sets that separated the others. Leaves: a table of marks,
[a, b] the one at a. Rules are numbered as in Zhang, "On the completeness of orientation rules"
(Artificial Intelligence 2008): 0 to 4 set arrowheads, 8 to 10 tails. Rules 5 to 7 are about
selection, which is taken to be absent.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations

import numpy as np
from jaxtyping import Int

NONE, TAIL, ARROW, CIRCLE = 0, -1, 1, 2

Marks = Int[np.ndarray, "nodes nodes"]
Separating = Mapping[frozenset[int], frozenset[int]]  # by pair


def oriented(marks: Marks, separating: Separating) -> Marks:
    """Return the marks that follow from the skeleton of `marks` and the separating sets."""
    made = np.where(marks == NONE, NONE, CIRCLE)
    _colliders(made, separating)
    rules: tuple[Callable[[Marks], bool], ...] = (
        _rule_1,
        _rule_2,
        _rule_3,
        lambda m: _rule_4(m, separating),
        _rule_8,
        _rule_9,
        _rule_10,
    )
    while any(rule(made) for rule in rules):
        pass
    return made


def neighbours(marks: Marks, node: int) -> list[int]:
    """Return the nodes that are adjacent to one."""
    found: list[int] = np.flatnonzero(marks[node]).tolist()
    return found


def _causes(marks: Marks, a: int, b: int) -> bool:
    """Say whether the edge is a -> b."""
    return bool(marks[a, b] == TAIL and marks[b, a] == ARROW)


def _triples(marks: Marks) -> Iterator[tuple[int, int, int]]:
    """Yield a, b, c with b adjacent to both others, in both directions."""
    for b in range(len(marks)):
        for a, c in combinations(neighbours(marks, b), 2):
            yield a, b, c
            yield c, b, a


def _colliders(marks: Marks, separating: Separating) -> None:
    """Rule 0: a *-> b <-* c, where a and c were separated without b."""
    for a, b, c in _triples(marks):
        if a < c and marks[a, c] == NONE and b not in separating[frozenset((a, c))]:
            marks[b, a] = marks[b, c] = ARROW


def _rule_1(marks: Marks) -> bool:
    """Orient a *-> b o-* c as b -> c where a and c are apart: b would be a collider."""
    changed = False
    for a, b, c in _triples(marks):
        if marks[a, c] == NONE and marks[b, a] == ARROW and marks[b, c] == CIRCLE:
            marks[b, c], marks[c, b] = TAIL, ARROW
            changed = True
    return changed


def _rule_2(marks: Marks) -> bool:
    """Orient a *-o c as a *-> c where a -> b *-> c or a *-> b -> c: else there were a cycle."""
    changed = False
    for a, b, c in _triples(marks):
        if marks[c, a] != CIRCLE or marks[b, a] != ARROW or marks[c, b] != ARROW:
            continue
        if marks[a, b] == TAIL or marks[b, c] == TAIL:
            marks[c, a] = ARROW
            changed = True
    return changed


def _rule_3(marks: Marks) -> bool:
    """Orient d *-o b as d *-> b where a *-> b <-* c, a *-o d o-* c, and a and c are apart."""
    changed = False
    for a, b, c in _triples(marks):
        if a > c or marks[a, c] != NONE or marks[b, a] != ARROW or marks[b, c] != ARROW:
            continue
        for d in neighbours(marks, b):
            if marks[b, d] == marks[d, a] == marks[d, c] == CIRCLE:
                marks[b, d] = ARROW
                changed = True
    return changed


def _rule_4(marks: Marks, separating: Separating) -> bool:
    """Orient b o-* c at the end of a discriminating path: a tail if b separated its ends."""
    changed = False
    for a, b, c in list(_triples(marks)):
        if marks[b, c] != CIRCLE or marks[a, b] != ARROW or not _causes(marks, a, c):
            continue
        start = _discriminating(marks, a, b, c)
        if start is None:
            continue
        if b in separating[frozenset((start, c))]:
            marks[b, c], marks[c, b] = TAIL, ARROW
        else:
            marks[a, b] = marks[b, a] = marks[b, c] = marks[c, b] = ARROW
        changed = True
    return changed


def _discriminating(marks: Marks, a: int, b: int, c: int) -> int | None:
    """Return the far end of a path that ends in a, b, c and tells what b is; None without one.

    All nodes between that end and b are colliders on the path and parents of c; the end itself is
    not adjacent to c.
    """
    queue, seen = [a], {a, b, c}
    while queue:
        node = queue.pop(0)
        for before in neighbours(marks, node):
            if before in seen or marks[node, before] != ARROW:
                continue
            if marks[before, c] == NONE:
                return before
            if marks[before, node] == ARROW and _causes(marks, before, c):
                seen.add(before)
                queue.append(before)
    return None


def _rule_8(marks: Marks) -> bool:
    """Orient a o-> c as a -> c where a -> b -> c."""
    changed = False
    for a, b, c in _triples(marks):
        if _may_cause(marks, a, c) and _causes(marks, a, b) and _causes(marks, b, c):
            marks[a, c] = TAIL
            changed = True
    return changed


def _may_cause(marks: Marks, a: int, c: int) -> bool:
    """Say whether the edge is a o-> c."""
    return bool(marks[a, c] == CIRCLE and marks[c, a] == ARROW)


def _open_edges(marks: Marks) -> list[tuple[int, int]]:
    return [(a, c) for a, c in np.argwhere(marks == CIRCLE).tolist() if _may_cause(marks, a, c)]


def _rule_9(marks: Marks) -> bool:
    """Orient a o-> c as a -> c where an uncovered path may lead there, by a node apart from c."""
    changed = False
    for a, c in _open_edges(marks):
        first = [b for b in neighbours(marks, a) if b != c and marks[b, c] == NONE]
        if any(c in _uncovered(marks, [a, b]) for b in first):
            marks[a, c] = TAIL
            changed = True
    return changed


def _rule_10(marks: Marks) -> bool:
    """Orient a o-> c as a -> c where two such paths lead to two parents of c and start apart."""
    changed = False
    for a, c in _open_edges(marks):
        parents = {b for b in neighbours(marks, c) if _causes(marks, b, c)}
        starts = [b for b in neighbours(marks, a) if b != c]
        ends = {b: _uncovered(marks, [a, b]) & parents for b in starts}
        if any(
            marks[one, other] == NONE and _two_ends(ends[one], ends[other])
            for one, other in combinations(starts, 2)
        ):
            marks[a, c] = TAIL
            changed = True
    return changed


def _two_ends(one: set[int], other: set[int]) -> bool:
    """Say whether each has an end, and not both the same."""
    return bool(one and other) and len(one | other) > 1


def _uncovered(marks: Marks, path: list[int]) -> set[int]:
    """Return where an uncovered, possibly directed path goes that begins like this.

    No edge of it points backwards, and no two nodes with one between them are adjacent.
    """
    before, here = path[-2:]
    if marks[before, here] in (NONE, ARROW) or marks[here, before] == TAIL:
        return set()
    found = {here}
    for after in neighbours(marks, here):
        if after not in path and marks[before, after] == NONE:
            found |= _uncovered(marks, [*path, after])
    return found
