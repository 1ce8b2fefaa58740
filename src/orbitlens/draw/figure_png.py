"""A figure as a PNG, by matplotlib.

Enters: a `Figure`. Leaves: the bytes of a picture that reads well on paper and on a screen.
"""

import io
import math
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orbitlens.draw.figure import (
    GRID,
    INK,
    MAPS,
    MUTED,
    PAPER,
    Band,
    Bars,
    Curve,
    Figure,
    Forest,
    Heat,
    Layer,
    Level,
    Panel,
    Points,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = {
    "circle": "o",
    "square": "s",
    "triangle-up": "^",
    "triangle-down": "v",
    "diamond": "D",
    "x": "X",
}
ONE_SIDED = {"sequential", "share"}  # scales that are dark at their upper end alone
WIDTH = 10.0  # inches
DPI = 160


def png_of(figure: Figure) -> bytes:
    """Return the picture's bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    words = textwrap.wrap(figure.caption, 165)
    head, foot = 0.62, 0.16 + 0.17 * len(words)
    height = figure.height * figure.n_rows + head + foot
    canvas = Canvas(figsize=(WIDTH, height), dpi=DPI, facecolor=PAPER, layout="constrained")
    FigureCanvasAgg(canvas)
    engine: Any = canvas.get_layout_engine()
    engine.set(
        rect=(0.012, foot / height, 0.976, 1 - (head + foot) / height), wspace=0.05, hspace=0.08
    )
    places = canvas.subplots(
        figure.n_rows,
        figure.n_columns,
        squeeze=False,
        width_ratios=list(figure.widths) or None,
    ).ravel()
    for axes, panel in zip(places, figure.panels, strict=False):
        draw_panel(axes, panel)
    for axes in places[len(figure.panels) :]:
        axes.set_axis_off()
    canvas.text(
        0.018, 1 - 0.2 / height, figure.title, fontsize=13, color=INK, weight="bold", va="top"
    )
    canvas.text(
        0.018, 0.1 / height, "\n".join(words), fontsize=8, color=MUTED, va="bottom", linespacing=1.3
    )
    stream = io.BytesIO()
    canvas.savefig(stream, format="png", metadata={"Software": "orbitlens"})
    return stream.getvalue()


def draw_panel(axes: "Axes", panel: Panel) -> None:
    """Draw a panel into axes of matplotlib."""
    axes.set_title(panel.title, loc="left", fontsize=10, color=INK, pad=8, parse_math=False)
    axes.set_xlabel(panel.x_label, fontsize=8.5, color=MUTED)
    axes.set_ylabel(panel.y_label, fontsize=8.5, color=MUTED)
    axes.spines[:].set_visible(False)
    axes.tick_params(which="both", length=0, labelsize=8, labelcolor=MUTED)
    axes.set_axisbelow(True)
    if not any(isinstance(layer, Heat) for layer in panel.layers):
        axes.grid(color=GRID, linewidth=0.7)
    if panel.x_log:
        axes.set_xscale("log")
    if panel.y_log:
        axes.set_yscale("log")
    for layer in panel.layers:
        _draw(axes, layer)
    _limit(axes, panel)
    for x, y, text in panel.notes:
        axes.text(x, y, text, fontsize=8.5, color=INK, ha="center", va="center")
    named = [x for x in panel.layers if isinstance(x, Curve | Band | Bars | Points) and x.label]
    if panel.legend and named:
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(-0.02, -0.17),
            ncols=max(1, min(3, 64 // (6 + max(len(layer.label) for layer in named)))),
            fontsize=7.5,
            frameon=False,
            labelcolor=INK,
            handlelength=1.6,
            columnspacing=1.2,
        )


def _limit(axes: "Axes", panel: Panel) -> None:
    if panel.x_range:
        axes.set_xlim(*panel.x_range)
    if panel.y_range:
        axes.set_ylim(*panel.y_range)
    if panel.x_ticks:
        axes.set_xticks([x for x, _ in panel.x_ticks], [name for _, name in panel.x_ticks])
        axes.minorticks_off()
    if panel.y_ticks:
        axes.set_yticks([y for y, _ in panel.y_ticks], [name for _, name in panel.y_ticks])
    if panel.square:
        axes.set_aspect("equal")
    if panel.bare:
        axes.set_axis_off()


def _draw(axes: "Axes", layer: Layer) -> None:
    if isinstance(layer, Curve):
        _curve(axes, layer)
    elif isinstance(layer, Band):
        _band(axes, layer)
    elif isinstance(layer, Bars):
        _bars(axes, layer)
    elif isinstance(layer, Points):
        _points(axes, layer)
    elif isinstance(layer, Forest):
        _forest(axes, layer)
    elif isinstance(layer, Heat):
        _heat(axes, layer)
    else:
        _level(axes, layer)


def _bars(axes: "Axes", layer: Bars) -> None:
    bases = list(layer.base) or [0.0] * len(layer.y)
    heights = [y - base for y, base in zip(layer.y, bases, strict=True)]
    axes.bar(
        layer.x, heights, layer.width, bottom=bases, color=layer.colour, label=layer.label or None
    )


def _band(axes: "Axes", layer: Band) -> None:
    axes.fill_between(
        layer.x,
        layer.low,
        layer.high,
        color=layer.colour,
        alpha=0.3,
        linewidth=1,
        label=layer.label or None,
    )


def _curve(axes: "Axes", layer: Curve) -> None:
    if len(layer.low):
        axes.fill_between(
            layer.x, layer.low, layer.high, color=layer.colour, alpha=0.18, linewidth=0
        )
    axes.plot(
        layer.x,
        [math.nan if y is None else y for y in layer.y],
        color=layer.colour,
        linewidth=layer.width,
        linestyle=(0, (4, 2.5)) if layer.dashed else (0, (1, 2)) if layer.dotted else "-",
        marker="o" if layer.markers else None,
        markersize=4,
        alpha=layer.opacity,
        solid_capstyle="butt",
        label=layer.label or None,
    )


def _points(axes: "Axes", layer: Points) -> None:
    if len(layer.low):
        axes.vlines(
            layer.x, layer.low, layer.high, color=layer.colour, linewidth=1.4, alpha=0.8, zorder=2
        )
    axes.scatter(
        layer.x,
        layer.y,
        s=layer.size**2,
        c=list(layer.colours) or layer.colour,
        marker=MARKERS[layer.symbol],
        alpha=layer.opacity,
        edgecolors=PAPER,
        linewidths=0.6,
        zorder=3,
        label=layer.label or None,
    )


def _forest(axes: "Axes", layer: Forest) -> None:
    rows = np.arange(len(layer.names))[::-1]
    for row, value, low, high, colour in zip(
        rows, layer.values, layer.low, layer.high, layer.colours, strict=True
    ):
        axes.plot([low, high], [row, row], color=colour, linewidth=2.2, solid_capstyle="round")
        axes.plot([value], [row], "o", color=colour, markersize=6.5, markeredgecolor=PAPER)
    axes.set_yticks(rows, list(layer.names), fontsize=8)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.grid(axis="y", visible=False)


def _heat(axes: "Axes", layer: Heat) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    values = np.array(layer.values, dtype=float)
    low, high = layer.limits
    image = axes.imshow(
        values,
        cmap=LinearSegmentedColormap.from_list(layer.colours, MAPS[layer.colours]),
        vmin=low,
        vmax=high,
        aspect="auto",
        interpolation="nearest",
    )
    if layer.x_names:
        axes.set_xticks(range(values.shape[1]), list(layer.x_names))
    if layer.y_names:
        axes.set_yticks(range(values.shape[0]), list(layer.y_names))
    _cell_texts(axes, layer, values)
    if layer.bar:
        canvas: Any = axes.figure
        bar = canvas.colorbar(image, ax=axes, shrink=0.85, pad=0.02)
        bar.set_label(layer.bar, fontsize=8, color=MUTED)
        bar.ax.tick_params(length=0, labelsize=7.5, labelcolor=MUTED)
        outline: Any = bar.outline
        outline.set_visible(False)


def _cell_texts(axes: "Axes", layer: Heat, values: NDArray[Any]) -> None:
    low, high = layer.limits
    for row, texts in enumerate(layer.texts):
        for column, text in enumerate(texts):
            share = (values[row, column] - low) / (high - low)
            dark = share > 0.6 if layer.colours in ONE_SIDED else abs(share - 0.5) > 0.33
            axes.text(
                column,
                row,
                text,
                ha="center",
                va="center",
                fontsize=9,
                color=PAPER if dark else INK,
            )


def _level(axes: "Axes", layer: Level) -> None:
    draw = axes.axvline if layer.vertical else axes.axhline
    draw(layer.at, color=layer.colour, linewidth=1.1, linestyle=(0, (1.5, 2)), zorder=1)
    if not layer.label:
        return
    if layer.vertical:
        axes.annotate(
            layer.label, (layer.at, 1.0), xycoords=("data", "axes fraction"), xytext=(3, -2),
            textcoords="offset points", fontsize=7.5, color=layer.colour, va="top",
        )  # fmt: skip
    else:
        axes.annotate(
            layer.label, (1.0, layer.at), xycoords=("axes fraction", "data"), xytext=(-2, 3),
            textcoords="offset points", fontsize=7.5, color=layer.colour, ha="right",
        )  # fmt: skip
