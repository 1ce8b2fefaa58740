"""A trace as a table of parts of layers, as tables in a notebook, and as a figure."""

from collections.abc import Iterator, Mapping
from typing import Any

from orbitlens.draw.figure import INK, ZERO
from orbitlens.results.html import HtmlTable
from orbitlens.results.plotting import GATHER, SPREAD
from orbitlens.tracing.mechanism_result import Mechanisms
from orbitlens.tracing.trace_result import DEFAULT_CLOSURE, Agreement, HeadTrace, LayerTrace, Trace

CHANGE = "ln of the change of squared pair distance by attention"
CURVES = (
    ("measured", INK, "solid"),
    ("predicted", SPREAD, "dash"),
    ("simulated", GATHER, "dot"),
)


def part_rows(trace: Trace) -> Iterator[dict[str, object]]:
    """Yield a row for each part of each layer: attention, mlp, norm, and each head.

    `log_change` is the change of ln(1 - C), C the mean cosine of directions: negative where tokens
    gather. The other log-changes are those of the mean squared pair distance. Metrics are those of
    the tokens in front of the layer, the same in each of its rows.
    """
    twins = trace.twin.layers if trace.twin is not None else (None,) * len(trace.layers)
    for layer, twin in zip(trace.layers, twins, strict=True):
        place = {"stack": layer.stack, "layer": layer.layer}
        for name, values in _parts(layer).items():
            untrained = None if twin is None else _parts(twin)[name]["measured_log_change"]
            row = {**place, "part": name, **values, "twin_measured_log_change": untrained}
            row |= _direction_columns(layer, name)
            yield {**_ordered(row), **layer.metrics}


def _parts(layer: LayerTrace) -> dict[str, dict[str, object]]:
    attention = layer.attention
    whole: dict[str, object] = {
        "measured_log_change": attention.measured_log_change,
        "predicted_log_change": attention.predicted_log_change,
        "simulated_log_change": attention.simulated_log_change,
        **_closures(attention.closures),
    }
    return {
        "attention": whole,
        "mlp": {"measured_log_change": layer.mlp.measured_log_change},
        "norm": {"measured_log_change": layer.norm.measured_log_change},
        **{f"head {head.head}": _head(head) for head in layer.heads},
    }


def _direction_columns(layer: LayerTrace, part: str) -> dict[str, object]:
    """Return the change of ln(1 - C) by a part, and C before and after it."""
    here = layer.directions
    changes = {"attention": here.attention, "mlp": here.mlp, "norm": here.norm}
    shares = {f"head {k}": head.share for k, head in enumerate(here.heads)}
    predicted = {f"head {k}": h.predicted[DEFAULT_CLOSURE] for k, h in enumerate(here.heads)}
    predicted["attention"] = here.predicted[DEFAULT_CLOSURE]
    ends = {"attention": (here.cosine_before, here.cosine_attention)}
    before, after = ends.get(part, (None, None))
    return {
        "log_change": {**changes, **shares}[part],
        "predicted": predicted.get(part),
        "raw_log_change": _parts(layer)[part]["measured_log_change"],
        "cosine_before": before if before is not None else here.cosine_before,
        "cosine_after": after if after is not None else here.cosine_after,
    }


def _head(head: HeadTrace) -> dict[str, object]:
    return {
        "measured_log_change": head.measured,
        "predicted_log_change": head.predicted,
        **_closures(head.closures),
        "sharpness": head.sharpness,
        "predicted_sharpness": head.predicted_sharpness,
        "entropy": head.entropy,
        "sink": head.sink,
    }


def _closures(closures: Mapping[str, float]) -> dict[str, object]:
    return {f"closure_{name}": value for name, value in closures.items()}


def _ordered(row: dict[str, object]) -> dict[str, object]:
    """Return a row whose first columns are those that every part shares."""
    first = ("stack", "layer", "part", "log_change", "predicted", "cosine_before", "cosine_after",
             "raw_log_change", "measured_log_change", "twin_measured_log_change",
             "predicted_log_change", "simulated_log_change")  # fmt: skip
    return {name: row.get(name) for name in first} | row


def mechanism_rows(mechanisms: Mechanisms) -> Iterator[dict[str, object]]:
    """Yield one row a head: its scores, and the twin's with the prefix `twin_`."""
    for head in mechanisms.heads:
        own = {name: value for name, value in vars(head).items() if name != "twin"}
        place = {name: own.pop(name) for name in ("stack", "layer", "head")}
        twin = {f"twin_{name}": value for name, value in vars(head.twin).items()}
        yield {**place, **own, **twin}


# --- in a notebook ---------------------------------------------------------------------------


def _layer_name(trace: Trace, layer: LayerTrace) -> str:
    return f"{layer.stack} {layer.layer}" if len(trace.model.stacks) > 1 else str(layer.layer)


def layer_table(trace: Trace) -> HtmlTable:
    """Return what attention, MLP and norms do, layer by layer."""
    return HtmlTable(
        caption="ln of the change of squared pair distance",
        columns=["layer", "attention", "predicted", "simulated", "MLP", "norms"],
        rows=[
            [
                _layer_name(trace, layer),
                layer.attention.measured_log_change,
                layer.attention.predicted_log_change,
                layer.attention.simulated_log_change,
                layer.mlp.measured_log_change,
                layer.norm.measured_log_change,
            ]
            for layer in trace.layers
        ],
    )


def agreement_table(trace: Trace) -> HtmlTable:
    """Return how well the default closure and the simulation agree with what was measured."""
    report = trace.agreement
    of = report.per_closure[report.closure]
    rows = {
        f"layers ({report.closure})": of.layers,
        f"heads ({report.closure})": of.heads,
        "layers (simulated)": report.simulated,
    }
    return HtmlTable(
        caption="Predicted and simulated beside measured",
        columns=["over", "n", "Pearson", "Spearman", "signs", "mean error"],
        rows=[[name, *_agreement(one)] for name, one in rows.items()],
    )


def _agreement(one: Agreement) -> list[object]:
    return [one.n, one.pearson, one.spearman, one.sign, one.mean_error]


def score_table(mechanisms: Mechanisms) -> HtmlTable:
    """Return four scores of each head beside the twin's."""
    names = ("induction", "previous", "saturation", "margin")
    return HtmlTable(
        caption="Scores of heads, beside the untrained twin's",
        columns=["head", *(column for name in names for column in (name, "twin"))],
        rows=[
            [head.name, *(getattr(one, name) for name in names for one in (head, head.twin))]
            for head in mechanisms.heads
        ],
    )


# --- figures ---------------------------------------------------------------------------------


def trace_figure(trace: Trace, go: Any) -> Any:  # noqa: ANN401 - plotly ships no types
    """Return what attention does, layer by layer: measured, predicted, simulated."""
    names = [_layer_name(trace, layer) for layer in trace.layers]
    drawn = go.Figure()
    for name, colour, dash in CURVES:
        values = [getattr(layer.attention, f"{name}_log_change") for layer in trace.layers]
        drawn.add_scatter(x=names, y=values, name=name, line={"color": colour, "dash": dash})
    drawn.update_layout(title=CHANGE, xaxis_title="layer", xaxis_type="category")
    return drawn


def mechanisms_figure(mechanisms: Mechanisms, go: Any) -> Any:  # noqa: ANN401
    """Return the map of one score: induction, or saturation where that was not measured."""
    score = "saturation" if mechanisms.finding("induction") is None else "induction"
    layers: dict[str, dict[int, float | None]] = {}
    for head in mechanisms.heads:
        layers.setdefault(f"{head.stack} {head.layer}", {})[head.head] = getattr(head, score)
    widest = max((len(row) for row in layers.values()), default=0)
    shown = go.Heatmap(
        z=[[row.get(number) for number in range(widest)] for row in layers.values()],
        y=list(layers), xgap=2, ygap=2, zmin=0, colorscale=[[0, ZERO], [1, GATHER]],
        hovertemplate="%{y}, head %{x}: %{z:.3f}<extra></extra>",
    )  # fmt: skip
    drawn = go.Figure(shown)
    drawn.update_layout(title=f"Score of heads: {score}", height=180 + 30 * len(layers))
    drawn.update_xaxes(title="head")
    drawn.update_yaxes(autorange="reversed")
    return drawn
