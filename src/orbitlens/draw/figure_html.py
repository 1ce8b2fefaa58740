"""A figure as HTML: its place, its legend and its numbers, which `assets/figure.js` draws as SVG.

Enters: a `Figure`. Leaves: a page that works offline, or the pieces that other pages are made of.
"""

import math
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import MISSING, fields
from typing import Any

from orbitlens.draw.figure import (
    GREY,
    INK,
    MAPS,
    MUTED,
    PALETTE,
    ZERO,
    Band,
    Bars,
    Curve,
    Figure,
    Forest,
    Heat,
    Layer,
    Panel,
    Points,
)
from orbitlens.draw.page import esc, whole_page

PIXELS = 92  # an inch of a figure on a screen
THEME = dict(
    zip(
        (*PALETTE, GREY, INK, MUTED, ZERO),
        ("blue", "orange", "green", "pink", "yellow", "sky", "grey", "ink", "muted", "zero"),
        strict=True,
    )
)
DARK_ENDS = {"sequential": 1, "diverging": 2, "signed": 0, "share": 0}  # with white words on them


def html_of(figure: Figure) -> str:
    """Return the page of a figure."""
    widths = figure.widths or (1.0,) * figure.n_columns
    columns = " ".join(f"minmax(0, {width:g}fr)" for width in widths)
    panels = "".join(_panel_place(k, panel, figure) for k, panel in enumerate(figure.panels))
    body = (
        f'<main><h1>{esc(figure.title)}</h1><div class="panels" style="--columns:{columns}">'
        f'{panels}</div><p class="caption">{esc(figure.caption)}</p></main>'
    )
    return whole_page(
        figure.title,
        body,
        data={"figure-data": [panel_data(panel) for panel in figure.panels]},
        styles=["draw/assets/figure_page.css"],
        script="draw/assets/figure_page.js",
    )


def _panel_place(k: int, panel: Panel, figure: Figure) -> str:
    caption = f"<figcaption>{esc(panel.title)}</figcaption>" if panel.title else ""
    label = esc(f"{panel.title or figure.title}. {panel.x_label} and {panel.y_label}.")
    return (
        f'<figure>{caption}{legend(panel)}<div class="plot" data-panel="{k}" role="img" '
        f'aria-label="{label}" style="height:{round(PIXELS * figure.height)}px"></div></figure>'
    )


# --- legends ---------------------------------------------------------------------------------


def legend(panel: Panel) -> str:
    """Return what the marks of a panel mean, as HTML."""
    return keys(_entries(panel.layers)) if panel.legend else ""


def keys(entries: Iterable[tuple[str, str, str]]) -> str:
    """Return a legend of entries: words, a colour, and how it is drawn."""
    shown = "".join(
        f'<span><i class="{esc(drawn)}" style="--tone:{esc(colour)}"></i>{esc(words)}</span>'
        for words, colour, drawn in entries
    )
    return f'<p class="keys">{shown}</p>' if shown else ""


def _entries(layers: Sequence[Layer]) -> Iterator[tuple[str, str, str]]:
    for layer in layers:
        if isinstance(layer, Curve | Band | Bars | Points) and layer.label:
            yield layer.label, themed(layer.colour), _drawn(layer)
        if isinstance(layer, Heat) and layer.bar:
            low, high = layer.limits
            ramp = ", ".join(themed(colour) for colour in MAPS[layer.colours])
            yield f"{layer.bar}, {low:g} to {high:g}", ramp, "ramp"


def _drawn(layer: Curve | Band | Bars | Points) -> str:
    if isinstance(layer, Curve):
        return "dash" if layer.dashed else "dots" if layer.dotted else "line"
    return {Band: "band", Bars: "bar", Points: "point"}[type(layer)]


def themed(colour: str) -> str:
    """Return a colour as the page's theme has it; one that it does not have, as it is."""
    return f"var(--{THEME[colour]})" if colour in THEME else colour


# --- data ------------------------------------------------------------------------------------


def panel_data(panel: Panel) -> dict[str, Any]:
    """Return a panel as plain data for `json.dumps`; what has its default is left out."""
    return {"layers": [_layer_data(layer) for layer in panel.layers], **_given(panel)}


def _layer_data(layer: Layer) -> dict[str, Any]:
    data = {"kind": type(layer).__name__.lower(), **_given(layer)}
    if not isinstance(layer, Forest | Heat):
        data["colour"] = layer.colour
    if isinstance(layer, Heat):
        data |= {"stops": list(MAPS[layer.colours]), "dark_ends": DARK_ENDS[layer.colours]}
    return data


def _given(value: Panel | Layer) -> dict[str, Any]:
    """Return the fields that differ from their defaults."""
    data = {}
    for field in fields(value):
        given = getattr(value, field.name)
        if field.name != "layers" and not _is_default(given, field.default):
            data[field.name] = _plain(given)
    return data


def _is_default(value: object, default: object) -> bool:
    if isinstance(value, Sized) and isinstance(default, tuple):  # rows may be arrays
        return len(value) == 0 and not default
    return default is not MISSING and value == default


def _plain(value: Any) -> Any:  # noqa: ANN401 - numbers, words and rows of them
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str | int | None):
        return value
    if isinstance(value, Iterable):
        return [_plain(item) for item in value]
    return _plain(value.item())  # a number of numpy
