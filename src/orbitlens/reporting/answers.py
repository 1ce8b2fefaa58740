"""Three questions about a model, answered by rules: the verdicts of a report's first screen.

Enters: the results of a model. Leaves: `Answer`s: a word or two, the numbers behind it, and how
sure it is, with the reason. What was not computed is answered "not asked", with the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from orbitlens.order.audit_result import Audit, Verdict
from orbitlens.order.words import unit_of
from orbitlens.reporting.data import ModelReport
from orbitlens.reporting.motion import PARTS, STILL, Motion, motions, percent
from orbitlens.tracing.trace_result import DEFAULT_CLOSURE, Trace

NOT_ASKED = "Not asked"
GOOD_PEARSON, GOOD_SIGNS = 0.9, 0.95  # from which on heads count as predicted
SOME_PEARSON = 0.5  # from which on they count as predicted in part
GOOD_CEILING, FAIR_CEILING = 0.9, 0.7  # correlation of the measurement with itself
FEW_HEADS = 20  # below which a correlation over heads says little
REPEATED = 0.8  # share of layers whose sign shows again, from which on that is fair
NARROW = 0.5  # width of a 95 % interval over its value, up to which a number is known well
HIGH, FAIR, LOW = "high", "fair", "low"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A verdict: what was asked, the answer, why, and how sure that is."""

    key: str
    question: str
    answer: str
    text: str
    sure: str = ""  # "high", "fair", "low"; empty where nothing was asked
    why_sure: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)  # that a small picture shows


def three_answers(model: ModelReport) -> list[Answer]:
    """Return the verdicts: what moves tokens, does order matter, can it be predicted."""
    return [_moves(model), _order(model), _predicted(model)]


# --- what moves tokens -------------------------------------------------------------------------


def _moves(model: ModelReport) -> Answer:
    question, trace = "What moves tokens?", model.trace
    if trace is None:
        return _not_asked("moves", question, model.why("trace", "model"))
    last = motions(trace)[-1]
    totals = last.totals
    most = max(totals, key=lambda part: abs(totals[part]))
    name = PARTS[most][0].upper() + PARTS[most][1:]
    where = f" of the {last.stack}" if len(trace.model.stacks) > 1 else ""
    sure, why = _repeats(trace)
    return Answer(
        key="moves",
        question=question,
        answer=f"{name}{where}" if abs(totals[most]) > STILL else "Hardly anything",
        text=f"Single steps, by size: {_steps(last)}.",
        sure=sure,
        why_sure=why,
        numbers={**{PARTS[part]: total for part, total in totals.items()}, "net": last.net},
    )


def _steps(motion: Motion) -> str:
    """Say how much of all changes each part makes, without regard to their signs."""
    sizes = {part: _moved(motion, part) for part in motion.totals}
    whole = sum(sizes.values()) or 1.0
    return ", ".join(f"{PARTS[part]} {percent(size / whole)}" for part, size in sizes.items())


def _moved(motion: Motion, part: str) -> float:
    return sum(abs(step.change) for step in motion.steps if step.part == part)


def _repeats(trace: Trace) -> tuple[str, str]:
    """Return how sure the signs of attention's changes are: whether another half shows them."""
    if not trace.agreement.held_out:
        return LOW, "one context only"
    clear = [layer.directions for layer in trace.layers if abs(layer.directions.judged) > STILL]
    if not clear:
        return LOW, "attention hardly changes directions in any layer"
    same = sum(here.judged * here.predicted["itself"] > 0 for here in clear)
    level = HIGH if same == len(clear) else FAIR if same >= REPEATED * len(clear) else LOW
    return level, (
        f"attention's sign repeats on the other half of the text in {same} of {len(clear)} layers "
        "that it clearly changes"
    )


# --- does order matter -------------------------------------------------------------------------


def _order(model: ModelReport) -> Answer:
    question, audit = "Does order matter?", model.audit
    if audit is None:
        return _not_asked("order", question, model.why("audit", "model"))
    cell = audit.cells.get(audit.model.own_cell)
    if cell is None:
        return _not_asked("order", question, audit.summary())
    sure, why = _known(audit, cell.low, cell.high)
    return Answer(
        key="order",
        question=question,
        answer=f"{_yes(audit)}: {audit.sensitivity:.3g} {unit_of(audit)}",
        text=audit.summary(),
        sure=sure,
        why_sure=why,
    )


def _yes(audit: Audit) -> str:
    return "Yes" if audit.verdict is Verdict.ORDERED else "No"


def _known(audit: Audit, low: float, high: float) -> tuple[str, str]:
    interval = f"95 % interval {low:.3g} to {high:.3g}"
    if audit.settings.source in {"random", "noise"}:
        return LOW, f"inputs are random; {interval}"
    value = audit.sensitivity
    narrow = value > 0 and (high - low) / value <= NARROW
    return HIGH if narrow or audit.verdict is not Verdict.ORDERED else FAIR, interval


# --- can it be predicted -----------------------------------------------------------------------


def _predicted(model: ModelReport) -> Answer:
    question, trace = "Can it be predicted?", model.trace
    if trace is None:
        return _not_asked("predicted", question, model.why("trace", "model"))
    report = trace.direction_agreement
    own = report.per_closure[DEFAULT_CLOSURE]
    ceiling = report.per_closure["itself"].heads.pearson
    if own.heads.pearson is None:
        return _not_asked("predicted", question, "too few heads for a correlation")
    numbers = {"size alone": report.by_size, "predicted": own.heads.pearson, "ceiling": ceiling}
    signs = ""
    if own.clear_heads.sign is not None and report.majority_sign is not None:
        signs = (
            f" Sign right in {percent(own.clear_heads.sign)} of {own.clear_heads.n} clear heads; "
            f"always the commoner one: {percent(report.majority_sign)}."
        )
    sure, why = _repeatable(trace, ceiling, own.heads.n)
    return Answer(
        key="predicted",
        question=question,
        answer=f"{_how_well(own.heads.pearson, own.clear_heads.sign)}: r = {own.heads.pearson:.2f}",
        text=f"Over {own.heads.n} heads, by statistics of other text (“{DEFAULT_CLOSURE}”).{signs}",
        sure=sure,
        why_sure=why,
        numbers={name: value for name, value in numbers.items() if value is not None},
    )


def _how_well(pearson: float, signs: float | None) -> str:
    if pearson >= GOOD_PEARSON and (signs is None or signs >= GOOD_SIGNS):
        return "Yes"
    return "In part" if pearson >= SOME_PEARSON else "No"


def _repeatable(trace: Trace, ceiling: float | None, n_heads: int) -> tuple[str, str]:
    if not trace.agreement.held_out:
        return LOW, "judged on the text it was fitted on"
    if ceiling is None:
        return LOW, "the measurement was not repeated"
    repeated = f"measured on two halves of the text, heads agree with r = {ceiling:.2f}"
    if n_heads < FEW_HEADS:
        return LOW, f"{n_heads} heads are few; {repeated}"
    return HIGH if ceiling >= GOOD_CEILING else FAIR if ceiling >= FAIR_CEILING else LOW, repeated


def _not_asked(key: str, question: str, why: str) -> Answer:
    return Answer(key=key, question=question, answer=NOT_ASKED, text=why)
