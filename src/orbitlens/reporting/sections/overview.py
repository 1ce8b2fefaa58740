"""In words: numbers that matter, sentences, and all models of a report side by side."""

from collections.abc import Sequence

from orbitlens.draw.page import esc
from orbitlens.reporting.data import ModelReport
from orbitlens.reporting.markup import Table, Value, absent, note, number, table
from orbitlens.reporting.sections.order import own_value
from orbitlens.reporting.sections.section import Place
from orbitlens.scanning.scan_result import Orientation
from orbitlens.tracing.trace_result import Agreement, Trace

SUMMARY = (
    "model", "layers", "heads", "width", "position", "aligned", "opposed", "attention", "MLPs",
    "predicted, r", "order", "from encoding",
)  # fmt: skip


def overview_section(model: ModelReport, place: Place) -> str:
    """Return the numbers that matter, and the sentences."""
    shown = "".join(f"<li>{esc(text)}</li>" for text in model.words)
    listed = f'<ol class="words">{shown}</ol>' if shown else absent(model.why("scan"))
    return _tiles(model) + listed + "".join(note(_sentence(text)) for text in model.notes)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _tiles(model: ModelReport) -> str:
    tiles = "".join(
        f"<li><b>{esc(value)}</b><span>{esc(text)}</span>{bar}</li>"
        for value, text, bar in [*_head_tile(model), *_trace_tiles(model), *_order_tile(model)]
    )
    return f'<ul class="tiles">{tiles}</ul>' if tiles else ""


def _head_tile(model: ModelReport) -> list[tuple[str, str, str]]:
    if model.scan is None:
        return []
    aligned, opposed, n = orientations(model)
    text = f"{opposed} opposed, {aligned} aligned, {n - opposed - aligned} neutral maps"
    return [(f"{n} heads", text, _bar(opposed, n - opposed - aligned, aligned))]


def orientations(model: ModelReport) -> tuple[int, int, int]:
    """Return how many heads have aligned maps, how many opposed ones, and how many there are."""
    kinds = [head.orientation for head in model.own_heads()]
    return kinds.count(Orientation.ALIGNED), kinds.count(Orientation.OPPOSED), len(kinds)


def _bar(opposed: int, neutral: int, aligned: int) -> str:
    parts = (("gather", opposed), ("grid", neutral), ("spread", aligned))
    inside = "".join(f'<i style="flex:{n};background:var(--{tone})"></i>' for tone, n in parts if n)
    return f'<span class="mini" aria-hidden="true">{inside}</span>'


def _trace_tiles(model: ModelReport) -> list[tuple[str, str, str]]:
    if model.trace is None:
        return []
    change = number(_total(model.trace, "attention"), sign=True)
    score = _heads_agreement(model.trace)
    text = f"correlation of predicted and measured, {score.n} heads"
    return [
        (change, "ln change of squared distances by attention", ""),
        (number(score.pearson), text, ""),
    ]


def _heads_agreement(trace: Trace) -> Agreement:
    return trace.agreement.per_closure[trace.agreement.closure].heads


def _total(trace: Trace, part: str) -> float:
    return sum(getattr(layer, part).measured_log_change for layer in trace.layers)


def _order_tile(model: ModelReport) -> list[tuple[str, str, str]]:
    audit = model.audit
    if audit is None:
        return []
    unit = " bits" if audit.model.has_head else ""
    text = "order sensitivity"
    if audit.shapley is not None:
        text += f", {audit.shapley.encoding:.0%} from the encoding"
    return [(f"{number(own_value(audit))}{unit}", text, "")]


# --- side by side ------------------------------------------------------------------------------


def summary(models: Sequence[ModelReport]) -> Table:
    """Return one row a model, with the numbers that compare."""
    caption = (
        "Models side by side: heads with aligned and opposed maps (shared ones count once); "
        "sums over layers of the measured ln change of squared pair distance; correlation of "
        "prediction and measurement over heads; order sensitivity (bits, or relative change "
        "without a prediction head)"
    )
    rows = [_row(model) for model in models]
    return Table(name="models", caption=caption, columns=SUMMARY, rows=rows)


def summary_table(models: Sequence[ModelReport]) -> str:
    """Return that table as HTML."""
    return table(summary(models))


def _row(model: ModelReport) -> list[Value]:
    row: list[Value] = [model.name]
    if model.scan is None:
        row += [None] * 6
    else:
        info, (aligned, opposed, n) = model.scan.model, orientations(model)
        row += [info.n_layers, n, info.d_model, info.position.value, aligned, opposed]
    if model.trace is None:
        row += [None] * 3
    else:
        row += [_total(model.trace, part) for part in ("attention", "mlp")]
        row.append(_heads_agreement(model.trace).pearson)
    audit = model.audit
    row.append(own_value(audit) if audit else None)
    row.append(audit.shapley.encoding if audit and audit.shapley else None)
    return row
