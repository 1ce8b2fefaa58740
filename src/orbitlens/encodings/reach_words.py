"""What a `Reach` says, in sentences: predicted, measured, and what to set."""

import json
from collections.abc import Iterator

from orbitlens.encodings.reach_result import FELT, Advice, Reach, ReachPoint

FAILS = 0.1  # nats a token from which a longer context is said to fail


def reach_sentences(reach: Reach) -> Iterator[str]:
    """Yield what is predicted, what was measured, what heads do, and the advice."""
    if reach.points:
        yield _predicted(reach)
    measured = _measured(reach)
    if measured:
        yield measured
    unfinished = reach.unfinished()
    if unfinished is not None:
        yield (
            f"{unfinished:.0%} of the mean square of scores is in planes that never complete a "
            f"turn within {reach.trained} tokens: further back they meet angles that no training "
            "text had."
        )
    if reach.heads:
        yield _sharpness(reach)
    if reach.order_distance is not None:
        yield _order(reach)
    if reach.advice is not None:
        yield advice_sentence(reach.advice, reach.trained)


def _predicted(reach: Reach) -> str:
    said = [point for point in reach.points if point.predicted is not None]
    if not said:
        return f"Nothing is predicted beyond the {reach.trained} tokens of its trained context."
    failing = [point for point in said if _value(point) > FAILS]
    last = said[-1]
    start = f"From texts of {reach.trained} tokens, its trained context, "
    if not failing:
        return (
            f"{start}it is predicted to hold up to {last.length} tokens: "
            f"{_value(last):+.2f} nats a token at {last.ratio:g} times the context."
        )
    first = failing[0]
    more = (
        f", {_value(last):+.2f} at {last.length} ({last.ratio:g} times)"
        if last is not first
        else ""
    )
    return (
        f"{start}it is predicted to fail beyond it: {_value(first):+.2f} nats a token at "
        f"{first.length} tokens ({first.ratio:g} times){more}."
    )


def _value(point: ReachPoint) -> float:
    assert point.predicted is not None
    return point.predicted


def _measured(reach: Reach) -> str:
    found = [point for point in reach.points if point.measured is not None]
    if not found:
        return ""
    numbers = ", ".join(f"{point.measured:+.2f} at {point.length}" for point in found)
    return f"Measured on {reach.n_long} long contexts, the same tokens lose {numbers}."


def _sharpness(reach: Reach) -> str:
    n = len(reach.heads)
    first, last = (sum(head.sharpness[k] for head in reach.heads) / n for k in (0, -1))
    beyond = sum(head.beyond for head in reach.heads) / n
    return (
        f"By T7 the mean sharpness of its {n} heads goes from {first:.2f} in {reach.lengths[0]} "
        f"tokens to {last:.2f} in {reach.lengths[-1]}, with {beyond:.0%} of attention further "
        "back than the trained context."
    )


def _order(reach: Reach) -> str:
    distance = reach.order_distance
    if not distance:
        return "No swap of two neighbours moves its predictions."
    return (
        f"A swap of two neighbours more than {distance} tokens back moves the prediction by less "
        f"than {FELT:.0%} of what the strongest does."
    )


def advice_sentence(advice: Advice, trained: int) -> str:
    """Return what to set for a longer context."""
    length = round(advice.ratio * trained)
    best, unchanged = advice.best, advice.unchanged
    if best.kind == "none":
        return (
            f"For {length} tokens no scaling is predicted to lose less than the encoding as it is."
        )
    gain = unchanged.predicted - best.predicted
    what = (
        f"set {json.dumps(advice.setting)}"
        if advice.setting is not None
        else f"{best.name} (this model's code has no setting for it)"
    )
    return f"For {length} tokens {what}: predicted to gain {gain:.2f} nats a token.{_rule(advice)}"


def _rule(advice: Advice) -> str:
    """Say what looking has gained over the rule that looks at nothing."""
    rule = advice.rule
    if rule is None:
        return ""
    if rule.name == advice.chosen:
        return " That is YaRN with the factor asked for, which needs no look at the model."
    gain = advice.unchanged.predicted - rule.predicted
    return (
        f" YaRN with the factor asked for, which needs no look at the model, is predicted to gain "
        f"{gain:.2f}; where both were measured they came out alike (docs/reach.md)."
    )
