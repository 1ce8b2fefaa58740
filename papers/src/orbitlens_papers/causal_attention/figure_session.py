"""The figure of one session: attention of each head beside its graph.

Enters: a result. Leaves: a figure as data.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from orbitlens.draw.figure import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    Figure,
    Heat,
    Layer,
    Panel,
    Points,
)
from orbitlens_papers.causal_attention.drawn_graph import edge_curves, on_circle
from orbitlens_papers.result import StudyResult


def session(result: StudyResult) -> Figure:
    """Draw attention and graph of one session, a row a head."""
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
