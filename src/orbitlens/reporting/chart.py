"""Charts of a report: a panel with a title and the table of its numbers.

Enters: tables of a section. Leaves: `Chart`s, drawn by the page's script or as pictures, and the
HTML around them. Models of one report share the axes of a chart.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orbitlens.draw.figure import Band, Bars, Curve, Panel, Points
from orbitlens.draw.figure_html import legend
from orbitlens.draw.page import esc
from orbitlens.reporting.markup import NUMBERS, Table, behind, number, table
from orbitlens.running.info import ModelInfo
from orbitlens.scanning.scan_result import LayerScan
from orbitlens.tracing.trace_result import LayerTrace

MOST_DESCRIBED = 3  # columns in a chart's text alternative
LOG_FROM = 30.0  # ratio of the largest to the smallest value beyond which an axis is logarithmic


@dataclass(frozen=True, kw_only=True)
class PageChart:
    """A panel, what it is about, and the table with its numbers."""

    kind: str
    title: str
    panel: Panel
    table: Table
    name: str = ""  # of the quantity, where several charts are of one kind
    shape: str = ""  # "tall" or "low"
    shared: bool = True  # models of one report have the same y axis
    may_be_log: bool = False
    from_zero: bool = False  # the y axis starts at 0 where no value is below it
    legend: bool = True  # above this chart; else above all of a section

    @property
    def key(self) -> str:
        """What tells this chart apart from others of its model."""
        return f"{self.kind}-{self.name}" if self.name else self.kind


def chart_html(one: PageChart, place: int, *, after: str = "") -> str:
    """Return a figure which the page's script draws, with the numbers behind it.

    Args:
        one: the chart.
        place: of its panel in the page's data; -1: a script of the section draws it.
        after: HTML between the drawing and its numbers.
    """
    return (
        f'<figure class="chart {esc(one.shape)}" data-chart="{esc(one.kind)}">'
        f"<figcaption>{esc(one.title)}</figcaption>{legend(one.panel) if one.legend else ''}"
        f'<div class="plot" data-panel="{place}" role="img" aria-label="{esc(described(one))}">'
        f"</div>{after}{behind(table(one.table), NUMBERS[one.shape == 'low'])}</figure>"
    )


def described(one: PageChart) -> str:
    """Say in words what a chart shows: each column's smallest and largest value."""
    parts = [one.title]
    for n, name in enumerate(one.table.columns[1:], start=1):
        pairs = [(row[n], str(row[0])) for row in one.table.rows]
        numbers = [(value, row) for value, row in pairs if isinstance(value, float)]
        if numbers and len(parts) <= MOST_DESCRIBED:
            (low, first), (high, last) = min(numbers), max(numbers)
            parts.append(f"{name}: from {number(low)} ({first}) to {number(high)} ({last})")
    return ". ".join(parts) + ". The table below has all numbers."


# --- what several sections draw ----------------------------------------------------------------


def layer_name(model: ModelInfo, layer: LayerScan | LayerTrace) -> str:
    """Return a layer's name, with its stack where there are several."""
    return f"{layer.stack} {layer.layer}" if len(model.stacks) > 1 else str(layer.layer)


def ticks(names: Sequence[str]) -> list[tuple[float, str]]:
    """Return names at 0, 1, 2 and so on; a page leaves out those that would touch."""
    return [(float(k), name) for k, name in enumerate(names)]


def rows_of(numbers: Table) -> list[str]:
    """Return the names of a table's rows, short enough for an axis."""
    short = {"embedding": "in"}
    return [short.get(str(row[0]), str(row[0]).removeprefix("layer ")) for row in numbers.rows]


def curve(numbers: Table, column: str, colour: str, *, label: str = "", style: str = "") -> Curve:
    """Return a column of a table over its rows; `style` is "dashed", "dotted" or nothing."""
    return Curve(
        x=[float(k) for k in range(len(numbers.rows))],
        y=numbers.column(column),
        label=label or column,
        colour=colour,
        dashed=style == "dashed",
        dotted=style == "dotted",
        width=1.8 if style else 2.4,
        markers=True,
    )


# --- shared axes -------------------------------------------------------------------------------


def share_axes(models: Sequence[Mapping[str, PageChart]]) -> list[dict[str, PageChart]]:
    """Return the charts of all models, those of one quantity on the same y axis."""
    names = dict.fromkeys(key for charts in models for key in charts)
    axes = {key: _shared_axis([m[key] for m in models if key in m]) for key in names}
    return [{key: _with_axis(one, axes[key]) for key, one in charts.items()} for charts in models]


@dataclass(frozen=True)
class _Axis:
    y_range: tuple[float, float]
    y_log: bool = False


def _with_axis(one: PageChart, axis: _Axis | None) -> PageChart:
    if axis is None:
        return one
    return replace(one, panel=replace(one.panel, y_range=axis.y_range, y_log=axis.y_log))


def _shared_axis(charts: Sequence[PageChart]) -> _Axis | None:
    values = [v for one in charts for v in y_values(one.panel)]
    first = charts[0]
    if not first.shared or not values:
        return None
    low, high = min(values), max(values)
    if first.may_be_log and low > 0 and high > LOG_FROM * low:
        room = (high / low) ** 0.06
        return _Axis((low / room, high * room), y_log=True)
    if len(charts) < 2 and not first.from_zero:
        return None
    low = min(low, 0.0) if first.from_zero else low
    room = 0.06 * ((high - low) or 1.0)
    return _Axis((0.0 if low == 0 else low - room, high + room))


def y_values(panel: Panel) -> list[float]:
    """Return the finite numbers that a panel's y axis must hold."""
    values: list[float | None] = []
    for layer in panel.layers:
        if isinstance(layer, Curve | Points | Bars):
            values += layer.y
        if isinstance(layer, Curve | Points | Band):
            values += [*layer.low, *layer.high]
        if isinstance(layer, Bars):
            values.append(0.0)
    return [v for v in values if v is not None and math.isfinite(v)]
