"""Through depth: what attention, MLP and norms do to directions; then raw distances and metrics."""

import math
from collections.abc import Sequence

from orbitlens.draw.figure import (
    BLUE,
    GREEN,
    GREY,
    MUTED,
    ORANGE,
    PINK,
    SKY,
    YELLOW,
    Band,
    Bars,
    Curve,
    Layer,
    Panel,
)
from orbitlens.draw.figure_html import legend
from orbitlens.reporting.chart import PageChart, curve, layer_name, rows_of, ticks
from orbitlens.reporting.data import ControlBand, ModelReport
from orbitlens.reporting.markup import Row, Table, absent, behind, note, number, table
from orbitlens.reporting.motion import PARTS, Motion, effect, motions
from orbitlens.reporting.sections.section import Place
from orbitlens.tracing.trace_result import LayerTrace, Trace

TITLES = {"attention": "Attention", "mlp": "MLP", "norm": "Norms"}
COLOURS = {"attention": GREEN, "mlp": YELLOW, "norm": PINK, "between": SKY}  # no sign in them
METRICS = {
    "mean_squared_distance": "Mean squared pair distance",
    "mean_cosine": "Mean cosine, raw (dots: floor)",
    "effective_rank": "Effective rank",
    "attention_sharpness": "Sharpness of attention, Σp²",
    "update_size": "Size of a layer's update",
    "pair_contraction": "Mean ln change of a pair's distance",
}
CONTROLS = {"twin": "untrained twin", "shuffled": "shuffled"}
TONES = {"twin": MUTED, "shuffled": BLUE}
ENDS = ("lowest", "highest")
WIDTH = 0.8  # of all bars of a layer, in units of layers
RAW = (
    "Distances in the raw stream: the second voice. One long token, or what all tokens share, "
    "can rule them; a model with norms works on directions."
)


def depth_section(model: ModelReport, place: Place) -> str:
    """Return the waterfall, directions beside their controls, and raw distances."""
    if model.trace is None:
        return absent(model.why("trace"))
    drawn = {kind: [c for c in charts(model) if c.kind == kind] for kind in KINDS}
    html = {
        kind: "".join(place.charts[chart.key] for chart in some) for kind, some in drawn.items()
    }
    raw = (
        f'{note(RAW)}{legend(drawn["parts"][0].panel)}<div class="small">{html["parts"]}</div>'
        f'<div class="small">{html["metrics"]}</div>'
        + behind(table(all_metrics(model)), "All metrics as a table")
    )
    return (
        html["waterfall"]
        + legend(drawn["directions"][0].panel)
        + f'<div class="small">{html["directions"]}</div>'
        + _notes(model)
        + behind(raw, "Raw distances and other metrics")
    )


def _notes(model: ModelReport) -> str:
    assert model.trace is not None
    runs = ", ".join(f"{CONTROLS[name]} {band.runs}" for name, band in model.bands.items())
    numbers = note(f"Bands span the runs of each control ({runs}).") if runs else ""
    for part, name in (("twin", "untrained twin"), ("shuffled", "shuffled control")):
        if part in model.missing:
            numbers += note(f"No {name}: {model.missing[part]}.")
    longest = massive(model.trace)
    if longest.rows:
        numbers += behind(table(longest), f"Massive tokens, in {len(longest.rows)} layers")
    return numbers


# --- charts ------------------------------------------------------------------------------------

KINDS = ("waterfall", "directions", "parts", "metrics")


def charts(model: ModelReport) -> list[PageChart]:
    """Return the waterfall, and a small chart of each part of a layer and of each metric."""
    trace = model.trace
    if trace is None:
        return []
    there = trace.layers[0].metrics
    own = ["cosine", *(name for name in TITLES if name != "norm" or _has_norms(trace))]
    return [
        *(_waterfall(trace, motion) for motion in motions(trace)),
        *(_chart(model, "directions", name, _title("directions", name)) for name in own),
        *(_chart(model, "parts", name, _title("parts", name)) for name in TITLES),
        *(_chart(model, "metrics", name, _title("metrics", name)) for name in METRICS
          if name in there),
    ]  # fmt: skip


def _has_norms(trace: Trace) -> bool:
    return any(layer.directions.norm != 0 for layer in trace.layers)


def _title(kind: str, name: str) -> str:
    if kind == "metrics":
        return METRICS.get(name, name)
    if name == "cosine":
        return "Mean cosine C of directions"
    of = "ΔS = change of ln(1 − C)" if kind == "directions" else "ln change of squared distances"
    return f"{TITLES[name]}: {of}"


def _waterfall(trace: Trace, motion: Motion) -> PageChart:
    where = f", {motion.stack}" if len(trace.model.stacks) > 1 else ""
    title = (
        f"Every part adds up{where}: ln(1 − C) from 0 to {number(motion.net, sign=True)} "
        f"(mean cosine {number(motion.cosine_first)} to {number(motion.cosine_last)})"
    )
    middles, width = _slots(motion)
    bars = [_bars(motion, part, middles, width) for part in motion.totals]
    names = [layer_name(trace.model, trace.layers[n]) for n in _places(motion)]
    panel = Panel(
        layers=[*bars, _links(motion, middles)], title=title, x_label="layer",
        y_label="sum of ΔS", x_ticks=ticks(names),
    )  # fmt: skip
    return PageChart(
        kind="waterfall", name=motion.stack, title=title, panel=panel,
        table=waterfall(trace, motion), shape="wide",
    )  # fmt: skip


def _places(motion: Motion) -> list[int]:
    return list(dict.fromkeys(step.place for step in motion.steps))


def _slots(motion: Motion) -> tuple[list[float], float]:
    """Return the middle of each step's bar, in units of layers, and the width of a bar."""
    orders = [
        sum(other.place == step.place for other in motion.steps[:n])
        for n, step in enumerate(motion.steps)
    ]
    width = WIDTH / (max(orders) + 1)
    columns = {place: k for k, place in enumerate(_places(motion))}
    return [
        columns[step.place] + (order + 0.5) * width - WIDTH / 2
        for step, order in zip(motion.steps, orders, strict=True)
    ], width


def _bars(motion: Motion, part: str, middles: Sequence[float], width: float) -> Bars:
    steps = [(x, s) for x, s in zip(middles, motion.steps, strict=True) if s.part == part]
    return Bars(
        x=[x for x, _ in steps],
        base=[step.start for _, step in steps],
        y=[step.end for _, step in steps],
        label=f"{PARTS[part]} {number(motion.totals[part], sign=True)}",
        colour=COLOURS[part],
        width=0.92 * width,
        texts=[
            f"layer {step.layer}, {PARTS[part]}\n{number(step.change, sign=True)}: "
            f"{effect(step.change, plural=True)}\nsum {number(step.end, sign=True)}"
            for _, step in steps
        ],
    )


def _links(motion: Motion, middles: Sequence[float]) -> Curve:
    """Return level lines from the end of each bar to the next one."""
    x: list[float] = []
    y: list[float | None] = []
    for i, step in enumerate(motion.steps[:-1]):
        x += [middles[i], middles[i + 1], math.nan]
        y += [step.end, step.end, None]
    return Curve(x=x, y=y, colour=GREY, width=1.0, silent=True)


def _chart(model: ModelReport, kind: str, name: str, title: str) -> PageChart:
    numbers = over_depth(model, kind, name)
    x = [float(k) for k in range(len(numbers.rows))]
    layers: list[Layer] = [
        Band(
            x=x[: len(ends)],
            low=[low for low, _ in ends],
            high=[high for _, high in ends],
            label=CONTROLS[control],
            colour=TONES[control],
        )
        for control, ends in _bands(model, kind, name).items()
    ]
    for extra, tone in (("floor", GREEN), ("without massive tokens", PINK)):
        if extra in numbers.columns:
            layers.append(curve(numbers, extra, tone, style="dotted"))
    layers.append(curve(numbers, "measured", ORANGE, label="model"))
    panel = Panel(layers=layers, title=title, x_label="", x_ticks=ticks(rows_of(numbers)))
    return PageChart(
        kind=kind, name=name, title=title, panel=panel, table=numbers, shape="low", legend=False,
        may_be_log=kind == "metrics",
    )  # fmt: skip


def _bands(model: ModelReport, kind: str, name: str) -> dict[str, Sequence[tuple[float, float]]]:
    def ends(band: ControlBand) -> Sequence[tuple[float, float]]:
        found: Sequence[tuple[float, float]] = getattr(band, kind)[name]
        return found

    return {key: ends(model.bands[key]) for key in CONTROLS if key in model.bands}


# --- tables ------------------------------------------------------------------------------------


def waterfall(trace: Trace, motion: Motion) -> Table:
    """Return the steps of the waterfall, and last their sum."""
    rows: list[Row] = [
        [layer_name(trace.model, trace.layers[step.place]), PARTS[step.part], step.change,
         step.start, step.end]
        for step in motion.steps
    ]  # fmt: skip
    rows.append(["all", "net", motion.net, 0.0, motion.net])
    columns = ("layer", "part", "ΔS", "from", "to")
    caption = f"Change of S = ln(1 − C) by every part, {motion.stack}: they add up"
    return Table(name="waterfall", caption=caption, columns=columns, rows=rows)


def massive(trace: Trace) -> Table:
    """Return the tokens that are far longer than their context, by layer, most frequent first."""
    rows: list[Row] = [
        [layer_name(trace.model, layer), ", ".join(str(t.position) for t in found[:8]),
         max(t.ratio for t in found), max(t.share for t in found),
         layer.directions.cosine_before, layer.directions.cosine_without_massive]
        for layer in trace.layers
        if (found := layer.directions.massive)
    ]  # fmt: skip
    columns = ("layer", "at positions", "length over the median, most", "share of contexts, most",
               "mean cosine", "without them")  # fmt: skip
    caption = "Massive tokens: far longer than the median of their context"
    return Table(name="massive", caption=caption, columns=columns, rows=rows)


def _value(layer: LayerTrace, kind: str, name: str) -> float:
    if kind == "metrics":
        return layer.metrics[name]
    if kind == "directions":
        name = "cosine_before" if name == "cosine" else name
    own = layer.directions if kind == "directions" else getattr(layer, name)
    value: float = getattr(own, name if kind == "directions" else "measured_log_change")
    return value


def over_depth(model: ModelReport, kind: str, name: str) -> Table:
    """Return one quantity, layer by layer, with the bands of its controls.

    Args:
        model: of a report.
        kind: "directions" for C and its changes, "parts" for raw ln changes, or "metrics".
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
    extra = _beside(trace, kind, name)
    if extra is not None:
        columns.append(extra[0])
        rows = [[*row, value] for row, value in zip(rows, extra[1], strict=True)]
    prefix = "directions-" if kind == "directions" else ""
    return Table(
        name=f"depth-{prefix}{name}", caption=_title(kind, name),
        columns=("layer", "measured", *columns), rows=rows,
    )  # fmt: skip


def _beside(trace: Trace, kind: str, name: str) -> tuple[str, list[float]] | None:
    """Return a second curve of a quantity: a floor, or the same without massive tokens."""
    if kind == "metrics" and name == "mean_cosine":
        return "floor", [layer.metrics["shuffled_cosine"] for layer in trace.layers]
    if name == "cosine" and any(layer.directions.massive for layer in trace.layers):
        kept = [layer.directions.cosine_without_massive for layer in trace.layers]
        return "without massive tokens", kept
    return None


def tables(model: ModelReport) -> list[Table]:
    """Return the waterfall, and all quantities over depth below one another, for CSV files."""
    trace = model.trace
    if trace is None:
        return []
    pairs = [("directions", name) for name in ("cosine", *TITLES)]
    pairs += [("parts", name) for name in TITLES]
    pairs += [("metrics", name) for name in trace.layers[0].metrics]
    numbers = [(kind, name, over_depth(model, kind, name)) for kind, name in pairs]
    columns = list(dict.fromkeys(c for _, _, one in numbers for c in one.columns))
    rows: list[Row] = []
    for kind, name, one in numbers:
        for row in one.rows:
            values = dict(zip(one.columns, row, strict=True))
            first, *rest = [values.get(column) for column in columns]
            rows.append([first, f"directions, {name}" if kind == "directions" else name, *rest])
    depth = Table(
        name="depth", caption="Through depth", columns=(columns[0], "quantity", *columns[1:]),
        rows=rows,
    )  # fmt: skip
    falls = [waterfall(trace, motion) for motion in motions(trace)]
    return [*falls, depth, massive(trace)]


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
