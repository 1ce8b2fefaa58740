"""An audit as a table of readings, as tables in a notebook, and as a figure."""

from collections.abc import Iterator
from typing import Any

from orbitlens.draw.figure import GREY, INK
from orbitlens.order.audit_result import Audit, value_of
from orbitlens.order.subject import Cell
from orbitlens.results.html import HtmlTable, written
from orbitlens.results.plotting import GATHER, SPREAD

CELLS = {
    Cell.PE_CAUSAL: "encoding and mask",
    Cell.PE_FULL: "encoding alone",
    Cell.NOPE_CAUSAL: "mask alone",
    Cell.NOPE_FULL: "neither",
}
COLOURS = dict(zip(CELLS, (INK, SPREAD, GATHER, GREY), strict=True))


def unit_of(audit: Audit) -> str:
    """Return the unit of the order sensitivity."""
    return "bits" if audit.model.has_head else "relative change"


def reading_rows(audit: Audit) -> Iterator[dict[str, object]]:
    """Yield one row a reading; `quantity` says of what, `low` and `high` end its 95 % interval.

    Readings: the order sensitivity of each cell of the 2 x 2, the equivariance defect of each
    layer's output in each cell (layer -1 is the embedding), and of the model as it is, the effect
    of swaps by distance, of shuffles within windows, of shuffles that keep n-grams, and of swaps of
    neighbours by position.
    """
    unit, own = unit_of(audit), audit.model.own_cell
    for cell, reading in audit.cells.items():
        if reading is not None:
            ends = {"low": reading.low, "high": reading.high}
            yield _row("order sensitivity", cell, value_of(reading), unit) | ends
    for layer in audit.layers:
        for cell, defect in layer.defects.items():
            yield _row("equivariance defect", cell, defect, "ratio") | {"layer": layer.layer - 1}
    for quantity, readings in (
        ("swap at distance", audit.swap_distance),
        ("shuffle within windows", audit.windows),
        ("shuffle of n-grams", audit.ngrams),
    ):
        for one in readings:
            more = {"size": one.size, "low": one.low, "high": one.high}
            yield _row(quantity, own, one.mean, unit) | more
    for place in audit.positions:
        more = {"position": place.position}
        yield _row("swap of neighbours", own, place.mean, unit) | more


def _row(quantity: str, cell: str, value: float, unit: str) -> dict[str, object]:
    missing = dict.fromkeys(("layer", "size", "position", "low", "high"))
    return {"quantity": quantity, "cell": cell, "value": value, "unit": unit, **missing}


# --- in a notebook ---------------------------------------------------------------------------


def audit_tables(audit: Audit) -> list[HtmlTable]:
    """Return the 2 x 2 of encoding and mask, and the shares where they are known."""
    square = HtmlTable(
        caption=f"Order sensitivity, {unit_of(audit)}, with 95 % intervals; * as it is",
        columns=["", "causal mask", "full attention"],
        rows=[
            [f"{audit.model.encoding} encoding", *_cells(audit, Cell.PE_CAUSAL, Cell.PE_FULL)],
            ["without it", *_cells(audit, Cell.NOPE_CAUSAL, Cell.NOPE_FULL)],
        ],
    )
    if audit.shapley is None:
        return [square]
    shares = HtmlTable(
        caption="Share of the order sensitivity (Shapley value)",
        columns=["", "share", unit_of(audit)],
        rows=[
            ["encoding", f"{audit.shapley.encoding:.0%}", audit.shapley.encoding_bits],
            ["mask", f"{audit.shapley.mask:.0%}", audit.shapley.mask_bits],
        ],
    )
    return [square, shares]


def _cells(audit: Audit, *cells: Cell) -> Iterator[str]:
    for cell in cells:
        reading = audit.cells.get(cell.value)
        if reading is None:
            yield f"not ablatable: {audit.not_ablatable.get(cell.value, 'unknown why')}"
            continue
        own = " *" if cell.value == audit.model.own_cell else ""
        ends = f"{written(reading.low)} to {written(reading.high)}"
        yield f"{written(value_of(reading))} ({ends}){own}"


# --- figure ----------------------------------------------------------------------------------


def output_name(layer: int) -> str:
    """Return the name of a state that an audit numbers from the embedding on."""
    return "embedding" if layer == 0 else f"layer {layer - 1}"


def audit_figure(audit: Audit, go: Any) -> Any:  # noqa: ANN401 - plotly ships no types
    """Return the equivariance defect of each layer's output, a line for each cell."""
    drawn = go.Figure()
    names = [output_name(layer.layer) for layer in audit.layers]
    for cell, name in CELLS.items():
        if audit.cells.get(cell.value) is None:
            continue
        values = [layer.defects.get(cell.value) for layer in audit.layers]
        drawn.add_scatter(x=names, y=values, name=name, line={"color": COLOURS[cell]})
    drawn.update_layout(
        title="Equivariance defect of each layer's output", yaxis_rangemode="tozero"
    )
    return drawn
