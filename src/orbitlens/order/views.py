"""An audit as a table of readings, as tables in a notebook, and as a figure."""

from collections.abc import Iterator
from typing import Any

from orbitlens.draw.figure import GREY, INK
from orbitlens.order.audit_result import Audit, value_of
from orbitlens.order.subject import Cell
from orbitlens.order.words import cell_names, percent, question_of, square_of, unit_of
from orbitlens.results.html import HtmlTable, written
from orbitlens.results.plotting import GATHER, SPREAD

COLOURS = dict(zip(Cell, (INK, SPREAD, GATHER, GREY), strict=True))


def reading_rows(audit: Audit) -> Iterator[dict[str, object]]:
    """Yield one row a reading; `quantity` says of what, `low` and `high` end its 95 % interval.

    Readings: the order sensitivity of each cell of the 2 x 2 and, where a model is asked at several
    places, at each of these; what encoding and mask bring alone, their interaction and shares; the
    equivariance defect of each layer's output in each cell (layer -1 is the embedding); and of the
    model as it is, the effect of swaps by distance, of shuffles within windows, of shuffles that
    keep n-grams, and of swaps of neighbours by position.
    """
    unit, own = unit_of(audit), audit.model.own_cell
    for cell, reading in audit.cells.items():
        if reading is not None:
            ends = {"low": reading.low, "high": reading.high}
            yield _row("order sensitivity", cell, value_of(reading), unit) | ends
            for at in reading.places:
                more = {"position": at.place, "low": at.low, "high": at.high}
                yield _row("order sensitivity at a place", cell, at.mean, unit) | more
    yield from _mechanisms(audit, unit)
    for layer in audit.layers:
        for cell, defect in layer.defects.items():
            yield _row("equivariance defect", cell, defect, "ratio") | {"layer": layer.layer - 1}
    for quantity, readings in (
        ("swap at distance", audit.swap_distance),
        ("shuffle within windows", audit.windows),
        ("shuffle of n-grams", audit.ngrams),
    ):
        for sized in readings:
            more = {"size": sized.size, "low": sized.low, "high": sized.high}
            yield _row(quantity, own, sized.mean, unit) | more
    for place in audit.positions:
        more = {"position": place.position}
        yield _row("swap of neighbours", own, place.mean, unit) | more


def _mechanisms(audit: Audit, unit: str) -> Iterator[dict[str, object]]:
    own = audit.model.own_cell
    if audit.effects is not None:
        for name in ("encoding", "mask", "interaction"):
            value = getattr(audit.effects, name)
            quantity = name if name == "interaction" else f"{name} alone"
            ends = {"low": value.low, "high": value.high}
            yield _row(quantity, own, value.mean, unit) | ends
    if audit.shapley is not None:
        for name in ("encoding", "mask"):
            low, high = getattr(audit.shapley, f"{name}_interval")
            share = getattr(audit.shapley, name)
            yield _row(f"share of the {name}", own, share, "share") | {"low": low, "high": high}


def _row(quantity: str, cell: str, value: float, unit: str) -> dict[str, object]:
    missing = dict.fromkeys(("layer", "size", "position", "low", "high"))
    return {"quantity": quantity, "cell": cell, "value": value, "unit": unit, **missing}


# --- in a notebook ---------------------------------------------------------------------------


def audit_tables(audit: Audit) -> list[HtmlTable]:
    """Return the 2 x 2 of encoding and mask, and what each brings where that is known."""
    columns, rows = square_of(audit)
    square = HtmlTable(
        caption=f"Order sensitivity, {unit_of(audit)}, with 95 % intervals; * as it is. "
        f"{question_of(audit)}",
        columns=["", *columns],
        rows=[[name, *_cells(audit, *cells)] for name, cells in rows.items()],
    )
    if audit.effects is None or not audit.has_encoding:
        return [square]
    shares = ["no share", "no share"]
    if audit.shapley is not None:
        shares = [
            percent(audit.shapley.encoding, audit.shapley.encoding_interval),
            percent(audit.shapley.mask, audit.shapley.mask_interval),
        ]
    effects = audit.effects
    parts = HtmlTable(
        caption="What encoding and mask bring, and their shares (Shapley values)",
        columns=["", f"alone, {unit_of(audit)}", "share"],
        rows=[
            ["encoding", effects.encoding.mean, shares[0]],
            ["mask", effects.mask.mean, shares[1]],
            ["interaction", effects.interaction.mean, ""],
        ],
    )
    return [square, parts]


def _cells(audit: Audit, *cells: Cell) -> Iterator[str]:
    for cell in cells:
        reading = audit.cells.get(cell.value)
        if reading is None:
            yield audit.not_ablatable.get(cell.value, "not measured")
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
    for cell, name in cell_names(audit).items():
        values = [layer.defects.get(cell.value) for layer in audit.layers]
        drawn.add_scatter(x=names, y=values, name=name, line={"color": COLOURS[cell]})
    drawn.update_layout(
        title="Equivariance defect of each layer's output", yaxis_rangemode="tozero"
    )
    return drawn
