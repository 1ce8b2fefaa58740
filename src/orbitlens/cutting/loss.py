"""What a cut costs: a loss for every context, of the kind that a model's class has.

Enters: a model and batches. Leaves: losses of each context. A decoder has the cross-entropy of the
next token; a model that fills masks that of masked tokens; a classifier, for want of labels, the
divergence of its classes from those of the whole model; an encoder without a head the distance of
its mean last state from that of the whole model. The last two are 0 for the whole model.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from orbitlens.order.asked import Asked, usual_question
from orbitlens.order.questions import mask_of, refuse_senseless
from orbitlens.running.inputs import Batch
from orbitlens.running.model import Model
from orbitlens.running.special_tokens import special_tokens_of
from orbitlens.running.surprise import logits_of, next_token_losses, token_surprise

MASKED_SHARE = 0.15  # of the words of a context, at least one
PerContext = Float[Tensor, " _"]  # one number a context, of which batches may have any number


class LossKind(StrEnum):
    """What is measured."""

    NEXT = "cross-entropy of the next token, nats"
    MASKED = "cross-entropy of masked tokens, nats"
    CLASSES = "divergence of classes from the whole model's, nats"
    POOLED = "1 − cosine of the mean last state with the whole model's"

    @property
    def unit(self) -> str:
        """What numbers of this kind are in."""
        return "1 − cosine" if self is LossKind.POOLED else "nats"

    @property
    def is_distance(self) -> bool:
        """Whether it is 0 for the whole model, whatever its quality."""
        return self in {LossKind.CLASSES, LossKind.POOLED}


OF_QUESTION = {
    Asked.NEXT: LossKind.NEXT,
    Asked.UNMASKED: LossKind.MASKED,
    Asked.CLASS: LossKind.CLASSES,
    Asked.STATE: LossKind.POOLED,
    Asked.CLASS_STATE: LossKind.POOLED,
}


def loss_kind(model: Model) -> LossKind:
    """Return the kind of loss that a model's class has.

    Raises:
        InputError: it makes no prediction that could get worse.
    """
    refuse_senseless(model.name, type(model.module).__name__)
    return OF_QUESTION[usual_question(model.module, model.feed)]


@dataclass(frozen=True, kw_only=True)
class Task:
    """Contexts as a model is given them, and what is asked of it there."""

    batch: Batch
    labels: Int[Tensor, "batch tokens"] | None = None  # of masked tokens
    asked: Bool[Tensor, "batch tokens"] | None = None  # where they are

    @property
    def n_contexts(self) -> int:
        """Number of contexts."""
        return len(next(iter(self.batch.values())))

    def part(self, first: int, end: int) -> "Task":
        """Return some of the contexts."""
        return Task(
            batch={name: value[first:end] for name, value in self.batch.items()},
            labels=None if self.labels is None else self.labels[first:end],
            asked=None if self.asked is None else self.asked[first:end],
        )


def tasks(model: Model, batches: Iterable[Batch], kind: LossKind, *, seed: int) -> Iterator[Task]:
    """Yield batches, with words hidden where the model is to fill them in."""
    generator = torch.Generator().manual_seed(seed)
    if kind is not LossKind.MASKED:
        yield from (Task(batch=batch) for batch in batches)
        return
    mask, special = mask_of(model), special_tokens_of(model)
    known = torch.tensor(sorted(special.named | special.by_config))
    for batch in batches:
        ids = batch["input_ids"]
        draw = torch.rand(ids.shape, generator=generator)
        draw[torch.isin(ids, known)] = 2.0  # a special token is never asked for
        n_asked = max(1, round(MASKED_SHARE * ids.shape[1]))
        asked = draw <= draw.kthvalue(n_asked, dim=1, keepdim=True).values.clamp(max=1.0)
        hidden = batch | {"input_ids": ids.masked_fill(asked, mask)}
        yield Task(batch=hidden, labels=ids, asked=asked)


def losses(kind: LossKind, output: Any, task: Task, whole: Any) -> PerContext:  # noqa: ANN401
    """Return the loss of each context; `whole` is the output of the whole model.

    Raises:
        InputError: the output holds no prediction of this kind.
    """
    if kind is LossKind.POOLED:
        mean, whole_mean = (_states(each).double().mean(dim=1) for each in (output, whole))
        return 1 - functional.cosine_similarity(mean, whole_mean, dim=-1).cpu()
    logits = logits_of(output)
    if kind is LossKind.CLASSES:
        target = logits_of(whole).double().log_softmax(-1)
        found = logits.double().log_softmax(-1)
        rows = functional.kl_div(found, target, log_target=True, reduction="none")
        return rows.sum(-1).cpu()
    if kind is LossKind.NEXT:
        return next_token_losses(logits, task.batch["input_ids"]).mean(dim=1).cpu()
    assert task.labels is not None
    assert task.asked is not None
    asked = task.asked.to(logits.device)
    rows = token_surprise(logits, task.labels) * asked
    return (rows.sum(dim=1) / asked.sum(dim=1)).cpu()


def _states(output: Any) -> Tensor:  # noqa: ANN401
    found: Tensor = output.last_hidden_state
    return found
