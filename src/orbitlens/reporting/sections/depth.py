"""Through depth: what attention, MLP and norms do in each layer, and metrics of the tokens."""

from collections.abc import Sequence

from orbitlens.draw.figure import BLUE, GREEN, MUTED, ORANGE, Band, Layer, Panel
from orbitlens.draw.figure_html import legend
from orbitlens.reporting.chart import PageChart, curve, layer_name, rows_of, ticks
from orbitlens.reporting.data import ControlBand, ModelReport
from orbitlens.reporting.markup import Row, Table, absent, behind, note, table
from orbitlens.reporting.sections.section import Place
from orbitlens.tracing.trace_result import LayerTrace

PARTS = {"attention": "Attention", "mlp": "MLP", "norm": "Norms"}
METRICS = {
    "mean_squared_distance": "Mean squared pair distance",
    "mean_cosine": "Mean cosine (dots: floor)",
    "effective_rank": "Effective rank",
    "attention_sharpness": "Sharpness of attention, Σp²",
    "update_size": "Size of a layer's update",
    "pair_contraction": "Share of pairs that come closer",
}
CONTROLS = {"twin": "untrained twin", "shuffled": "shuffled"}
TONES = {"twin": MUTED, "shuffled": BLUE}
ENDS = ("lowest", "highest")


def depth_section(model: ModelReport, place: Place) -> str:
    """Return charts of the parts of a layer and of the metrics, beside their controls."""
    if model.trace is None:
        return absent(model.why("trace"))
    drawn = charts(model)
    rows = "".join(
        f'<div class="small">{"".join(place.charts[c.key] for c in drawn if c.kind == kind)}</div>'
        for kind in ("parts", "metrics")
    )
    return (
        legend(drawn[0].panel)
        + rows
        + behind(table(all_metrics(model)), "All metrics as a table")
        + _notes(model)
    )


def _notes(model: ModelReport) -> str:
    runs = ", ".join(f"{CONTROLS[name]} {band.runs}" for name, band in model.bands.items())
    numbers = note(f"Bands span the runs of each control ({runs}).") if runs else ""
    for part, name in (("twin", "untrained twin"), ("shuffled", "shuffled control")):
        if part in model.missing:
            numbers += note(f"No {name}: {model.missing[part]}.")
    return numbers


def charts(model: ModelReport) -> list[PageChart]:
    """Return a small chart of each part of a layer and of each metric."""
    if model.trace is None:
        return []
    there = model.trace.layers[0].metrics
    parts = [
        _chart(model, "parts", name, f"{title}: ln change of squared distances")
        for name, title in PARTS.items()
    ]
    return parts + [
        _chart(model, "metrics", name, title) for name, title in METRICS.items() if name in there
    ]


def _chart(model: ModelReport, kind: str, name: str, title: str) -> PageChart:
    numbers = over_depth(model, kind, name)
    x = [float(k) for k in range(len(numbers.rows))]
    layers: list[Layer] = [
        Band(
            x=x,
            low=[low for low, _ in ends],
            high=[high for _, high in ends],
            label=CONTROLS[control],
            colour=TONES[control],
        )
        for control, ends in _bands(model, kind, name).items()
    ]
    if "floor" in numbers.columns:
        layers.append(curve(numbers, "floor", GREEN, style="dotted"))
    layers.append(curve(numbers, "measured", ORANGE, label="model"))
    panel = Panel(layers=layers, title=title, x_label="", x_ticks=ticks(rows_of(numbers)))
    return PageChart(
        kind=kind, name=name, title=title, panel=panel, table=numbers, shape="low", legend=False,
        may_be_log=kind == "metrics",
    )  # fmt: skip


def _bands(model: ModelReport, kind: str, name: str) -> dict[str, Sequence[tuple[float, float]]]:
    def ends(band: ControlBand) -> Sequence[tuple[float, float]]:
        return (band.parts if kind == "parts" else band.metrics)[name]

    return {key: ends(model.bands[key]) for key in CONTROLS if key in model.bands}


# --- tables ------------------------------------------------------------------------------------


def _value(layer: LayerTrace, kind: str, name: str) -> float:
    if kind == "metrics":
        return layer.metrics[name]
    value: float = getattr(layer, name).measured_log_change
    return value


def over_depth(model: ModelReport, kind: str, name: str) -> Table:
    """Return one quantity, layer by layer, with the bands of its controls.

    Args:
        model: of a report.
        kind: "parts" for the ln change by a part of a layer, or "metrics".
        name: of the part or of the metric.
    """
    trace = model.trace
    assert trace is not None
    bands = _bands(model, kind, name)
    rows: list[Row] = [
        [layer_name(trace.model, layer), _value(layer, kind, name),
         *(end for band in bands.values() for end in band[n])]
        for n, layer in enumerate(trace.layers)
    ]  # fmt: skip
    columns = [f"{CONTROLS[key]}, {end}" for key in bands for end in ENDS]
    if name == "mean_cosine":  # the one metric with a floor of its own
        columns.append("floor")
        floors = [layer.metrics["shuffled_cosine"] for layer in trace.layers]
        rows = [[*row, floor] for row, floor in zip(rows, floors, strict=True)]
    title = PARTS[name] + ", ln change" if kind == "parts" else METRICS.get(name, name)
    return Table(
        name=f"depth-{name}", caption=title, columns=("layer", "measured", *columns), rows=rows
    )


def tables(model: ModelReport) -> list[Table]:
    """Return all quantities over depth below one another, for a CSV file."""
    if model.trace is None:
        return []
    pairs = [("parts", name) for name in PARTS]
    pairs += [("metrics", name) for name in model.trace.layers[0].metrics]
    numbers = [(name, over_depth(model, kind, name)) for kind, name in pairs]
    layer, *rest = max((table.columns for _, table in numbers), key=len)  # the others lack a floor
    columns = (layer, "quantity", *rest)
    rows: list[Row] = []
    for name, one in numbers:
        for first, *values in one.rows:
            rows.append([first, name, *values, *[None] * (len(columns) - 2 - len(values))])
    return [Table(name="depth", caption="Through depth", columns=columns, rows=rows)]


def all_metrics(model: ModelReport) -> Table:
    """Return every metric in front of each layer, drawn or not."""
    trace = model.trace
    assert trace is not None
    names = list(trace.layers[0].metrics)
    rows: list[Row] = [
        [layer_name(trace.model, x), *(x.metrics[name] for name in names)] for x in trace.layers
    ]
    columns = ("layer", *(METRICS.get(name, name.replace("_", " ")) for name in names))
    return Table(
        name="metrics", caption="Metrics in front of each layer", columns=columns, rows=rows
    )
