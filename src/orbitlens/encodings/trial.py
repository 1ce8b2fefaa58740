"""Loss on a text under each hypothesis: what confirms, or refutes, what the weights say.

Enters: a model that predicts next tokens, contexts, changes. Leaves: a `HypothesisTrial` each: nats
a token, and the difference to the model as it is loaded with its standard error over contexts,
which are the same for all. A change that cannot be made is kept with the reason.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.encodings.changes import Change, changed
from orbitlens.errors import InputError
from orbitlens.running.devices import input_device
from orbitlens.running.inputs import Batch
from orbitlens.running.model import Model
from orbitlens.running.surprise import logits_of, next_token_losses

CERTAIN = 4.0  # standard errors of a difference
LEAST = 0.002  # nats a token: smaller differences are no broken conversion


@dataclass(frozen=True, kw_only=True)
class HypothesisTrial:
    """The loss of one hypothesis."""

    name: str
    loss: float | None  # nats a token; None where it could not be run
    difference: float | None  # to the model as loaded: negative is better
    deviation: float | None  # standard error of the difference, over contexts
    base: float | None = None  # of the rotation, where it is what was changed
    note: str = ""

    @property
    def is_better(self) -> bool:
        """Whether it is better than the model as loaded, beyond chance."""
        return self._beyond_chance(-1.0)

    @property
    def is_worse(self) -> bool:
        """Whether it is worse than the model as loaded, beyond chance."""
        return self._beyond_chance(1.0)

    def _beyond_chance(self, sign: float) -> bool:
        if self.difference is None or self.deviation is None:
            return False
        return sign * self.difference > max(LEAST, CERTAIN * self.deviation)


AS_LOADED = "as loaded"


def trials(
    model: Model, batches: Sequence[Batch], changes: Sequence[Change]
) -> tuple[HypothesisTrial, ...]:
    """Return the loss of the model as it is loaded, then under each change."""
    with model.evaluating():
        base = losses(model, batches)
        rows = [
            HypothesisTrial(name=AS_LOADED, loss=float(base.mean()), difference=0.0, deviation=0.0)
        ]
        rows += [_trial(model, batches, change, base) for change in changes]
    return tuple(rows)


def _trial(
    model: Model, batches: Sequence[Batch], change: Change, base: Float[Tensor, " context"]
) -> HypothesisTrial:
    try:
        with changed(model, change):
            measured = losses(model, batches)
    except InputError as refusal:
        return HypothesisTrial(
            name=change.name,
            loss=None,
            difference=None,
            deviation=None,
            base=change.base,
            note=str(refusal),
        )
    gap = measured - base
    error = float(gap.std()) / math.sqrt(len(gap)) if len(gap) > 1 else math.inf
    return HypothesisTrial(
        name=change.name,
        loss=float(measured.mean()),
        difference=float(gap.mean()),
        deviation=error if math.isfinite(error) else None,
        base=change.base,
    )


def losses(model: Model, batches: Sequence[Batch]) -> Float[Tensor, " context"]:
    """Return the loss of each context, in nats a token.

    Raises:
        InputError: the module predicts no next tokens.
    """
    found = []
    device = input_device(model.module)
    for batch in batches:
        ids = batch["input_ids"].to(device)
        logits = logits_of(model.module(input_ids=ids, use_cache=False))
        if logits.shape[:2] != ids.shape:
            raise InputError(
                f"{model.name}: this model returns no logits for next tokens, so that no loss "
                "can be measured. Give one with a language head."
            )
        found.append(next_token_losses(logits, ids).mean(dim=1).cpu())
    return torch.cat(found)
