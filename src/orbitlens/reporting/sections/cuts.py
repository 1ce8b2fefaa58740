"""Cuts: the loss without each layer and each head, beside what heads do to directions."""

import math
from collections.abc import Sequence

from orbitlens.draw.figure import BLUE, INK, Bars, Heat, Panel, Points
from orbitlens.draw.page import esc
from orbitlens.reporting.chart import PageChart, ticks
from orbitlens.reporting.cuts import CutReport, PartCost
from orbitlens.reporting.data import ModelReport
from orbitlens.reporting.effects import HeadEffect, head_effects
from orbitlens.reporting.markup import Row, Table, absent
from orbitlens.reporting.sections.section import Place

Number = float | None
MAPS = (  # kind of chart, title, what colours stand for
    ("cut-heads", "Loss without each head, less that of the whole model", "loss"),
    ("cut-measured", "Measured: what each head does to directions", "ΔS"),
    ("cut-predicted", "Predicted: the same from weights and statistics", "ΔS"),
)


def is_shown(model: ModelReport) -> bool:
    """Say whether cuts were asked for."""
    return model.cut is not None or "cut" in model.missing


def cuts_section(model: ModelReport, place: Place) -> str:
    """Return what is said of cuts, and its charts."""
    if model.cut is None:
        return absent(model.why("cut"))
    layers, *maps = (place.charts[one.key] for one in charts(model))
    return (
        f'<p class="lead">{esc(model.cut.sentences)}</p><div class="low">{layers}</div>'
        f'<div class="pair">{"".join(maps)}</div>'
    )


# --- charts ------------------------------------------------------------------------------------


def charts(model: ModelReport) -> list[PageChart]:
    """Return losses by layer, and maps of heads by loss, measured and predicted."""
    cut = model.cut
    if cut is None:
        return []
    found = [_layers(cut)]
    effects = {(one.layer.layer, one.head.head): one for one in head_effects(model)}
    known = [_effect(effects, one) for one in cut.heads]
    columns: list[list[Number]] = [
        [one.difference for one in cut.heads],
        [None if one is None else one.measured for one in known],
        [None if one is None else one.predicted for one in known],
    ]
    numbers = heads_table(model)
    ends = [_end(columns[0]), *[_end([*columns[1], *columns[2]])] * 2]  # one scale for ΔS
    for (kind, title, bar), values, end in zip(MAPS, columns, ends, strict=True):
        if any(value is not None for value in values):
            heat = _map(cut.heads, values, end, bar)
            panel = Panel(layers=[heat], title=title, x_label="head", y_label="layer")
            found.append(
                PageChart(kind=kind, title=title, panel=panel, table=numbers, shared=False)
            )
    return found


def _end(values: Sequence[Number]) -> float:
    """Return the end of a colour scale: the largest size, up to the next of two digits."""
    largest = max((abs(value) for value in values if value is not None), default=0.0) or 1.0
    step = 10.0 ** (math.floor(math.log10(largest)) - 1)
    return math.ceil(largest / step) * step


def _effect(effects: dict[tuple[int, int], HeadEffect], one: PartCost) -> HeadEffect | None:
    assert one.head is not None
    return effects.get((one.layer, one.head))


def _layers(cut: CutReport) -> PageChart:
    title = "Loss without each layer, less that of the whole model"
    x, y = [float(one.layer) for one in cut.layers], [one.difference for one in cut.layers]
    drawn: list[Bars | Points] = [Bars(x=x, y=y, colour=BLUE)]
    errors = [one.deviation for one in cut.layers]
    if None not in errors:
        ends = [(a - (e or 0), a + (e or 0)) for a, e in zip(y, errors, strict=True)]
        low, high = ([end[k] for end in ends] for k in (0, 1))
        drawn.append(
            Points(x=x, y=y, low=low, high=high, label="standard error", colour=INK, size=3.0)
        )
    panel = Panel(
        layers=drawn,
        title=title,
        x_label="layer",
        y_label=cut.loss_kind.unit,
        x_ticks=ticks([str(one.layer) for one in cut.layers]),
    )
    return PageChart(kind="cut-layers", title=title, panel=panel, table=layers_table(cut))


def _map(heads: Sequence[PartCost], values: Sequence[Number], end: float, bar: str) -> Heat:
    rows: dict[int, list[Number]] = {}
    for one, value in zip(heads, values, strict=True):
        rows.setdefault(one.layer, []).append(value)
    widest = max(map(len, rows.values()))
    return Heat(
        values=[row + [None] * (widest - len(row)) for row in rows.values()],
        x_names=[str(k) for k in range(widest)],
        y_names=[str(layer) for layer in rows],
        limits=(-end, end),
        colours="signed",
        bar=bar,
    )


# --- tables ------------------------------------------------------------------------------------


def layers_table(cut: CutReport) -> Table:
    """Return the loss without each layer."""
    rows: list[Row] = [[str(one.layer), one.difference, one.deviation] for one in cut.layers]
    caption = f"Without each layer: {cut.loss_kind.value}, on {cut.n_contexts} contexts"
    columns = ("layer", "difference", "± s.e.")
    return Table(name="cut-layers", caption=caption, columns=columns, rows=rows)


def heads_table(model: ModelReport) -> Table:
    """Return the loss without each head, beside what it does to directions."""
    assert model.cut is not None
    effects = {(one.layer.layer, one.head.head): one for one in head_effects(model)}
    rows: list[Row] = []
    for one in model.cut.heads:
        effect = _effect(effects, one)
        known = (None, None) if effect is None else (effect.measured, effect.predicted)
        rows.append([f"{one.layer}.{one.head}", one.difference, one.deviation, *known])
    columns = ("head", "difference", "± s.e.", "measured ΔS", "predicted ΔS")
    caption = f"Without each head: {model.cut.loss_kind.value}; then what it does to directions"
    return Table(name="cut-heads", caption=caption, columns=columns, rows=rows)


def tables(model: ModelReport) -> list[Table]:
    """Return all tables of this section."""
    return [] if model.cut is None else [layers_table(model.cut), heads_table(model)]
