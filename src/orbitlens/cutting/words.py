"""What a `Cut` says, in sentences: what can go, what cannot, and which cost nothing that shows."""

import math
from collections.abc import Iterator, Sequence

from orbitlens.cutting.cut_result import ChosenCut, Cut
from orbitlens.cutting.loss import LossKind
from orbitlens.cutting.measuring import PartLoss
from orbitlens.cutting.parts import KINDS
from orbitlens.encodings.words import ranges
from orbitlens.running.removal import PartKind

PLURALS = {
    PartKind.LAYER: "layers",
    PartKind.ATTENTION: "attention blocks",
    PartKind.MLP: "MLPs",
    PartKind.HEAD: "heads",
}
CLEAR = 3.0  # standard errors beyond which a difference is said to be one


def summary_sentences(result: Cut) -> Iterator[str]:
    """Yield the cut that was asked for, then what single parts cost."""
    if result.chosen is not None:
        yield from chosen_sentences(result, result.chosen)
    elif result.loss_kind.is_distance:
        yield f"Measured is {_name(result)}: 0 for the whole model."
    else:
        yield f"For the whole model {_name(result)} is {result.whole_loss:.2f} nats."
    for kind in KINDS:
        rows = result.of_kind(kind)
        if rows:
            yield kind_sentence(result, kind, rows)


def _name(result: Cut) -> str:
    named = result.loss_kind.value.removesuffix(", nats")
    return named if result.loss_kind is LossKind.POOLED else f"the {named}"


def chosen_sentences(result: Cut, chosen: ChosenCut) -> Iterator[str]:
    """Yield which layers go, and what that costs on contexts that did not choose them."""
    n_layers, named = result.model.n_layers, _layers(chosen.layers)
    error = "" if chosen.deviation is None else f" ± {chosen.deviation:.2g}"
    if result.loss_kind.is_distance:
        cost = f"{_name(result)} is {chosen.loss:.3g}{error}"
    else:
        cost = (
            f"{_name(result)} goes from {chosen.whole_loss:.2f} to {chosen.loss:.2f} nats "
            f"({chosen.difference:+.3f}{error})"
        )
    yield (
        f"Without {named} of {n_layers}, {cost} on {chosen.n_held_out} contexts that had no part "
        "in the choice."
    )
    if chosen.written_to is not None:
        them = "it" if len(chosen.layers) == 1 else "them"
        yield f"The model without {them} was written to {chosen.written_to}, and loses as much."


def kind_sentence(result: Cut, kind: PartKind, rows: Sequence[PartLoss]) -> str:
    """Return which of one kind costs least, which most, and how many cost nothing that shows."""
    if kind is PartKind.LAYER and result.shares_weights and _are_equal(rows):
        return (
            f"All {len(rows)} layers have one set of weights: whichever is taken out, the model is "
            f"the same ({rows[0].difference:+.3f})."
        )
    least, most = (choose(rows, key=lambda row: row.difference) for choose in (min, max))
    free = sum(is_free(row) for row in rows)
    if len(rows) == 1:
        return f"Without its only one of the {PLURALS[kind]} the loss is {least.difference:+.3f}."
    return (
        f"Of {len(rows)} {PLURALS[kind]} taken out one at a time, {least.part} costs least "
        f"({least.difference:+.3f}) and {most.part} most ({most.difference:+.3f}); {free} cost "
        "nothing that shows."
    )


def is_free(row: PartLoss) -> bool:
    """Say whether the loss without a part is not clearly higher."""
    if row.deviation is None:
        return row.difference <= 0
    return row.difference <= CLEAR * row.deviation


def _are_equal(rows: Sequence[PartLoss]) -> bool:
    return all(math.isclose(row.loss, rows[0].loss, rel_tol=1e-6) for row in rows)


def _layers(numbers: Sequence[int]) -> str:
    return f"{'layer' if len(numbers) == 1 else 'layers'} {ranges(numbers)}"
