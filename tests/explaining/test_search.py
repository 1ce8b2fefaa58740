"""Which sets are tried, and in which order."""

from orbitlens.explaining.graph import CausalGraph, Edge, Mark
from orbitlens.explaining.search import (
    Search,
    every_set,
    first_change,
    graph_order,
    ranked_order,
    reach,
)

NONE = dict.fromkeys(range(6), 0.0)


def graph(*edges):
    """Return a graph from words such as "0 o-> 2"."""
    ends = {"o": Mark.CIRCLE, "-": Mark.TAIL, ">": Mark.ARROW, "<": Mark.ARROW}
    made = []
    for words in edges:
        first, line, second = words.split()
        made.append(
            Edge(
                first=int(first),
                second=int(second),
                at_first=ends[line[0]],
                at_second=ends[line[-1]],
            )
        )
    nodes = sorted({node for edge in made for node in (edge.first, edge.second)})
    return CausalGraph(tuple(nodes), tuple(made))


def test_a_path_goes_on_through_a_collider_only():
    assert reach(graph("0 o-o 1", "1 o-o 2"), 2) == {1: 1}
    assert reach(graph("0 o-> 1", "1 <-o 2"), 2) == {1: 1, 0: 2}


def test_a_path_goes_on_through_a_triangle():
    corner = graph("0 o-o 1", "1 o-o 2", "0 o-o 2", "0 o-o 3", "1 o-o 3")
    # 2 - 0 - 3 is neither a triangle nor a collider; 2 - 0 - 1 - 3 is two triangles.
    assert reach(corner, 2) == {0: 1, 1: 1, 3: 3}


def test_a_set_must_hold_the_path_to_its_tokens():
    collider = graph("0 o-> 1", "1 <-o 2")
    assert reach(collider, 2, within=frozenset({0})) == {}
    assert list(graph_order([collider], 2, strengths=NONE)) == [(1,), (0, 1)]


def test_near_sets_come_first_and_strength_breaks_ties():
    star = graph("0 o-> 4", "1 o-> 4", "2 o-> 4", "3 o-> 0", "0 <-o 4")
    strengths = {0: 0.1, 1: 0.9, 2: 0.5, 3: 1.0}
    found = list(graph_order([star], 4, strengths=strengths))
    assert found[:3] == [(1,), (2,), (0,)]
    assert found.index((0, 1)) < found.index((0, 3))
    assert (3,) not in found  # its path leads through 0


def test_sets_of_all_heads_are_tried_and_fixed_tokens_never():
    heads = [graph("0 o-o 3"), graph("1 o-o 3", "2 o-o 3")]
    found = list(graph_order(heads, 3, strengths=NONE, fixed=frozenset({2})))
    assert found == [(0,), (1,)]  # no head offers 0 and 1 together


def test_a_target_without_neighbours_has_no_sets():
    assert list(graph_order([CausalGraph((0, 1), ())], 0, strengths=NONE)) == []


def test_rankings_grow_and_exhaustive_search_tries_all():
    assert list(ranked_order([2, 0, 1])) == [(2,), (0, 2), (0, 1, 2)]
    assert len(list(every_set(range(5)))) == 2**5 - 1


def test_a_search_ends_where_it_is_told():
    assert first_change(every_set(range(3)), lambda chosen: False) == Search(tokens=None, tried=7)
    found = first_change(every_set(range(3)), lambda chosen: 2 in chosen, most=2)
    assert found == Search(tokens=None, tried=2)
