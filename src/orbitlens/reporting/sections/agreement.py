"""Predicted against measured: over layers and heads, beside trivial baselines and the ceiling."""

from collections.abc import Callable

from orbitlens.draw.figure import BLUE, INK, MUTED, ORANGE, Curve, Panel, Points
from orbitlens.reporting.chart import PageChart, curve, layer_name, rows_of, ticks
from orbitlens.reporting.data import ModelReport
from orbitlens.reporting.effects import head_key
from orbitlens.reporting.markup import Row, Table, Value, absent, behind, note, table
from orbitlens.reporting.sections.section import Place
from orbitlens.tracing.trace_result import (
    DEFAULT_CLOSURE,
    Agreement,
    HeadDirections,
    HeadTrace,
    LayerTrace,
    Trace,
)
from orbitlens.tracing.words import RESAMPLED

STYLES = {"measured": (INK, ""), "predicted": (ORANGE, "dashed"), "resampled": (ORANGE, "dashed"),
          "simulated": (BLUE, "dotted")}  # fmt: skip
CEILING = "itself"
DIRECTIONS, DISTANCES = "change of ln(1 − C)", "ln change of squared distances"


def agreement_section(model: ModelReport, place: Place) -> str:
    """Return directions first, with baselines and ceiling; raw distances behind them."""
    trace = model.trace
    if trace is None:
        return absent(model.why("trace"))
    held = trace.agreement.held_out
    fitted = "not fitted on" if held else "fitted on (too little text for two halves)"
    raw = (
        note(f"{_kind(trace).capitalize()}: by the closure “{trace.agreement.closure}”.")
        + place.charts["layers-raw"]
        + table(raw_scores(trace))
    )
    return (
        note(
            f"Judged on contexts that the prediction was {fitted}. “Predicted” is the closure "
            f"“{DEFAULT_CLOSURE}”; the ceiling is the same measurement on the other half of the "
            "text, which no prediction can be expected to beat."
        )
        + f'<div class="pair">{place.charts["layers"]}{place.charts["scatter"]}</div>'
        + table(scores(trace))
        + behind(raw, "The same for raw distances")
    )


# --- charts ------------------------------------------------------------------------------------


def charts(model: ModelReport) -> list[PageChart]:
    """Return attention layer by layer, and heads predicted against measured; then raw layers."""
    trace = model.trace
    if trace is None:
        return []
    return [
        _layers_chart(attention_layers(trace), "", DIRECTIONS),
        _heads_chart(attention_heads(trace)),
        _layers_chart(raw_layers(trace), "raw", DISTANCES),
    ]


def _layers_chart(numbers: Table, name: str, what: str) -> PageChart:
    title = f"Attention, layer by layer: {what}"
    lines = [
        curve(numbers, column, tone, style=style)
        for column, (tone, style) in STYLES.items()
        if column in numbers.columns
    ]
    panel = Panel(layers=lines, title=title, x_label="layer", x_ticks=ticks(rows_of(numbers)))
    return PageChart(kind="layers", name=name, title=title, panel=panel, table=numbers)


def _heads_chart(numbers: Table) -> PageChart:
    predicted, measured = ([v or 0.0 for v in numbers.column(n)] for n in ("predicted", "measured"))
    ends = [min([*predicted, *measured], default=0.0), max([*predicted, *measured], default=1.0)]
    title = f"Heads, predicted against measured: {DIRECTIONS}"
    panel = Panel(
        layers=[
            Curve(x=ends, y=ends, label="equal", colour=MUTED, dotted=True, width=1.2, silent=True),
            Points(x=predicted, y=measured, label="a head (choose it)", colour=ORANGE, size=7.0,
                   opacity=0.75, texts=[str(row[0]) for row in numbers.rows], keys=numbers.heads),
        ],
        title=title, x_label="predicted", y_label="measured",
    )  # fmt: skip
    return PageChart(kind="scatter", title=title, panel=panel, table=numbers, shared=False)


# --- directions --------------------------------------------------------------------------------


def attention_layers(trace: Trace) -> Table:
    """Return attention's change of ln(1 - C) on the judged contexts, measured and predicted."""
    rows: list[Row] = [
        [layer_name(trace.model, x), x.directions.judged, x.directions.predicted[DEFAULT_CLOSURE],
         x.directions.predicted[CEILING]]
        for x in trace.layers
    ]  # fmt: skip
    columns = ("layer", "measured", "predicted", "other half, measured")
    caption = f"Attention's {DIRECTIONS}"
    return Table(name="agreement-layers", caption=caption, columns=columns, rows=rows)


def attention_heads(trace: Trace) -> Table:
    """Return every head's share of that change."""

    def row(layer: LayerTrace, k: int, head: HeadDirections) -> Row:
        name = f"{layer.stack} {layer.layer}.{k}"
        return [name, head.predicted[DEFAULT_CLOSURE], head.judged, head.predicted[CEILING]]

    rows = [row(x, k, h) for x in trace.layers for k, h in enumerate(x.directions.heads)]
    columns = ("head", "predicted", "measured", "other half, measured")
    caption = f"What each head does: share of attention's {DIRECTIONS}"
    return Table(name="agreement-heads", caption=caption, columns=columns, rows=rows,
                 heads=_keys(trace, lambda x: len(x.directions.heads)))  # fmt: skip


def _keys(trace: Trace, n_heads: Callable[[LayerTrace], int]) -> tuple[str, ...]:
    return tuple(head_key(trace.model, x, k) for x in trace.layers for k in range(n_heads(x)))


def scores(trace: Trace) -> Table:
    """Return how well every closure predicts, beside the baselines and the ceiling."""
    report = trace.direction_agreement
    rows: list[Row] = [
        ["baseline: size of a head's output", report.by_size, None, None, None, None, None],
        ["baseline: always the commoner sign", None, report.majority_sign, None, None, None, None],
    ]
    ordered = sorted(
        report.per_closure, key=lambda name: (name == CEILING, name != DEFAULT_CLOSURE)
    )
    for name in ordered:
        one = report.per_closure[name]
        title = "ceiling: measured on the other half" if name == CEILING else f"closure “{name}”"
        rows.append([title, one.heads.pearson, one.clear_heads.sign, one.clear_heads.n,
                     one.heads.mean_error, one.layers.pearson, one.layers.mean_error])  # fmt: skip
    columns = ("against measured", "heads, Pearson", "clear heads, signs right", "clear heads",
               "heads, mean error", "layers, Pearson", "layers, mean error")  # fmt: skip
    caption = "How well they agree, of directions; a clear head does more than 0.01"
    return Table(name="agreement", caption=caption, columns=columns, rows=rows)


# --- raw distances -----------------------------------------------------------------------------


def _kind(trace: Trace) -> str:
    """Say what the default closure of raw distances is: one that resamples has run the model."""
    return "resampled" if trace.agreement.closure in RESAMPLED else "predicted"


def raw_layers(trace: Trace) -> Table:
    """Return attention's change of raw distances, measured, predicted and simulated."""
    rows: list[Row] = [
        [layer_name(trace.model, x), x.attention.measured_log_change,
         x.attention.predicted_log_change, x.attention.simulated_log_change]
        for x in trace.layers
    ]  # fmt: skip
    columns = ("layer", "measured", _kind(trace), "simulated")
    caption = f"Attention's {DISTANCES}"
    return Table(name="agreement-raw-layers", caption=caption, columns=columns, rows=rows)


def raw_heads(trace: Trace) -> Table:
    """Return every head's change of raw distances, predicted and measured."""

    def row(layer: LayerTrace, head: HeadTrace) -> Row:
        return [f"{layer.stack} {layer.layer}.{head.head}", head.predicted, head.measured,
                head.predicted_sharpness, head.sharpness]  # fmt: skip

    rows = [row(x, head) for x in trace.layers for head in x.heads]
    kind = _kind(trace)
    columns = ("head", kind, "measured", f"sharpness, {kind}", "sharpness")
    caption = f"What each head alone does: {DISTANCES}"
    return Table(name="agreement-raw-heads", caption=caption, columns=columns, rows=rows,
                 heads=_keys(trace, lambda x: len(x.heads)))  # fmt: skip


def raw_scores(trace: Trace) -> Table:
    """Return how well closures and the flow agree with what was measured of raw distances."""
    report = trace.agreement
    rows: list[Row] = []
    for name, numbers in report.per_closure.items():
        rows += [
            [f"closure “{name}”, {what}", *_scores(getattr(numbers, what))]
            for what in ("layers", "heads", "sharpness")
        ]
    rows.append(["simulated, layers", *_scores(report.simulated)])
    columns = ("against measured", "Pearson", "Spearman", "signs right", "mean error", "n")
    caption = "How well they agree, of raw distances"
    return Table(name="agreement-raw", caption=caption, columns=columns, rows=rows)


def _scores(one: Agreement) -> list[Value]:
    return [one.pearson, one.spearman, one.sign, one.mean_error, one.n]


def tables(model: ModelReport) -> list[Table]:
    """Return all tables of this section."""
    trace = model.trace
    if trace is None:
        return []
    makers = (attention_layers, attention_heads, scores, raw_layers, raw_heads, raw_scores)
    return [make(trace) for make in makers]
