"""Sense of order: the 2 x 2 of encoding and mask, their shares, and where order matters."""

from orbitlens.draw.figure import BLUE, GREEN, INK, MUTED, ORANGE, Bars, Curve, Panel, Points
from orbitlens.draw.page import esc
from orbitlens.order.audit_result import Audit, value_of
from orbitlens.order.subject import Cell
from orbitlens.order.words import (
    cell_names,
    interval,
    percent,
    question_of,
    square_of,
    unit_of,
)
from orbitlens.reporting.chart import PageChart, curve, rows_of, ticks
from orbitlens.reporting.data import ModelReport
from orbitlens.reporting.markup import Row, Table, absent, note, number, table
from orbitlens.reporting.sections.section import Place

CELLS = {
    "pe_causal": "encoding and mask",
    "pe_full": "encoding alone",
    "nope_causal": "mask alone",
    "nope_full": "neither",
}
TONES = dict(zip(Cell, (INK, ORANGE, BLUE, MUTED), strict=True))
SIZES = {"swap_distance": "swap at distance", "windows": "within windows of",
         "ngrams": "n-grams kept of"}  # fmt: skip


def order_section(model: ModelReport, place: Place) -> str:
    """Return the 2 x 2, the shares, and the charts."""
    audit = model.audit
    if audit is None:
        return absent(model.why("audit"))
    drawn = "".join(place.charts[one.key] for one in charts(model))
    return (
        f'<p class="lead">{esc(audit.summary())}</p>{_square(audit)}{_shares(audit)}'
        f'<div class="pair">{drawn}</div>{_blocks(audit)}{_not_measured(audit)}'
    )


def own_value(audit: Audit) -> float:
    """Return the order sensitivity of the model as it is."""
    return audit.sensitivity


def output_of(layer: int) -> str:
    """Return the name of a state that an audit numbers from the embedding on."""
    return "embedding" if layer == 0 else f"layer {layer - 1}"


# --- the 2 x 2 ---------------------------------------------------------------------------------


def _square(audit: Audit) -> str:
    largest = max((value_of(x) for x in audit.cells.values() if x is not None), default=0) or 1
    columns, rows = square_of(audit)
    heads = "".join(f'<th scope="col">{esc(name)}</th>' for name in columns)
    body = "".join(
        f'<tr><th scope="row">{esc(name)}</th>'
        f"{''.join(_cell(audit, cell.value, largest) for cell in cells)}</tr>"
        for name, cells in rows.items()
    )
    caption = (
        f"Order sensitivity, {unit_of(audit)}, with 95 % intervals. {esc(question_of(audit))}."
    )
    return (
        f'<table class="square"><caption>{caption}</caption>'
        f"<thead><tr><td></td>{heads}</tr></thead><tbody>{body}</tbody></table>{_places(audit)}"
    )


def _places(audit: Audit) -> str:
    own = audit.cells[audit.model.own_cell]
    if own is None or not own.places:
        return ""
    parts = [
        f"{number(one.mean)} ({number(one.low)} to {number(one.high)}) at position {one.place}"
        for one in own.places
    ]
    return note(f"As it is: {', '.join(parts)}.")


def _cell(audit: Audit, name: str, largest: float) -> str:
    reading = audit.cells.get(name)
    if reading is None:
        return f'<td class="cell">–<small>{esc(audit.not_ablatable.get(name, ""))}</small></td>'
    value = value_of(reading)
    own = name == audit.model.own_cell
    return (
        f'<td class="cell{" own" if own else ""}" data-v="{value!r}" '
        f'style="--v:{value / largest:.3f}">{number(value)}<small>{"as it is, " if own else ""}'
        f"{number(reading.low)} to {number(reading.high)}</small></td>"
    )


def _shares(audit: Audit) -> str:
    shares, effects = audit.shapley, audit.effects
    if audit.attends_in_full:
        return note(
            "The model attends in full: what order it sees comes through its encoding, by "
            "construction, so there are no shares to tell apart."
        )
    if effects is None:
        return note("No shares: not every cell of the 2 × 2 can be reached.")
    if shares is None:
        return note(
            f"No shares: encoding and mask work against each other. Alone the encoding brings "
            f"{number(effects.encoding.mean)}, the mask {number(effects.mask.mean)}; their "
            f"interaction is {interval(effects.interaction)} {unit_of(audit)}."
        )
    label = (
        f"{percent(shares.encoding, shares.encoding_interval)} from the encoding, "
        f"{percent(shares.mask, shares.mask_interval)} from the mask"
    )
    return (
        f'<p class="shares" role="img" aria-label="{esc(label)}">'
        f'<i style="--share:{shares.encoding:.3f}"></i></p>{note(label)}'
    )


def _blocks(audit: Audit) -> str:
    if not audit.positions:
        return ""
    numbers = blocks(audit)
    return (
        table(numbers) if numbers.rows else note("No block of neighbours can be reordered freely.")
    )


def _not_measured(audit: Audit) -> str:
    parts = {"swaps by distance": audit.swap_distance, "swaps of neighbours": audit.positions}
    gone = [name for name, rows in parts.items() if not rows]
    return note(f"Not measured on these inputs: {', '.join(gone)}.") if gone else ""


# --- charts ------------------------------------------------------------------------------------


def charts(model: ModelReport) -> list[PageChart]:
    """Return defects over layers, and swaps by distance and by position."""
    audit = model.audit
    if audit is None:
        return []
    numbers = [_defects_chart(audit)]
    if audit.swap_distance:
        numbers.append(_swaps_chart(audit))
    if audit.positions:
        numbers.append(_neighbours_chart(audit))
    return numbers


def _defects_chart(audit: Audit) -> PageChart:
    numbers, own = defects(audit), audit.model.own_cell
    title = "Equivariance defect of each layer's output"
    lines = [
        curve(numbers, name, TONES[key], style="" if key == own else "dashed",
              label=name + (" (as it is)" if key == own else ""))
        for key, name in cell_names(audit).items()
    ]  # fmt: skip
    panel = Panel(
        layers=lines, title=title, x_label="output of layer", x_ticks=ticks(rows_of(numbers))
    )
    return PageChart(kind="defects", title=title, panel=panel, table=numbers, from_zero=True)


def _swaps_chart(audit: Audit) -> PageChart:
    rows = audit.swap_distance
    title = f"Swapping two tokens, by their distance ({unit_of(audit)})"
    x, means = [float(row.size) for row in rows], [row.mean for row in rows]
    panel = Panel(
        layers=[
            Curve(x=x, y=means, colour=ORANGE, width=2.4),
            Points(x=x, y=means, low=[row.low for row in rows], high=[row.high for row in rows],
                   colour=ORANGE, label="mean and 95 % interval"),
        ],
        title=title, x_label="distance in tokens", x_log=True,
        x_ticks=[(float(row.size), str(row.size)) for row in rows],
    )  # fmt: skip
    return PageChart(kind="swaps", title=title, panel=panel, table=swaps(audit), from_zero=True)


def _neighbours_chart(audit: Audit) -> PageChart:
    title = f"Swapping neighbours, by position ({unit_of(audit)})"
    inside = {p for block in audit.blocks for p in range(block.first, block.last)}
    groups = {
        label: [row for row in audit.positions if (row.position in inside) == free]
        for label, free in (("swap", False), ("inside a block", True))
    }
    bars = [
        Bars(x=[float(row.position) for row in rows], y=[row.mean for row in rows], label=label,
             colour=colour)
        for (label, rows), colour in zip(groups.items(), (ORANGE, GREEN), strict=True)
        if rows
    ]  # fmt: skip
    panel = Panel(layers=bars, title=title, x_label="position of the first of two")
    return PageChart(
        kind="neighbours", title=title, panel=panel, table=neighbours(audit), from_zero=True
    )


# --- tables ------------------------------------------------------------------------------------


def cells(audit: Audit) -> Table:
    """Return the 2 x 2, the interaction and the shares."""
    rows: list[Row] = []
    for key, name in cell_names(audit).items():
        reading = audit.cells[key]
        assert reading is not None  # it has a name
        rows.append([name, value_of(reading), reading.low, reading.high])
        rows += [[f"{name}, at {x.place}", x.mean, x.low, x.high] for x in reading.places]
    if audit.effects is not None:
        value = audit.effects.interaction
        rows.append(["interaction", value.mean, value.low, value.high])
    if audit.shapley is not None:
        shares = audit.shapley
        rows.append(["share of the encoding", shares.encoding, *shares.encoding_interval])
        rows.append(["share of the mask", shares.mask, *shares.mask_interval])
    return Table(name="order", caption="Order sensitivity", columns=("model with", "mean", "low",
                 "high"), rows=rows)  # fmt: skip


def defects(audit: Audit) -> Table:
    """Return the equivariance defect of each layer's output."""
    names = cell_names(audit)
    rows: list[Row] = [
        [output_of(x.layer), *(x.defects.get(key) for key in names)] for x in audit.layers
    ]
    columns = ("output of", *names.values())
    return Table(name="order-layers", caption="Equivariance defect", columns=columns, rows=rows)


def swaps(audit: Audit) -> Table:
    """Return what swaps, windows and n-grams of each size do."""
    rows: list[Row] = [
        [f"{what} {x.size}", x.size, x.mean, x.low, x.high]
        for key, what in SIZES.items()
        for x in getattr(audit, key)
    ]
    return Table(name="order-sizes", caption="Effects by size",
                 columns=("change", "size", "mean", "low", "high"), rows=rows)  # fmt: skip


def neighbours(audit: Audit) -> Table:
    """Return what swapping each token with the next one does."""
    rows: list[Row] = [
        [f"{x.position} and {x.other}", x.position, x.mean, x.share_moved] for x in audit.positions
    ]
    columns = ("tokens swapped", "position", "mean effect", "share of inputs moved")
    return Table(name="order-neighbours", caption="Swaps of neighbours", columns=columns, rows=rows)


def blocks(audit: Audit) -> Table:
    """Return blocks of neighbours whose swaps do little."""
    rows: list[Row] = [
        [f"{b.first} to {b.last}", b.largest_swap, b.shuffled, b.free] for b in audit.blocks
    ]
    columns = ("positions", "largest swap", "whole block shuffled", "free as a whole")
    caption = "Blocks within which each swap of neighbours does little"
    return Table(name="order-blocks", caption=caption, columns=columns, rows=rows)


def tables(model: ModelReport) -> list[Table]:
    """Return all tables of this section."""
    if model.audit is None:
        return []
    return [make(model.audit) for make in (cells, defects, swaps, neighbours, blocks)]
