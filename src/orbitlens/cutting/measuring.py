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
    n_batches: int  # that were run: fewer than there are where layers have cost what they may

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
    most_passes: float = math.inf,
    progress: Progress | None = None,
) -> tuple[Baseline, list[PartLoss]]:
    """Return the loss of a model, and without each of some parts beside.

    With `keep_best`, a layer is measured no further once it is clearly not among that many whose
    absence costs least. `most_passes` over all contexts is what layers may cost together, the runs
    that they are compared with included; the first batch is always run. A row says on how many
    contexts it was measured.
    """
    base: list[PerContext] = []
    found: dict[Part, list[PerContext]] = {part: [] for part in parts}
    left, trunk, kind = list(parts), exam.trunk, exam.kind
    passes_left = most_passes * sum(task.n_contexts for task in exam.tasks)
    with trunk.ready():
        for number, task in enumerate(exam.tasks):
            passes_left -= task.n_contexts * _passes(left, trunk.n_layers, removed)
            if passes_left < 0 and number:
                left = [part for part in left if part.kind is not PartKind.LAYER]
            if not left:
                break
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
    whole_loss = Baseline(by_context=torch.cat(base), n_batches=len(base))
    return whole_loss, [_row(part, base, found[part]) for part in parts]


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
    most_passes: float = math.inf,
    first: Sequence[PartLoss] = (),
    progress: Progress | None = None,
) -> list[PartLoss]:
    """Return layers in the order in which they are taken out: each time the one that costs least.

    Layers that share their weights cost the same wherever they are; of these the last is taken.
    `first` are losses without each layer, where they were measured already. `drop_losers` and
    `most_passes` hold for each layer that is taken out, as in `without_each`.
    """
    removed: frozenset[int] = frozenset()
    steps: list[PartLoss] = []
    rows = sorted(first, key=lambda row: -row.part.layer)
    for _ in range(n_cut):
        if not rows:
            left = [layer for layer in reversed(range(exam.trunk.n_layers)) if layer not in removed]
            parts = [Part(kind=PartKind.LAYER, layer=layer) for layer in left]
            keep = 1 if drop_losers else None
            _, rows = without_each(
                exam, parts, removed=removed, keep_best=keep, most_passes=most_passes
            )
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


def _passes(parts: Sequence[Part], n_layers: int, removed: frozenset[int]) -> float:
    """Return what a context costs without each of the layers among some parts, in passes.

    A layer that is out leaves those behind it to be run; the whole model is run once, and once more
    without what is removed already.
    """
    layers = [part.layer for part in parts if part.kind is PartKind.LAYER]
    if not layers:
        return 0.0
    gone = sorted(removed)
    behind = sum(n_layers - 1 - k - sum(other > k for other in gone) for k in layers)
    return 1 + (n_layers - len(gone) if gone else 0) / n_layers + behind / n_layers


def _still_likely(
    left: list[Part], found: dict[Part, list[PerContext]], keep_best: int
) -> list[Part]:
    """Return parts without the layers that are clearly not among the `keep_best` that cost least.

    Two layers are compared on the same contexts: by the error of the difference between them.
    """
    layers = [part for part in left if part.kind is PartKind.LAYER]
    if len(layers) <= keep_best or sum(map(len, found[layers[0]])) < FEWEST:
        return left
    measured = {part: torch.cat(found[part]) for part in layers}
    ranked = sorted(layers, key=lambda part: float(measured[part].mean()))
    worst = measured[ranked[keep_best - 1]]

    def is_likely(part: Part) -> bool:
        gap = measured[part] - worst
        return float(gap.mean()) <= SURE * float(gap.std()) / math.sqrt(len(gap))

    kept = {*ranked[:keep_best], *filter(is_likely, layers)}
    return [part for part in left if part in kept or part.kind is not PartKind.LAYER]
