"""A trace as a table of parts of layers, as tables in a notebook, and as a figure."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from orbitlens.draw.figure import GREEN, GREY, INK, ZERO
from orbitlens.results.html import HtmlTable
from orbitlens.results.plotting import GATHER
from orbitlens.tracing.mechanism_result import Mechanisms
from orbitlens.tracing.trace_result import (
    DEFAULT_CLOSURE,
    Agreement,
    DirectionTrace,
    HeadTrace,
    LayerTrace,
    Trace,
)

COLOURS = {"attention": INK, "mlp": GREEN, "norm": GREY}


def part_rows(trace: Trace) -> Iterator[dict[str, object]]:
    """Yield a row for each part of each layer: attention, mlp, norm, and each head.

    `log_change` is the change of ln(1 - C), C the mean cosine of directions: negative where tokens
    gather. A head's is its share of what attention does; `alone` is what it does by itself, which
    is what takes `cosine_before` to `cosine_after` in its row. Norms that stand at two places of a
    block share a row, which has no cosines. `raw_log_change` and the columns behind it speak of the
    mean squared pair distance. Metrics are those of the tokens in front of the layer, the same in
    each of its rows.
    """
    twins = trace.twin.layers if trace.twin is not None else (None,) * len(trace.layers)
    for layer, twin in zip(trace.layers, twins, strict=True):
        place = {"stack": layer.stack, "layer": layer.layer}
        untrained = {} if twin is None else _parts(twin)
        directions = _direction_columns(layer.directions)
        for name, values in _parts(layer).items():
            raw = values["measured_log_change"]
            row = {**place, "part": name, **directions[name], "raw_log_change": raw, **values}
            row["twin_measured_log_change"] = untrained.get(name, {}).get("measured_log_change")
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


def _direction_columns(here: DirectionTrace) -> dict[str, dict[str, object]]:
    """Return for each part the change of ln(1 - C), what was predicted, and C around the part."""
    columns: dict[str, dict[str, object]] = {}
    for name in ("attention", "mlp", "norm"):
        steps = [(a.cosine, b.cosine) for part, a, b in here.steps if part == name]
        # Without a norm on the stream, nothing happens at the end of the block.
        before, after = steps[0] if steps else (here.cosine_after, here.cosine_after)
        alone = len(steps) < 2
        columns[name] = {
            "log_change": getattr(here, name),
            "cosine_before": before if alone else None,
            "cosine_after": after if alone else None,
        }
    columns["attention"]["predicted"] = here.predicted[DEFAULT_CLOSURE]
    for k, head in enumerate(here.heads):
        columns[f"head {k}"] = {
            "log_change": head.share,
            "predicted": head.predicted[DEFAULT_CLOSURE],
            "alone": head.alone,
            "cosine_before": here.cosine_before,
            "cosine_after": 1 - (1 - here.cosine_before) * math.exp(head.alone),
        }
    return columns


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
             "alone", "raw_log_change", "measured_log_change", "twin_measured_log_change",
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


def direction_table(trace: Trace) -> HtmlTable:
    """Return what attention, MLP and norms do to directions, layer by layer."""
    return HtmlTable(
        caption="Directions: mean cosine C, and changes of ln(1 − C)",
        columns=["layer", "C before", "attention", "MLP", "norms", "C after", "rank", "clusters"],
        rows=[
            [
                _layer_name(trace, layer),
                here.cosine_before,
                here.attention,
                here.mlp,
                here.norm,
                here.cosine_after,
                here.effective_rank,
                here.clusters,
            ]
            for layer in trace.layers
            for here in [layer.directions]
        ],
    )


def raw_table(trace: Trace) -> HtmlTable:
    """Return what attention, MLP and norms do to raw distances, layer by layer."""
    return HtmlTable(
        caption="Raw tokens: ln of the change of squared pair distance (D), and of what is shared",
        columns=["layer", "attention", "predicted", "simulated", "MLP", "norms", "M before", "M"],
        rows=[
            [
                _layer_name(trace, layer),
                layer.attention.measured_log_change,
                layer.attention.predicted_log_change,
                layer.attention.simulated_log_change,
                layer.mlp.measured_log_change,
                layer.norm.measured_log_change,
                layer.directions.points[0].shared,
                layer.directions.points[-1].shared,
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
    """Return a waterfall: what each block adds to ln(1 - C), from the first layer to the last."""
    steps = [
        (f"{_layer_name(trace, layer)} {name}", name, a.log_spread, b.log_spread)
        for layer in trace.layers
        for name, a, b in layer.directions.steps
    ]
    drawn = go.Figure()
    for part, colour in COLOURS.items():
        here = [step for step in steps if step[1] == part]
        drawn.add_bar(
            x=[place for place, *_ in here],
            y=[end - start for *_, start, end in here],
            base=[start for *_, start, _ in here],
            name=part, marker_color=colour,
            hovertemplate="layer %{x}: %{y:+.3f}<extra></extra>",
        )  # fmt: skip
    drawn.update_layout(
        title="ln(1 − C), C the mean cosine of tokens: falls where directions gather",
        xaxis={
            "title": "layer and part",
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [place for place, *_ in steps],
        },
        yaxis_title="ln(1 − C)",
    )
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
