"""Positions: planes by period, attention over distance, and loss beyond the context."""

from collections.abc import Sequence

from orbitlens.draw.figure import BLUE, MUTED, ORANGE, PALETTE, Curve, Panel
from orbitlens.draw.page import esc
from orbitlens.reporting.chart import PageChart
from orbitlens.reporting.data import ModelReport
from orbitlens.reporting.markup import Row, Table, absent, items
from orbitlens.reporting.reach import LayerReach, ReachReport
from orbitlens.reporting.sections.section import Place

MOST_CURVES = 6  # layers drawn, evenly spread; tables have them all


def positions_section(model: ModelReport, place: Place) -> str:
    """Return what is said of the reach, and its charts."""
    reach = model.reach
    if reach is None:
        return absent(model.why("reach"))
    drawn = "".join(place.charts[one.key] for one in charts(model))
    return f'<p class="lead">{esc(reach.sentences)}</p><div class="pair">{drawn}</div>' + items(
        reach.notes, "note"
    )


def _drawn(layers: Sequence[LayerReach]) -> list[LayerReach]:
    count = min(MOST_CURVES, len(layers))
    last = len(layers) - 1
    return [layers[round(k * last / max(1, count - 1))] for k in range(count)]


# --- charts ------------------------------------------------------------------------------------


def charts(model: ModelReport) -> list[PageChart]:
    """Return loss beyond the context, planes by period, and attention over distance."""
    reach = model.reach
    if reach is None:
        return []
    found = [_losses(reach)] if reach.points else []
    if any(layer.periods for layer in reach.layers):
        found.append(_planes(reach))
    return [*found, _attention(reach)] if reach.layers else found


def _losses(reach: ReachReport) -> PageChart:
    title = "Loss beyond the trained context"
    x = [float(reach.trained), *(float(point.length) for point in reach.points)]
    lines = [
        Curve(x=x, y=[0.0, *values], label=label, colour=colour, markers=True, dashed=dashed)
        for label, colour, dashed, values in (
            ("measured", BLUE, False, [point.measured for point in reach.points]),
            ("predicted from short text", ORANGE, True, [p.predicted for p in reach.points]),
        )
        if any(value is not None for value in values)
    ]
    panel = Panel(
        layers=lines, title=title, x_label="tokens of context", y_label="nats a token more"
    )
    return PageChart(kind="reach", title=title, panel=panel, table=reach_table(reach))


def _planes(reach: ReachReport) -> PageChart:
    title = "Planes by period: share of the mean square of scores"
    turned = [layer for layer in _drawn(reach.layers) if layer.periods]
    lines = [
        Curve(
            x=layer.periods, y=layer.shares, label=f"layer {layer.layer}", colour=tone, markers=True
        )
        for layer, tone in zip(turned, PALETTE, strict=False)
    ]
    top = max(max(layer.shares) for layer in turned)
    edge = Curve(
        x=[float(reach.trained)] * 2, y=[0.0, top], label="trained context", colour=MUTED,
        dashed=True, silent=True,
    )  # fmt: skip
    panel = Panel(
        layers=[*lines, edge], title=title, x_label="tokens of a turn", y_label="share", x_log=True
    )
    return PageChart(kind="planes", title=title, panel=panel, table=planes_table(reach))


def _attention(reach: ReachReport) -> PageChart:
    title = f"Attention over distance in {reach.lengths[-1]} tokens, by T7"
    x = [offset + 1.0 for offset in reach.offsets]
    lines = [
        Curve(x=x, y=layer.attention, label=f"layer {layer.layer}", colour=tone)
        for layer, tone in zip(_drawn(reach.layers), PALETTE, strict=False)
    ]
    panel = Panel(
        layers=lines, title=title, x_label="tokens back, itself the first", x_log=True,
        y_label="weight of a token", y_log=True,
    )  # fmt: skip
    return PageChart(
        kind="kernel", title=title, panel=panel, table=kernel_table(reach), shared=False
    )


# --- tables ------------------------------------------------------------------------------------


def reach_table(reach: ReachReport) -> Table:
    """Return the loss at each length above that of the trained context."""
    rows: list[Row] = [[str(reach.trained), 0.0, None, 0.0, None]]  # what others stand above
    rows += [
        [str(p.length), p.predicted, p.predicted_error, p.measured, p.measured_error]
        for p in reach.points
    ]
    columns = ("tokens", "predicted", "± s.e.", "measured", "measured ± s.e.")
    caption = f"Nats a token above a context of {reach.trained}, at the end of longer ones"
    return Table(name="reach", caption=caption, columns=columns, rows=rows)


def planes_table(reach: ReachReport) -> Table:
    """Return the share of every plane, layer by layer; periods are those of the first layer."""
    turned = [layer for layer in reach.layers if layer.periods]
    count = max((len(layer.periods) for layer in turned), default=0)
    rows: list[Row] = [
        [str(k), *(_at(turned[0].periods, k), *(_at(layer.shares, k) for layer in turned))]
        for k in range(count)
    ]
    first = f"tokens of a turn, layer {turned[0].layer}" if turned else ""
    columns = ("plane", first, *(f"layer {layer.layer}" for layer in turned))
    caption = "Share of each plane in the mean square of scores, mean over heads"
    return Table(name="planes", caption=caption, columns=columns, rows=rows)


def _at(values: Sequence[float], k: int) -> float | None:
    return values[k] if k < len(values) else None


def kernel_table(reach: ReachReport) -> Table:
    """Return the attention that a token at each distance gets, layer by layer."""
    rows: list[Row] = [
        [str(offset), *(layer.attention[k] for layer in reach.layers)]
        for k, offset in enumerate(reach.offsets)
    ]
    columns = ("tokens back", *(f"layer {layer.layer}" for layer in reach.layers))
    caption = f"Attention to one token by distance in {reach.lengths[-1]} tokens, mean over heads"
    return Table(name="kernel", caption=caption, columns=columns, rows=rows)


def tables(model: ModelReport) -> list[Table]:
    """Return all tables of this section."""
    reach = model.reach
    return [] if reach is None else [reach_table(reach), planes_table(reach), kernel_table(reach)]
