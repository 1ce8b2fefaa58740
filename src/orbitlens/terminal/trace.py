"""Trace -> what a terminal shows: a summary in words, a table of layers, sparklines over depth.

Enters: a `Trace`. Leaves: Rich renderables that fit 80 columns.
"""

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from orbitlens.terminal.colours import sign_style
from orbitlens.terminal.fitted_table import Column, FittedTable, text_column, view_width
from orbitlens.tracing.mechanism_result import THRESHOLDS, HeadMechanisms, Mechanisms
from orbitlens.tracing.trace_result import DEFAULT_CLOSURE, LayerTrace, Trace

BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = ".:-=+*#@"
MOST_HEADS = 40  # that a table shows one by one
MOST_OF_A_SCORE = 8
MOST_TOKENS = 32
COURSES = {
    "mean_squared_distance": "raw distance²",
    "mean_norm": "token norm",
    "attention_sharpness": "sharpness Σp²",
    "attention_sink": "largest sink",
}


def trace_view(trace: Trace, console: Console) -> Iterator[RenderableType]:
    """Yield the parts of a trace's report, top to bottom."""
    model = trace.model
    title = Text(model.family, style="bold")
    title.append(
        f"  {model.n_layers} layers × {model.n_heads} heads, width {model.d_model}; "
        f"{trace.n_tokens} tokens in {trace.n_contexts} contexts of up to {trace.context}\n",
        style="not bold",
    )
    yield title
    yield Padding(Text(trace.summary()), (0, 0, 1, 0))
    for stack in model.stacks:
        layers = [layer for layer in trace.layers if layer.stack == stack.name]
        if len(model.stacks) > 1:
            yield Text(stack.name, style="bold")
        yield _directions_table(layers)
        yield _table(layers)
        yield _courses(layers, console)
    if trace.twin is not None:
        yield Text(_twin_line(trace), style="not bold")
    if trace.tokens:
        yield Padding(_token_table(trace, console), (0, 0, 1, 0))
    if trace.mechanisms is not None:
        yield from mechanisms_view(trace.mechanisms)
    for flag in (*trace.flags, *_massive(trace)):
        yield Text(f"note: {flag}")
    check = trace.self_check
    yield Text(
        f"hooks moved the output by {check.max_logit_difference:.1g}; heads sum to attention to "
        f"{check.max_head_sum_error:.0e}; {check.dtype}; {trace.cost.seconds:.1f} s",
        style="dim",
    )


def mechanisms_view(found: Mechanisms) -> Iterator[RenderableType]:
    """Yield the table of the scores of heads; the summary of the trace says them in words."""
    yield Text("mechanisms", style="bold")
    shown = _shown_heads(found)
    yield Padding(_scores_table(shown), (0, 0, 1, 0))
    if len(shown) < len(found.heads):
        yield Text(
            f"{len(shown)} of {len(found.heads)} heads: the best {MOST_OF_A_SCORE} of each score; "
            "--json has all.",
            style="dim",
        )
    for score, why in found.reasons.items():
        yield Text(f"note: {score}: {why}")


def _shown_heads(found: Mechanisms) -> list[HeadMechanisms]:
    """Return all heads of a small model; of a large one, those that lead in some score."""
    if len(found.heads) <= MOST_HEADS:
        return list(found.heads)
    chosen: set[str] = set()
    for score in THRESHOLDS:
        ranked = [head for head in found.heads if getattr(head, score) is not None]
        ranked.sort(key=lambda head: -getattr(head, score))
        chosen |= {head.name for head in ranked[:MOST_OF_A_SCORE]}
    return [head for head in found.heads if head.name in chosen]


def _scores_table(heads: Sequence[HeadMechanisms]) -> FittedTable:
    """Return one row a head: each score, and the twin's beside it."""
    columns = [text_column("head", wraps=False)]
    for name in ("induction", "in front", "saturation", "margin"):
        columns += [Column(name), Column("twin", style="dim")]
    rows = []
    for head in heads:
        cells = [head.name]
        for score in THRESHOLDS:
            digits = 1 if score == "margin" else 2
            cells += [_score(getattr(one, score), digits) for one in (head, head.twin)]
        rows.append(cells)
    return FittedTable(columns, rows)


def _score(value: float | None, digits: int) -> str:
    # + 0.0 turns the -0.0 that rounding leaves into 0.0
    return "–" if value is None else f"{round(value, digits) + 0.0:.{digits}f}"


def sparkline(values: Sequence[float], bars: str = BARS) -> str:
    """Draw numbers as bars between their least and their greatest.

    >>> sparkline([0.0, 1.0, 2.0])
    '▁▅█'
    """
    low, high = min(values), max(values)
    size = (high - low) or 1.0
    return "".join(bars[round((v - low) / size * (len(bars) - 1))] for v in values)


def _directions_table(layers: Sequence[LayerTrace]) -> FittedTable:
    names = ("layer", "C", "attention", "predicted", "MLP", "norm", "C after", "strongest head")
    rows = []
    for layer in layers:
        here = layer.directions
        head, change = max(enumerate(h.share for h in here.heads), key=lambda pair: abs(pair[1]))
        rows.append([
            Text(str(layer.layer)),
            Text(f"{here.cosine_before:.3f}"),
            _change(here.attention),
            _change(here.predicted[DEFAULT_CLOSURE]),
            _change(here.mlp),
            _change(here.norm),
            Text(f"{here.cosine_after:.3f}"),
            Text(f"{head}: {change:+.3f}"),
        ])  # fmt: skip
    title = "directions: mean cosine C, and changes of ln(1 − C): below 0 they gather"
    return FittedTable([Column(name) for name in names], rows, title)


def _table(layers: Sequence[LayerTrace]) -> FittedTable:
    names = ("layer", "attention", "predicted", "simulated", "MLP", "norm", "Σp²", "predicted")
    rows = []
    for layer in layers:
        attention, n = layer.attention, len(layer.heads)
        rows.append([
            Text(str(layer.layer)),
            _change(attention.measured_log_change),
            _change(attention.predicted_log_change),
            _change(attention.simulated_log_change),
            _change(layer.mlp.measured_log_change),
            _change(layer.norm.measured_log_change),
            Text(f"{sum(head.sharpness for head in layer.heads) / n:.2f}"),
            Text(f"{sum(head.predicted_sharpness for head in layer.heads) / n:.2f}"),
        ])  # fmt: skip
    title = "raw distances: ln of the change of squared pair distance"
    return FittedTable([Column(name) for name in names], rows, title)


def _change(value: float) -> Text:
    return Text(f"{value:+.3f}", style=sign_style(value))


def _massive(trace: Trace) -> Iterator[str]:
    """Say where tokens are far longer than the rest, from which layer on."""
    for stack in trace.model.stacks:
        layers = [layer for layer in trace.layers if layer.stack == stack.name]
        here = [(layer.layer, layer.directions.massive[0]) for layer in layers
                if layer.directions.massive]  # fmt: skip
        if here:
            first, token = here[0]
            longest = max(one.ratio for _, one in here)
            yield (
                f"the token at position {token.position} is massive from layer {first} on: up to "
                f"{longest:.0f} times as long as the median of its context; raw distances are "
                "mostly its own"
            )


def _token_table(trace: Trace, console: Console) -> FittedTable:
    """Return a row for each token of the first context, the most unlike the others first."""
    bars = _bars(console)
    rows = []
    for token in sorted(trace.tokens, key=lambda one: one.cosines[-1])[:MOST_TOKENS]:
        rows.append([
            Text(str(token.position)),
            Text(repr(token.name)),
            Text(f"{token.cosines[0]:.3f}"),
            Text(sparkline(token.cosines, bars)),
            Text(f"{token.cosines[-1]:.3f}"),
            Text(f"{max(token.lengths):.1f}"),
        ])  # fmt: skip
    names = ("position", "token", "C", "over depth", "C after", "longest")
    shown = f"{len(rows)} of {len(trace.tokens)} tokens" if len(rows) < len(trace.tokens) else ""
    title = "tokens of the first context: mean cosine with the others; length over the median"
    columns = [text_column(n, wraps=False) if n == "token" else Column(n) for n in names]
    return FittedTable(columns, rows, title + (f" ({shown}; --json has all)" if shown else ""))


def _bars(console: Console) -> str:
    return BARS if (console.encoding or "").lower().startswith("utf") else ASCII_BARS


def _courses(layers: Sequence[LayerTrace], console: Console) -> Padding:
    bars = _bars(console)
    text = Text("over depth\n", style="bold")
    room = max(8, view_width(console) - 46)
    courses = {
        "rank of directions": [layer.directions.effective_rank for layer in layers],
        "clusters": [layer.directions.clusters for layer in layers],
    }
    courses |= {name: [one.metrics[key] for one in layers] for key, name in COURSES.items()}
    for name, values in courses.items():
        step = -(-len(values) // room)  # deeper models show every step-th layer
        text.append(
            f"{name:>18}  {sparkline(values[::step], bars)}  {values[0]:.3g} to {values[-1]:.3g}\n",
            style="not bold",
        )
    text.rstrip()
    return Padding(text, (1, 0, 1, 0))


def _twin_line(trace: Trace) -> str:
    assert trace.twin is not None
    pairs = zip(trace.layers, trace.twin.layers, strict=True)
    shown = ", ".join(
        f"{a.directions.attention:+.2f}/{b.directions.attention:+.2f}" for a, b in pairs
    )
    return f"change of ln(1 − C) by attention, trained/untrained twin, by layer: {shown}\n"
