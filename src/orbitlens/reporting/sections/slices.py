"""Slices: what the state above a token knows of that token and of its place."""

from orbitlens.draw.figure import BLUE, GREEN, MUTED, ORANGE, Heat, Panel
from orbitlens.order.slices import SliceReading, Slices, SliceVariant
from orbitlens.reporting.chart import PageChart, curve, rows_of, ticks
from orbitlens.reporting.data import ModelReport
from orbitlens.reporting.markup import Row, Table, absent, items, note
from orbitlens.reporting.sections.order import output_of
from orbitlens.reporting.sections.section import Place

FEW_COLUMNS = 8  # layers up to which scores are written into the map
PLACE = "place, R²"
STYLES = {"its token": (BLUE, ""), "previous": (GREEN, "dashed"), "next": (MUTED, "dotted")}


def slices_section(model: ModelReport, place: Place) -> str:
    """Return what is decoded from states, with and without residual connections."""
    if model.audit is None:
        return absent(model.why("audit"))
    measured = model.audit.slices
    if measured is None or not measured.variants:
        return absent("; ".join(measured.notes) if measured else "slices were not asked for")
    named = _named(measured)
    unnamed = "" if named else note("Patches have no names, so only places are decoded.")
    return (
        f'<div class="pair">{place.charts["identity"]}{place.charts["places"]}</div>{unnamed}'
        + items(measured.notes, "note")
    )


def _slices_of(model: ModelReport) -> Slices | None:
    measured = model.audit.slices if model.audit is not None else None
    return measured if measured is not None and measured.variants else None


def _named(measured: Slices) -> bool:
    """Say whether tokens have names to decode; patches of images have none."""
    return measured.variants[0].layers[0].identity is not None


def _score(reading: SliceReading, named: bool) -> float:
    one = reading.identity if named else reading.position
    assert one is not None
    return one.score


# --- charts ------------------------------------------------------------------------------------


def charts(model: ModelReport) -> list[PageChart]:
    """Return what is decoded, by residuals that are taken out, and by layer of the whole model."""
    measured = _slices_of(model)
    return [] if measured is None else [_map(measured), _curves(measured)]


def _map(measured: Slices) -> PageChart:
    named = _named(measured)
    what = "Token k decoded from the state at k" if named else "Place k decoded (R²)"
    title = f"{what}, with residual connections taken out"
    columns = [reading.layer for reading in measured.variants[0].layers]
    # Some variants are read at the last layer only: a score belongs to its layer's column.
    known = [{x.layer: _score(x, named) for x in v.layers} for v in measured.variants]
    values = [[row.get(layer) for layer in columns] for row in known]
    written = [["" if v is None else f"{v:.2f}" for v in row] for row in values]
    heat = Heat(
        values=values,
        x_names=["in" if layer == 0 else str(layer - 1) for layer in columns],
        y_names=[removed(variant) for variant in measured.variants],
        texts=written if len(columns) <= FEW_COLUMNS else (),
        colours="share",
        bar="score",
    )
    panel = Panel(layers=[heat], title=title, x_label="output of layer")
    return PageChart(
        kind="identity", title=title, panel=panel, table=identity(measured), shared=False
    )


def _curves(measured: Slices) -> PageChart:
    given = probes(measured)
    title = "The model as it is: what a state tells, by layer"
    lines = [
        curve(given, name, tone, style=style)
        for name, (tone, style) in (STYLES if _named(measured) else {}).items()
    ]
    lines.append(curve(given, PLACE, ORANGE))
    panel = Panel(
        layers=lines, title=title, x_label="output of layer", x_ticks=ticks(rows_of(given))
    )
    return PageChart(kind="places", title=title, panel=panel, table=given)


# --- tables ------------------------------------------------------------------------------------


def removed(variant: SliceVariant) -> str:
    """Return a variant's name: which residual connections are taken out."""
    return "as it is" if variant.removed == "none" else f"without {variant.removed}"


def identity(measured: Slices) -> Table:
    """Return how well the token (or the place) is decoded, by what was taken out and by layer."""
    named = _named(measured)
    rows: list[Row] = [
        [removed(variant), output_of(x.layer), _score(x, named)]
        for variant in measured.variants
        for x in variant.layers
    ]
    columns = ("residuals", "state", "its token" if named else "its place, R²")
    caption = "What is decoded from a state, by the residual connections that are taken out"
    return Table(name="slices-residuals", caption=caption, columns=columns, rows=rows)


def probes(measured: Slices) -> Table:
    """Return what a state of the model as it is tells."""
    rows: list[Row] = []
    for x in measured.variants[0].layers:
        tokens = [one.score if one else None for one in (x.identity, x.previous, x.following)]
        control = x.identity.control if x.identity else None
        rows.append([output_of(x.layer), *tokens, control, x.position.score, x.adjacency])
    columns = ("state", *STYLES, "control", PLACE, "adjacent")
    return Table(name="slices", caption="Probes of the model as it is", columns=columns, rows=rows)


def tables(model: ModelReport) -> list[Table]:
    """Return all tables of this section."""
    measured = _slices_of(model)
    return [] if measured is None else [identity(measured), probes(measured)]
