"""An audit in words: what its parts are called, and a few sentences built from its numbers."""

from orbitlens.order.asked import Asked
from orbitlens.order.audit_result import Audit, Verdict
from orbitlens.order.divergence import Mean
from orbitlens.order.subject import Cell

ENCODINGS = {
    "none": "position encoding",
    "absolute": "absolute position encoding",
    "rotary": "rotary encoding",
    "alibi": "ALiBi",
    "t5-bias": "relative bias",
    "disentangled": "relative position terms",
}
PLACED = (Asked.MASKED, Asked.UNMASKED)  # questions that say little without their place


# --- names -----------------------------------------------------------------------------------


def unit_of(audit: Audit) -> str:
    """Return the unit of the order sensitivity."""
    return "bits" if audit.model.has_head else "relative change"


def cell_names(audit: Audit) -> dict[Cell, str]:
    """Return the cells that were compared, by what the model has in each of them."""
    name = ENCODINGS[audit.model.encoding] if audit.has_encoding else "no encoding"
    if audit.attends_in_full:
        names = {Cell.PE_FULL: name, Cell.NOPE_FULL: "without it"}
    else:
        names = {
            Cell.PE_CAUSAL: f"{name} and mask",
            Cell.PE_FULL: f"{name} alone",
            Cell.NOPE_CAUSAL: "mask alone",
            Cell.NOPE_FULL: "neither",
        }
    if not audit.has_encoding:  # what cannot be removed has no cell without it
        names = {cell: text for cell, text in names.items() if cell.encoding}
    return {cell: text for cell, text in names.items() if audit.cells.get(cell.value) is not None}


def square_of(audit: Audit) -> tuple[list[str], dict[str, list[Cell]]]:
    """Return the columns of the 2 x 2 and its rows: only mechanisms that the model has."""
    masks = {"causal mask": True, "full attention": False}
    if audit.attends_in_full:
        del masks["causal mask"]
    name = ENCODINGS[audit.model.encoding]
    rows = {f"with {name}": True, "without it": False}
    if not audit.has_encoding:
        rows = {"no position encoding": True}
    square = {
        row: [_cell(encoding=encoding, causal=causal) for causal in masks.values()]
        for row, encoding in rows.items()
    }
    return list(masks), square


def _cell(*, encoding: bool, causal: bool) -> Cell:
    return next(c for c in Cell if (c.encoding, c.causal) == (encoding, causal))


def percent(share: float, interval: tuple[float, float]) -> str:
    """Return a share with its interval; an end beyond 0 or 1 is said to be that.

    >>> percent(0.91, (0.884, 0.931)), percent(0.98, (0.93, 1.02))
    ('91 % (88 to 93)', '98 % (93 to over 100)')
    """
    low, high = interval
    start = "below 0" if low < -0.005 else f"{100 * abs(low):.0f}"
    end = "over 100" if high > 1.005 else f"{100 * high:.0f}"
    return f"{100 * share:.0f} % ({start} to {end})"


def question_of(audit: Audit) -> str:
    """Say what is asked of the model, and where."""
    places = audit.settings.places
    text = f"Asked for: {audit.settings.asked}"
    if audit.settings.asked not in PLACED or not places:
        return text
    if len(places) == 1:
        return f"{text}, at position {places[0]}"
    some = ", ".join(map(str, places[:-1]))
    return f"{text}, at positions {some} and {places[-1]} in turn"


# --- sentences -------------------------------------------------------------------------------


def audit_summary(audit: Audit) -> str:
    """Say in a few sentences what a model makes of order."""
    if audit.verdict is not Verdict.ORDERED:
        text = _blind(audit)
    else:
        horizon = _horizon(audit)
        text = f"{_shares(audit)}{'; ' + horizon if horizon else ''}."
    return f"{text} {question_of(audit)}."


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
        "The prediction does not depend on the order of the other tokens, on these inputs; that "
        "is measured, not proved."
    )


def _shares(audit: Audit) -> str:
    name, whole = ENCODINGS[audit.model.encoding], f"this model's sense of order ({_amount(audit)})"
    if audit.attends_in_full and audit.floor is not None:
        return (
            f"All of {whole} comes from the {name}, by construction: with full attention nothing "
            "else tells positions apart (S1)"
        )
    if audit.effects is None:
        return (
            f"Shuffling the other tokens moves the prediction by {_amount(audit)}; its mechanisms "
            "cannot be told apart"
        )
    if not audit.has_encoding:
        return f"All of {whole} comes from the causal mask; no position encoding acts"
    if audit.shapley is None:
        return _interaction(audit)
    encoding = percent(audit.shapley.encoding, audit.shapley.encoding_interval)
    mask = percent(audit.shapley.mask, audit.shapley.mask_interval)
    return f"{encoding} of {whole} comes from the {name}, {mask} from the causal mask"


def _interaction(audit: Audit) -> str:
    effects = audit.effects
    assert effects is not None
    name = ENCODINGS[audit.model.encoding]
    return (
        f"Shuffling the other tokens moves the prediction by {_amount(audit)}, less than one "
        f"mechanism alone would bring: {effects.encoding.mean:.2g} by the {name}, "
        f"{effects.mask.mean:.2g} by the causal mask. They work against each other (interaction "
        f"{interval(effects.interaction)}), so neither has a share of the whole"
    )


def interval(value: Mean) -> str:
    """Return a mean with the ends of its interval."""
    return f"{value.mean:.2g}, {value.low:.2g} to {value.high:.2g}"


def _amount(audit: Audit) -> str:
    if audit.model.has_head:
        return f"{audit.sensitivity:.3g} bits"
    return f"{100 * audit.sensitivity:.3g} % of the output"


def _horizon(audit: Audit) -> str:
    if audit.horizon is None:
        return ""
    if audit.horizon == 0:
        return "no single swap of neighbours moves the prediction much"
    where = "back"
    if len(audit.settings.places) > 1:
        middle = audit.settings.places[len(audit.settings.places) // 2]
        where = f"from the mask at position {middle}"
    return f"it can no longer tell swaps of neighbours apart beyond {audit.horizon} tokens {where}"
