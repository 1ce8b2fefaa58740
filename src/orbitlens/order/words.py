"""An audit in words: a sentence or two built from its numbers."""

from orbitlens.order.audit_result import Audit, Verdict, value_of
from orbitlens.order.checks import STILL
from orbitlens.order.subject import Cell

ENCODINGS = {
    "absolute": "absolute position encoding",
    "rotary": "rotary encoding",
    "alibi": "ALiBi",
    "t5-bias": "relative bias",
    "disentangled": "relative position terms",
}


def audit_summary(audit: Audit) -> str:
    """Say in a sentence or two what a model makes of order."""
    if audit.verdict is not Verdict.ORDERED:
        return _blind(audit)
    shares = _shares(audit)
    horizon = _horizon(audit)
    return f"{shares}{'; ' + horizon if horizon else ''}."


def _blind(audit: Audit) -> str:
    if audit.verdict is Verdict.INVARIANT:
        return (
            "This model is permutation-invariant: it attends in full and nothing in it tells "
            "positions apart (S1)."
        )
    if audit.verdict is Verdict.ONE_LAYER:
        return (
            "This model cannot tell orders apart: one causal layer without an encoding sees the "
            "earlier tokens as a set (S2)."
        )
    return (
        "The prediction does not depend on the order of the earlier tokens, on these inputs; that "
        "is measured, not proved."
    )


def _shares(audit: Audit) -> str:
    if audit.shapley is None:
        return (
            f"Shuffling earlier tokens moves the prediction by {_amount(audit)}; its mechanisms "
            "cannot be told apart"
        )
    if audit.mechanisms_cancel:
        return _cancelled(audit)
    name = ENCODINGS[audit.model.encoding]
    encoding, mask = 100 * audit.shapley.encoding, 100 * audit.shapley.mask
    if audit.encoding_effect is not None and audit.encoding_effect <= STILL:
        return (
            f"All of this model's sense of order ({_amount(audit)}) comes from the causal mask; "
            "no position encoding acts"
        )
    if audit.model.own_cell == Cell.PE_FULL:
        return f"All of this model's sense of order ({_amount(audit)}) comes from the {name}"
    text = (
        f"{encoding:.0f} % of this model's sense of order ({_amount(audit)}) comes from the "
        f"{name}, {mask:.0f} % from the causal mask"
    )
    if min(encoding, mask) < 0:
        text += " (a negative share: it lowers what the other brings)"
    return text


def _cancelled(audit: Audit) -> str:
    parts = {Cell.PE_FULL: "its mask", Cell.NOPE_CAUSAL: "its encoding"}
    values = {
        name: value_of(reading)
        for cell, name in parts.items()
        if (reading := audit.cells[cell.value]) is not None
    }
    name = max(values, key=lambda key: values[key])
    return (
        f"Shuffling earlier tokens moves the prediction by only {_amount(audit)}; without {name} "
        f"it would move by {values[name]:.2g}. What one mechanism tells about order the other "
        "undoes, so shares mean little"
    )


def _amount(audit: Audit) -> str:
    if audit.model.has_head:
        return f"{audit.sensitivity:.3g} bits"
    return f"{100 * audit.sensitivity:.3g} % of the output"


def _horizon(audit: Audit) -> str:
    if audit.model.kind == "image" or audit.horizon is None:
        return ""
    if audit.horizon == 0:
        return "no single swap of neighbours moves the prediction much"
    return f"it can no longer tell swaps of neighbours apart beyond {audit.horizon} tokens back"
