"""An atlas -> one page that stands alone: a table that sorts, and each model's layers in small.

Enters: an `Atlas`. Leaves: the text of a page. All models share the axes of a small chart, so that
they can be compared by eye; depth runs from the first layer of a stack (0) to its last (1).
"""

from collections.abc import Sequence
from typing import Any

from orbitlens.draw.figure import BLUE, INK, ORANGE, Bars, Curve, Level, Panel
from orbitlens.draw.figure_html import panel_data
from orbitlens.draw.page import esc, whole_page
from orbitlens.reporting.markup import Table, items, table
from orbitlens.surveying.atlas_entry import AtlasEntry, AtlasLayer
from orbitlens.surveying.atlas_result import Atlas

HEIGHT = 118  # pixels of a small chart
MOST_CHANGE = 1.5  # of ln(1 - C) a layer; what is beyond is cut off, and said
COLUMNS = {  # of the table: the atlas' own columns, and what a heading says of them
    "model": "model",
    "family": "family",
    "parameters": "parameters",
    "layers": "layers",
    "heads": "heads",
    "width": "width",
    "encoding": "encoding",
    "rotated by weights": "rotated by weights",
    "weights disagree": "weights disagree",
    "aligned": "aligned",
    "opposed": "opposed",
    "gathering layers": "gathering layers",
    "C first": "C first",
    "C last": "C last",
    "massive": "massive",
    "tokens": "tokens",
}
MEANINGS = (
    "aligned, opposed: share of heads whose value map lies along or against their score map beyond "
    "3 sigma of randomly turned maps; from the weights alone.",
    "rotated by weights: layers whose queries and keys show a rotary encoding; – where weights "
    "cannot tell. weights disagree: layers in which the config says otherwise.",
    "gathering layers: those whose attention brings the directions of tokens together (ln(1 − C) "
    "falls); C: mean cosine of tokens of a context, in front of the first layer and behind the "
    "last.",
    "massive: most tokens that enter a layer far longer than their context.",
)


def page_of_atlas(atlas: Atlas) -> str:
    """Return the page of an atlas."""
    read = atlas.read
    panels = [panel for entry in read for panel in _panels(entry, _cut(read))]
    cards = "".join(_card(k, entry) for k, entry in enumerate(read))
    body = (
        f"<main><header><h1>Atlas of {len(atlas.entries)} models</h1>"
        f'<p class="source">{esc(_how(atlas))}</p></header>'
        f'<section id="now">{esc(atlas.summary())}</section>'
        f"{table(_table(atlas))}{items(MEANINGS, 'plain meanings')}{_missing(atlas)}"
        "<h2>Layer by layer</h2>"
        '<p class="note">Left to right is depth. Upper chart: share of heads that are aligned '
        "(blue, up) and opposed (orange, down), by the weights. Lower chart: what attention does "
        "to directions, the change of ln(1 − C): below 0 (blue) it gathers them, above 0 (orange) "
        f"it spreads them, cut off at ±{_cut(read):.2g}; the line is C behind each layer, "
        "from 0 at the middle to 1 at the top.</p>"
        f'<div class="cards">{cards}</div></main>'
    )
    return whole_page(
        f"Atlas of {len(atlas.entries)} models",
        body,
        data={"figure-data": [panel_data(panel) for panel in panels]},
        styles=["draw/assets/figure_page.css", "reporting/assets/atlas.css"],
        script="reporting/assets/atlas.js",
    )


def _how(atlas: Atlas) -> str:
    if not atlas.options.trace:
        return "From the weights alone: nothing was run."
    return (
        f"Weights of all; models of at most {atlas.options.largest:,} parameters were also run, on "
        f"up to {atlas.options.max_tokens} tokens in contexts of up to {atlas.options.context}."
    )


def _table(atlas: Atlas) -> Table:
    rows = [tuple(_shown(row[name]) for name in COLUMNS) for row in atlas.rows()]
    columns = tuple(COLUMNS.values())
    caption = "All models; a heading sorts"
    return Table(name="atlas", caption=caption, columns=columns, rows=rows)


def _shown(value: Any) -> Any:  # noqa: ANN401 - whatever a table holds
    """Return shares and cosines with two digits, which leaves room for all columns."""
    return round(value, 2) if isinstance(value, float) else value


def _missing(atlas: Atlas) -> str:
    """Return the models that were not read, or not run, each with its reason."""
    rows = [(entry.name, "not read", entry.not_read) for entry in atlas.entries if entry.not_read]
    rows += [(entry.name, "not run", entry.not_run) for entry in atlas.entries if entry.not_run]
    if not rows:
        return ""
    columns = ("model", "what", "why")
    return "<h2>What is missing</h2>" + table(
        Table(name="missing", caption="Reasons", columns=columns, rows=rows)
    )


def _card(k: int, entry: AtlasEntry) -> str:
    assert entry.model is not None
    about = f"{entry.model.family}, {entry.model.n_layers} layers, {_size(entry.model.parameters)}"
    second = "" if entry.n_tokens is not None else f'<p class="note">{esc(entry.not_run)}</p>'
    lower = "" if second else _plot(2 * k + 1, f"{entry.name}: directions by depth", second)
    return (
        f"<article><h3>{esc(entry.name)}</h3><p>{esc(about)}</p>"
        f"{_plot(2 * k, f'{entry.name}: aligned and opposed heads by depth', '')}{lower}{second}"
        "</article>"
    )


def _plot(place: int, label: str, _: str) -> str:
    return (
        f'<div class="plot" data-panel="{place}" role="img" aria-label="{esc(label)}" '
        f'style="height:{HEIGHT}px"></div>'
    )


def _size(parameters: int) -> str:
    for unit, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if parameters >= unit:
            return f"{parameters / unit:.3g}{letter} parameters"
    return f"{parameters} parameters"


def _cut(entries: Sequence[AtlasEntry]) -> float:
    """Return where changes of ln(1 - C) are cut off: the largest of all, within bounds."""
    changes = [
        abs(layer.gathering)
        for entry in entries
        for layer in entry.layers
        if layer.gathering is not None
    ]
    return min(max(changes, default=1.0), MOST_CHANGE) or 1.0


def _panels(entry: AtlasEntry, cut: float) -> tuple[Panel, Panel]:
    layers = entry.layers
    places = [float(k) for k in range(len(layers))]
    zero = Level(at=0.0)
    shares = Panel(
        layers=[
            Bars(x=places, y=[_share(each, each.aligned) for each in layers], colour=BLUE),
            Bars(x=places, y=[-_share(each, each.opposed) for each in layers], colour=ORANGE),
            zero,
        ],
        y_range=(-1.0, 1.0),
        y_ticks=((-1.0, "all"), (0.0, "0"), (1.0, "all")),
        x_ticks=((0.0, "0"), (places[-1], str(layers[-1].layer))),
        legend=False,
    )
    changes = [max(-cut, min(cut, each.gathering or 0.0)) / cut for each in layers]
    gathers = [value if value < 0 else 0.0 for value in changes]
    spreads = [value if value > 0 else 0.0 for value in changes]
    directions = Panel(
        layers=[
            Bars(x=places, y=gathers, colour=BLUE),
            Bars(x=places, y=spreads, colour=ORANGE),
            zero,
            Curve(x=places, y=[each.cosine_after for each in layers], colour=INK, markers=True),
        ],
        y_range=(-1.05, 1.05),
        y_ticks=((-1.0, f"−{cut:.2g}"), (0.0, "0"), (1.0, f"{cut:.2g}")),
        x_ticks=((0.0, "0"), (places[-1], str(layers[-1].layer))),
        legend=False,
    )
    return shares, directions


def _share(layer: AtlasLayer, count: int) -> float:
    return count / max(1, layer.n_heads)
