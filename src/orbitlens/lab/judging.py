"""How good a trained model is, on examples it has not seen.

Enters: a model and its task. Leaves: a `Score`. All runs of a task are judged on the same examples,
so that differences between them are paired.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from orbitlens.lab.tasks import Batch, Split, Task, cut_at, judged_columns
from orbitlens.lab.tasks.base import NOT_JUDGED

MOST_COLUMNS = 8  # positions of a text that a full mask is judged at; each costs a run


@dataclass(frozen=True, kw_only=True)
class Score:
    """The result of judging: loss in nats, and shares of answers and of tokens that are right."""

    loss: float
    accuracy: float
    token_accuracy: float


class _Sums:
    """Counts over batches."""

    def __init__(self) -> None:
        self.loss, self.right, self.tokens, self.whole, self.examples = 0.0, 0, 0, 0, 0

    def add(self, loss: float, right: Bool[Tensor, "batch judged"]) -> None:
        """Count a batch: its mean loss, and which tokens were right."""
        self.loss += loss * right.numel()
        self.right += int(right.sum())
        self.tokens += right.numel()
        self.whole += int(right.all(dim=1).sum())
        self.examples += right.shape[0]

    def score(self, by_token: bool) -> Score:
        """Return the means."""
        by_tokens = self.right / self.tokens
        return Score(
            loss=self.loss / self.tokens,
            accuracy=by_tokens if by_token else self.whole / self.examples,
            token_accuracy=by_tokens,
        )


@torch.no_grad()
def judge(model: Any, task: Task, *, split: Split, n_examples: int, batch: int) -> Score:  # noqa: ANN401
    """Judge a model on held-out examples, each token given the right ones before it.

    An answer counts when all its tokens are right, which is when a model that writes it by itself,
    the likeliest token at a time, writes it without a mistake. With a full mask each token is
    predicted at the last position of an input that ends before it.
    """
    sums = _Sums()
    available = task.n_examples(split)
    wanted = n_examples if available is None else min(n_examples, available)
    is_training, device = model.training, model.device
    model.eval()
    for number in range(math.ceil(wanted / batch)):
        size = min(batch, wanted)
        examples = task.batch(split, number, size, 0)
        examples = _first(examples, min(size, wanted - number * size))
        if task.kind == "images":
            out = model(pixel_values=examples.inputs.to(device), labels=examples.targets.to(device))
            right = out.logits.argmax(dim=-1).cpu() == examples.targets
            sums.add(out.loss.item(), right[:, None])
        elif model.config.mask == "full":
            _judge_cuts(model, examples, sums)
        else:
            loss, right = _judge_tokens(model, examples)
            sums.add(loss, right)
    model.train(is_training)
    return sums.score(task.by_token)


def _first(batch: Batch, n: int) -> Batch:
    return Batch(inputs=batch.inputs[:n], targets=batch.targets[:n])


def _judge_tokens(model: Any, batch: Batch) -> tuple[float, Bool[Tensor, "batch judged"]]:  # noqa: ANN401
    device = model.device
    out = model(input_ids=batch.inputs.to(device), targets=batch.targets.to(device))
    wanted = batch.targets[batch.targets != NOT_JUDGED]
    right = out.logits.argmax(dim=-1).cpu() == wanted
    return out.loss.item(), right.view(batch.targets.shape[0], -1)


def _judge_cuts(model: Any, batch: Batch, sums: _Sums) -> None:  # noqa: ANN401
    cuts = [_judge_tokens(model, cut_at(batch, column)) for column in full_columns(batch.targets)]
    losses, right = zip(*cuts, strict=True)
    sums.add(sum(losses) / len(losses), torch.cat(right, dim=1))


def full_columns(targets: Int[Tensor, "batch tokens"]) -> list[int]:
    """Return the positions that a full mask is judged at: all of an answer, some of a text."""
    columns = judged_columns(targets)
    if len(columns) <= MOST_COLUMNS:
        return columns
    n = len(columns)
    return [columns[(k + 1) * n // MOST_COLUMNS - 1] for k in range(MOST_COLUMNS)]
