"""Predicted, simulated and measured: over layers and over heads, and how well they agree."""

from orbitlens.draw.figure import BLUE, INK, MUTED, ORANGE, Curve, Panel, Points
from orbitlens.reporting.chart import PageChart, curve, layer_name, rows_of, ticks
from orbitlens.reporting.data import ModelReport
from orbitlens.reporting.markup import Row, Table, Value, absent, behind, note, table
from orbitlens.reporting.sections.section import Place
from orbitlens.tracing.trace_result import Agreement

STYLES = {"measured": (INK, ""), "predicted": (ORANGE, "dashed"), "simulated": (BLUE, "dotted")}


def agreement_section(model: ModelReport, place: Place) -> str:
    """Return both charts and how well they agree."""
    trace = model.trace
    if trace is None:
        return absent(model.why("trace"))
    report = trace.agreement
    fitted = "not fitted on" if report.held_out else "fitted on (too little text for two halves)"
    return (
        note(
            f"Judged on contexts the prediction was {fitted}; “predicted” is the closure "
            f"“{report.closure}”."
        )
        + f'<div class="pair">{place.charts["layers"]}{place.charts["scatter"]}</div>'
        + table(scores(model, main=True))
        + behind(table(scores(model, main=False)), "Other closures, for comparison")
    )


def charts(model: ModelReport) -> list[PageChart]:
    """Return attention layer by layer, and heads predicted against measured."""
    if model.trace is None:
        return []
    return [_layers_chart(model), _heads_chart(model)]


def _layers_chart(model: ModelReport) -> PageChart:
    numbers = attention_layers(model)
    title = "Attention, layer by layer: ln change of squared distances"
    lines = [curve(numbers, name, tone, style=style) for name, (tone, style) in STYLES.items()]
    panel = Panel(layers=lines, title=title, x_label="layer", x_ticks=ticks(rows_of(numbers)))
    return PageChart(kind="layers", title=title, panel=panel, table=numbers)


def _heads_chart(model: ModelReport) -> PageChart:
    numbers = attention_heads(model)
    predicted, measured = ([v or 0.0 for v in numbers.column(n)] for n in ("predicted", "measured"))
    ends = [min([*predicted, *measured]), max([*predicted, *measured])]
    title = "Heads: predicted against measured ln change"
    panel = Panel(
        layers=[
            Curve(x=ends, y=ends, label="equal", colour=MUTED, dotted=True, width=1.2),
            Points(x=predicted, y=measured, label="a head", colour=ORANGE, size=7.0, opacity=0.75,
                   texts=[str(row[0]) for row in numbers.rows]),
        ],
        title=title, x_label="predicted", y_label="measured",
    )  # fmt: skip
    return PageChart(kind="scatter", title=title, panel=panel, table=numbers, shared=False)


# --- tables ------------------------------------------------------------------------------------


def attention_layers(model: ModelReport) -> Table:
    """Return attention's change, measured, predicted and simulated."""
    trace = model.trace
    assert trace is not None
    rows: list[Row] = [
        [
            layer_name(trace.model, x),
            x.attention.measured_log_change,
            x.attention.predicted_log_change,
            x.attention.simulated_log_change,
        ]
        for x in trace.layers
    ]
    columns = ("layer", "measured", "predicted", "simulated")
    caption = "Attention's ln change of squared pair distance"
    return Table(name="agreement-layers", caption=caption, columns=columns, rows=rows)


def attention_heads(model: ModelReport) -> Table:
    """Return every head's change, predicted and measured."""
    assert model.trace is not None
    rows: list[Row] = [
        [f"{x.stack} {x.layer}.{h.head}", h.predicted, h.measured, h.predicted_sharpness,
         h.sharpness]
        for x in model.trace.layers
        for h in x.heads
    ]  # fmt: skip
    columns = ("head", "predicted", "measured", "sharpness, predicted", "sharpness")
    caption = "What each head alone does: ln change of squared pair distance"
    return Table(name="agreement-heads", caption=caption, columns=columns, rows=rows)


def scores(model: ModelReport, *, main: bool) -> Table:
    """Return how well predictions agree: of the default closure and the flow, or of the others."""
    assert model.trace is not None
    report = model.trace.agreement
    rows: list[Row] = []
    for name, numbers in report.per_closure.items():
        if (name == report.closure) == main:
            title = "predicted" if main else f"closure “{name}”"
            rows += [
                [f"{title}, {what}", *_scores(getattr(numbers, what))]
                for what in ("layers", "heads", "sharpness")
            ]
    if main:
        rows.append(["simulated, layers", *_scores(report.simulated)])
    columns = ("against measured", "Pearson", "Spearman", "signs right", "mean error", "n")
    name = "agreement" if main else "agreement-closures"
    caption = "How well they agree" if main else "Other closures, for comparison"
    return Table(name=name, caption=caption, columns=columns, rows=rows)


def _scores(one: Agreement) -> list[Value]:
    return [one.pearson, one.spearman, one.sign, one.mean_error, one.n]


def tables(model: ModelReport) -> list[Table]:
    """Return all tables of this section."""
    if model.trace is None:
        return []
    return [attention_layers(model), attention_heads(model), scores(model, main=True),
            scores(model, main=False)]  # fmt: skip
