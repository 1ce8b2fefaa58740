"""A `Cut` -> what a report shows of it: the loss without each layer and each head.

Enters: a model and its inputs. Leaves: a `CutReport`. It costs passes, so that a report has it only
where it is asked for, and on few contexts; `orbitlens cut` measures on more.
"""

from dataclasses import dataclass

from orbitlens.cutting.api import cut
from orbitlens.cutting.cut_result import Cut
from orbitlens.cutting.loss import LossKind
from orbitlens.cutting.options import CutOptions
from orbitlens.reporting.material import Material
from orbitlens.running.removal import PartKind

MOST_TOKENS = 1024


@dataclass(frozen=True, kw_only=True)
class PartCost:
    """What a model loses without one layer, or one head of it."""

    layer: int
    head: int | None
    difference: float  # of the loss; positive is worse
    deviation: float | None  # standard error over contexts


@dataclass(frozen=True, kw_only=True)
class CutReport:
    """What a model loses without its parts, as a report has it."""

    loss_kind: LossKind
    whole_loss: float
    n_contexts: int
    layers: tuple[PartCost, ...]
    heads: tuple[PartCost, ...]
    sentences: str


def cut_report(given: Material, seed: int) -> CutReport:
    """Return the loss without each layer and each head.

    Raises:
        InputError: the model has two towers, or its text is too short.
    """
    options = CutOptions(
        kinds=(PartKind.LAYER, PartKind.HEAD),
        context=given.context,
        max_tokens=min(MOST_TOKENS, given.options.max_tokens),
        normalise=given.options.normalise,
        seed=seed,
    )
    return brief_cut(cut(given.model, given.inputs, options=options))


def brief_cut(found: Cut) -> CutReport:
    """Return the losses, and what is said of them."""
    layers, heads = (
        tuple(
            PartCost(
                layer=row.part.layer,
                head=row.part.head,
                difference=row.difference,
                deviation=row.deviation,
            )
            for row in found.of_kind(kind)
        )
        for kind in (PartKind.LAYER, PartKind.HEAD)
    )
    return CutReport(
        loss_kind=found.loss_kind,
        whole_loss=found.whole_loss,
        n_contexts=found.n_contexts,
        layers=layers,
        heads=heads,
        sentences=found.summary(),
    )
