"""The figure of one session: attention of each head beside its graph.

Enters: a result. Leaves: a figure as data.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from orbitlens.draw.figure import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PINK,
    Curve,
    Figure,
    Heat,
    Layer,
    Panel,
    Points,
)
from orbitlens_papers.result import StudyResult


def session(result: StudyResult) -> Figure:
    """Draw attention and graph of one session, one row per head."""
    example = result.data("3a")["example"]
    panels: list[Panel] = []
    for head, (attention, edges) in enumerate(
        zip(example["attention"], example["graphs"], strict=True)
    ):
        panels += [_attention_panel(example, attention, head), _graph_panel(example, edges, head)]
    parents = ", ".join(_label(example, token) for token in example["parents"]) or "none"
    return Figure(
        name="causal-attention-session",
        title="One session: attention of the last layer, and its graph",
        caption=f"Items of a session, and the recommended one, {example['prediction']}. "
        f"{_outcome(example)} True parents of it in the session: {parents}. An arrowhead says “no "
        "cause of the other”, a ring “either”. The graph sees which rows are alike, not which "
        "columns they point at.",
        panels=panels,
        height=4.3,
        widths=(1.15, 1.0),
    )


def _outcome(example: Mapping[str, Any]) -> str:
    if not example["tokens"]:
        return "No set that the graphs offer changes it when masked."
    chosen = ", ".join(_label(example, token) for token in example["tokens"])
    return f"With {chosen} masked it is item {example['changed to']}: the explanation."


def _label(example: Mapping[str, Any], place: int) -> str:
    items = [*example["items"], example["prediction"]]
    return f"item {items[place]}"


def _short_names(example: Mapping[str, Any]) -> list[str]:
    return [str(item) for item in [*example["items"], example["prediction"]]]


def _attention_panel(
    example: Mapping[str, Any], attention: Sequence[Sequence[float]], head: int
) -> Panel:
    names = _short_names(example)
    top = max(max(row) for row in attention)
    heat = Heat(values=attention, x_names=names, y_names=names, limits=(0.0, top), bar="attention")
    return Panel(
        layers=[heat],
        title=f"head {head + 1}: attention",
        x_label="attended item (the last is the recommended one)",
        y_label="attending item",
    )


def _graph_panel(example: Mapping[str, Any], edges: Sequence[Sequence[Any]], head: int) -> Panel:
    names = _short_names(example)
    places = on_circle(len(names))
    layers: list[Layer] = []
    for first, second, at_first, at_second in edges:
        layers += edge_curves(places[first], places[second], (at_first, at_second))
    kinds: dict[str, tuple[str, list[int]]] = {
        "recommended": (ORANGE, [len(names) - 1]),
        "explanation": (PINK, [k for k in example["tokens"] if k not in example["parents"]]),
        "explanation and parent": (BLUE, [k for k in example["tokens"] if k in example["parents"]]),
        "parent": (GREEN, [k for k in example["parents"] if k not in example["tokens"]]),
    }
    marked = {k for _, chosen in kinds.values() for k in chosen}
    kinds["other"] = (GREY, [k for k in range(len(names)) if k not in marked])
    for label, (colour, chosen) in kinds.items():
        if chosen:
            x, y = [places[k][0] for k in chosen], [places[k][1] for k in chosen]
            layers.append(Points(x=x, y=y, colour=colour, label=label, size=9.0))
    notes = [(1.22 * x, 1.22 * y, name) for (x, y), name in zip(places, names, strict=True)]
    return Panel(
        layers=layers,
        title=f"head {head + 1}: {len(edges)} edges",
        x_range=(-1.5, 1.5),
        y_range=(-1.4, 1.4),
        square=True,
        bare=True,
        notes=notes,
    )


Place = tuple[float, float]
NODE, HEAD, RING = 0.13, 0.085, 0.032  # radius kept free around a token; sizes of marks


def on_circle(n_tokens: int) -> list[Place]:
    """Return places on the unit circle, from the top and clockwise."""
    angles = [math.pi / 2 - 2 * math.pi * k / n_tokens for k in range(n_tokens)]
    return [(math.cos(angle), math.sin(angle)) for angle in angles]


def edge_curves(start: Place, end: Place, marks: tuple[str, str]) -> list[Curve]:
    """Return the line of an edge and its marks."""
    length = math.dist(start, end)
    along = ((end[0] - start[0]) / length, (end[1] - start[1]) / length)
    near = (start[0] + NODE * along[0], start[1] + NODE * along[1])
    far = (end[0] - NODE * along[0], end[1] - NODE * along[1])
    curves = [_line([near, far])]
    for tip, mark, towards in ((near, marks[0], (-along[0], -along[1])), (far, marks[1], along)):
        if mark == ">":
            curves.append(_head(tip, towards))
        elif mark == "o":
            curves.append(_ring(tip))
    return curves


def _line(places: Sequence[Place]) -> Curve:
    return Curve(x=[p[0] for p in places], y=[p[1] for p in places], colour=INK, width=1.2)


def _head(tip: Place, towards: Place) -> Curve:
    """Return two short lines that meet at the tip."""
    ends = []
    for turn in (math.radians(155), math.radians(-155)):
        x = towards[0] * math.cos(turn) - towards[1] * math.sin(turn)
        y = towards[0] * math.sin(turn) + towards[1] * math.cos(turn)
        ends.append((tip[0] + HEAD * x, tip[1] + HEAD * y))
    return _line([ends[0], tip, ends[1]])


def _ring(tip: Place) -> Curve:
    steps = [2 * math.pi * k / 16 for k in range(17)]
    return _line([(tip[0] + RING * math.cos(s), tip[1] + RING * math.sin(s)) for s in steps])
