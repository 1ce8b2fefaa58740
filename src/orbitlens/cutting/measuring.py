"""Losses without parts of a model: each part by itself, and layers one after the other.

Enters: a `Trunk` and tasks. Leaves: losses of every context, whole and without each part, which
are compared context by context. Batches are done one after the other, so that memory holds the
states of one batch.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from orbitlens.cutting.loss import LossKind, PerContext, Task, losses
from orbitlens.cutting.parts import Trunk
from orbitlens.running.removal import Part, PartKind

Progress = Callable[[int, int | None], None]
SURE = 3.0  # standard errors by which a layer is clearly no candidate
FEWEST = 4  # contexts before anything is dropped


@dataclass(frozen=True, kw_only=True)
class Exam:
    """A model, contexts, and what is asked of it there."""

    trunk: Trunk
    tasks: Sequence[Task]
    kind: LossKind


@dataclass(frozen=True, kw_only=True)
class PartLoss:
    """The loss without one part."""

    part: Part
    loss: float
    difference: float  # to the model without the layers that were out already: positive is worse
    deviation: float | None  # standard error of the difference over contexts
    n_contexts: int


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The loss of the model that parts are taken out of."""

    by_context: PerContext

    @property
    def loss(self) -> float:
        """Mean over contexts."""
        return float(self.by_context.mean())


def without_each(
    exam: Exam,
    parts: Sequence[Part],
    *,
    removed: frozenset[int] = frozenset(),
    keep_best: int | None = None,
    progress: Progress | None = None,
) -> tuple[Baseline, list[PartLoss]]:
    """Return the loss of a model, and without each of some parts beside.

    With `keep_best`, a part is measured no further once it is clearly not among that many whose
    absence costs least; its row says on how many contexts it was measured.
    """
    base: list[PerContext] = []
    found: dict[Part, list[PerContext]] = {part: [] for part in parts}
    left, trunk, kind = list(parts), exam.trunk, exam.kind
    with trunk.ready():
        for number, task in enumerate(exam.tasks):
            whole, states = trunk.states(task.batch)
            output = whole
            if removed:
                output, states = trunk.states(task.batch, removed)
            base.append(losses(kind, output, task, whole))
            for part in left:
                cut = trunk.without(task.batch, part, states, removed)
                found[part].append(losses(kind, cut, task, whole))
            if keep_best is not None:
                left = _still_likely(left, found, keep_best)
            if progress is not None:
                progress(number + 1, len(exam.tasks))
    return Baseline(by_context=torch.cat(base)), [_row(part, base, found[part]) for part in parts]


def loss_without(exam: Exam, removed: frozenset[int]) -> PerContext:
    """Return the loss of each context without some layers."""
    found, trunk = [], exam.trunk
    with trunk.ready():
        for task in exam.tasks:
            whole, _ = trunk.states(task.batch)
            cut = trunk.states(task.batch, removed)[0] if removed else whole
            found.append(losses(exam.kind, cut, task, whole))
    return torch.cat(found)


def greedy(
    exam: Exam,
    n_cut: int,
    *,
    drop_losers: bool = False,
    first: Sequence[PartLoss] = (),
    progress: Progress | None = None,
) -> list[PartLoss]:
    """Return layers in the order in which they are taken out: each time the one that costs least.

    Layers that share their weights cost the same wherever they are; of these the last is taken.
    `first` are losses without each layer, where they were measured already.
    """
    removed: frozenset[int] = frozenset()
    steps: list[PartLoss] = []
    rows = sorted(first, key=lambda row: -row.part.layer)
    for _ in range(n_cut):
        if not rows:
            left = [layer for layer in reversed(range(exam.trunk.n_layers)) if layer not in removed]
            parts = [Part(kind=PartKind.LAYER, layer=layer) for layer in left]
            keep = 1 if drop_losers else None
            _, rows = without_each(exam, parts, removed=removed, keep_best=keep)
        most = max(row.n_contexts for row in rows)
        best = min((row for row in rows if row.n_contexts == most), key=lambda row: row.loss)
        rows = []
        steps.append(best)
        removed |= {best.part.layer}
        if progress is not None:
            progress(len(steps), n_cut)
    return steps


def _row(part: Part, base: Sequence[PerContext], found: Sequence[PerContext]) -> PartLoss:
    measured = torch.cat(list(found))
    gap = measured - torch.cat(list(base))[: len(measured)]
    return PartLoss(
        part=part,
        loss=float(measured.mean()),
        difference=float(gap.mean()),
        deviation=float(gap.std()) / math.sqrt(len(gap)) if len(gap) > 1 else None,
        n_contexts=len(gap),
    )


def _still_likely(
    left: list[Part], found: dict[Part, list[PerContext]], keep_best: int
) -> list[Part]:
    """Return the parts that may still be among the `keep_best` whose absence costs least.

    Two parts are compared on the same contexts: by the error of the difference between them.
    """
    if sum(map(len, found[left[0]])) < FEWEST or len(left) <= keep_best:
        return left
    measured = {part: torch.cat(found[part]) for part in left}
    ranked = sorted(left, key=lambda part: float(measured[part].mean()))
    worst = measured[ranked[keep_best - 1]]

    def is_likely(part: Part) -> bool:
        gap = measured[part] - worst
        return float(gap.mean()) <= SURE * float(gap.std()) / math.sqrt(len(gap))

    kept = set(ranked[:keep_best]) | {part for part in left if is_likely(part)}
    return [part for part in left if part in kept]
