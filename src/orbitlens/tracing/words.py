"""A trace in words: sentences built from its numbers, for a terminal and for a report."""

import math
from collections.abc import Sequence

from orbitlens.results.numbers import number_ranges
from orbitlens.tracing.trace_result import DEFAULT_CLOSURE, LayerTrace, Trace

RESAMPLED = {"words", "chunks", "itself"}  # closures that apply the layer to real tokens
STILL = 0.005  # change of ln(1 - C) up to which a layer is said to leave directions as they are


def direction_sentences(layers: Sequence[LayerTrace]) -> list[str]:
    """Return what attention does to directions, what the rest makes of it, and the mean cosine."""
    stacks = list(dict.fromkeys(layer.stack for layer in layers))
    sentences = []
    for stack in stacks:
        here = [layer for layer in layers if layer.stack == stack]
        where = f"In the {stack}, attention" if len(stacks) > 1 else "Attention"
        first, last = here[0].directions.cosine_before, here[-1].directions.cosine_after
        sentences.append(
            f"{where} {_gathers_directions(here)}{_the_rest(here)}; the mean cosine of tokens goes "
            f"from {first:.2f} to {last:.2f}."
        )
    return sentences


def _gathers_directions(layers: Sequence[LayerTrace]) -> str:
    changes = {layer.layer: layer.directions.attention for layer in layers}
    kinds = {
        "gathers directions": [k for k, change in changes.items() if change < -STILL],
        "spreads directions": [k for k, change in changes.items() if change > STILL],
        "leaves them as they are": [k for k, change in changes.items() if abs(change) <= STILL],
    }
    named = {kind: numbers for kind, numbers in kinds.items() if numbers}
    if len(named) == 1:
        kind = next(iter(named))
        return f"{kind.replace('them', 'directions')} in every layer"
    return ", ".join(f"{kind} in {_named(numbers)}" for kind, numbers in named.items())


def _the_rest(layers: Sequence[LayerTrace]) -> str:
    attention = sum(layer.directions.attention for layer in layers)
    rest = sum(layer.directions.mlp + layer.directions.norm for layer in layers)
    if abs(attention) <= STILL or abs(rest) <= STILL:
        return ""
    share = abs(rest / attention)
    if attention * rest > 0:
        return f"; MLPs and norms add {share:.0%} to that"
    return f"; MLPs and norms undo {share:.0%} of it" if share <= 1 else "; MLPs and norms outdo it"


def depth_sentences(layers: Sequence[LayerTrace]) -> list[str]:
    """Return what attention and the MLPs do to raw distances, a sentence for each stack."""
    stacks = list(dict.fromkeys(layer.stack for layer in layers))
    sentences = []
    for stack in stacks:
        here = [layer for layer in layers if layer.stack == stack]
        where = f"In the {stack}, attention" if len(stacks) > 1 else "Attention"
        sentences.append(f"{where} {_spreads_and_gathers(here)}{_mlps(here)}.")
    return sentences


def _spreads_and_gathers(layers: Sequence[LayerTrace]) -> str:
    up = [x.layer for x in layers if x.attention.measured_log_change > 0]
    down = [x.layer for x in layers if x.attention.measured_log_change <= 0]
    if not down:
        return "spreads raw distances in every layer"
    if not up:
        return "shortens raw distances in every layer"
    return f"spreads raw distances in {_named(up)} and shortens them in {_named(down)}"


def _mlps(layers: Sequence[LayerTrace]) -> str:
    attention, mlp, norm = (_total(layers, part) for part in ("attention", "mlp", "norm"))
    if attention == 0:
        return ""
    post_norm = len(layers[0].directions.points) > 3
    if post_norm:
        return (
            f"; squared distances change ×\u00a0{_factor(attention)} by attention, "
            f"×\u00a0{_factor(mlp)} by the MLPs and ×\u00a0{_factor(norm)} by the norms behind "
            f"them, over all layers"
        )
    return (
        f"; squared distances change ×\u00a0{_factor(attention)} by attention and "
        f"×\u00a0{_factor(mlp)} by the MLPs over all layers, growth that the norm in front of each "
        "block takes out again"
    )


def _total(layers: Sequence[LayerTrace], part: str) -> float:
    return sum(getattr(layer, part).measured_log_change for layer in layers)


def _factor(log_change: float) -> str:
    """Write exp of a number, which may be too large for one.

    >>> _factor(0.0), _factor(2000.0)
    ('1', 'e^2000')
    """
    return f"{math.exp(log_change):.3g}" if abs(log_change) < 30 else f"e^{log_change:.0f}"


def _named(numbers: Sequence[int]) -> str:
    """Write 0, 1, 2, 5 as "layers 0–2, 5"."""
    text = number_ranges(numbers, dash="–")
    return f"layer {text}" if len(numbers) == 1 else f"layers {text}"


def prediction_sentences(trace: Trace) -> list[str]:
    """Return how well predictions agree with measurements; nothing where that is not known."""
    report = trace.agreement
    if report.sign is None:
        return []
    where = (
        "on contexts they were not fitted on" if report.held_out else "on the fitted text itself"
    )
    text = f"{_kind(report.closure)} of raw distances ({report.closure}), {where}: "
    text += f"{report.sign:.0%} of signs right"
    if report.pearson is not None:
        text += f", correlation {report.pearson:.2f} over layers"
    heads = report.per_closure[report.closure].heads.pearson
    return [text + (f" and {heads:.2f} over heads." if heads is not None else ".")]


def _kind(closure: str) -> str:
    """Name what a closure gives: the exact layer on real tokens drawn anew predicts nothing."""
    return "Resampled measurements" if closure in RESAMPLED else "Predictions"


def direction_prediction_sentence(trace: Trace) -> list[str]:
    """Say how well a closure predicts what heads do to directions, beside guess and ceiling."""
    report = trace.direction_agreement
    heads = report.per_closure[DEFAULT_CLOSURE].heads.pearson
    ceiling = report.per_closure["itself"].heads.pearson
    clear = report.per_closure[DEFAULT_CLOSURE].clear_heads
    if heads is None or ceiling is None or not trace.agreement.held_out:
        return []
    signs = ""
    if clear.sign is not None and report.majority_sign is not None:
        signs = (
            f"; {clear.sign:.0%} of the signs of {clear.n} clear heads are right (always the "
            f"commoner one: {report.majority_sign:.0%})"
        )
    return [
        f"What heads do to directions was predicted ({DEFAULT_CLOSURE}) with correlation "
        f"{heads:.2f} on contexts that were not fitted on, where the same measurement on other "
        f"contexts reaches {ceiling:.2f}{signs}."
    ]


def trace_summary(trace: Trace) -> str:
    """Return directions, distances and predictions in a paragraph, then mechanisms, a line each."""
    first = " ".join(
        [
            *direction_sentences(trace.layers),
            *direction_prediction_sentence(trace),
            *depth_sentences(trace.layers),
            *prediction_sentences(trace),
        ]
    )
    return first if trace.mechanisms is None else f"{first}\n{trace.mechanisms.summary()}"
