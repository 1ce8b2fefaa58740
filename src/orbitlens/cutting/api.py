"""`cut`: run a model without its parts, and find the layers it can best do without.

Enters: a model and a text. Leaves: a `Cut`. Where a share of layers to keep is given, layers are
chosen on one half of the contexts, one after the other, and the cut is judged on the other half.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from orbitlens.cutting.cut_result import ChosenCut, Cut
from orbitlens.cutting.loss import LossKind, PerContext, Task, loss_kind, losses, tasks
from orbitlens.cutting.measuring import (
    Baseline,
    Exam,
    PartLoss,
    greedy,
    loss_without,
    without_each,
)
from orbitlens.cutting.options import CutOptions
from orbitlens.cutting.parts import Trunk, parts_of
from orbitlens.cutting.rankings import token_rankings, weight_rankings
from orbitlens.cutting.writing import write_cut
from orbitlens.errors import InputError
from orbitlens.running.batches import batches_of, limits_for
from orbitlens.running.info import Cost, model_info, peak_rss_bytes
from orbitlens.running.inputs import inputs_of
from orbitlens.running.model import Model, load
from orbitlens.running.removal import PartKind
from orbitlens.running.threads import threads_for

Progress = Callable[[int, int | None], None]
MOST_SHARE = 1 / 3  # of one pass a layer: what layers may cost together where that is to be fast
SAME = 1e-6  # by how much the loss of a written model may differ from what was promised


def cut(
    model: Any,  # noqa: ANN401 - a `Model`, or what `load` takes
    text: Any = None,  # noqa: ANN401 - what `trace` takes
    *,
    keep: float | None = None,
    write_to: str | Path | None = None,
    options: CutOptions | None = None,
    progress: Progress | None = None,
) -> Cut:
    """Measure a model without each head, attention, MLP and layer; choose layers to take out.

    Args:
        model: a `Model`, or anything `load` takes.
        text: a string, strings, a path object, token ids, images or batches; by default the
            package's passage. Use text of the kind that the model is for.
        keep: the share of layers that stays, such as 0.8. Which go is chosen greedily.
        write_to: a folder that does not exist yet: the model without these layers is written there,
            if it loads and loses as much as was measured.
        options: which kinds of parts, and how much text.
        progress: called with what is done and of how much.

    Raises:
        InputError: the text does not fit the model or is too short, or nothing would be left.
    """
    chosen = options or CutOptions()
    opened = load(model)
    running = opened.running
    started = time.perf_counter()
    trunk = Trunk(running)
    n_cut = None if keep is None else _n_cut(running, trunk.n_layers, keep)
    if write_to is not None and n_cut is None:
        raise InputError(
            "writing a model needs keep, the share of its layers that stays: --keep 0.8."
        )
    kind = loss_kind(running)
    given, shown = _tasks(running, text, kind, chosen)
    given, judging = (given, []) if n_cut is None else _halves(given)
    exam = Exam(trunk=trunk, tasks=given, kind=kind)
    with threads_for(running.n_parameters):
        base, rows, steps = _tried(exam, chosen, n_cut, progress)
        rankings = (*token_rankings(exam), *weight_rankings(running.checkpoint))
        picked = _judged(replace(exam, tasks=judging), steps, write_to) if steps else None
    return Cut(
        model=model_info(opened.checkpoint),
        loss_kind=kind,
        whole_loss=base.loss,
        parts=tuple(rows),
        rankings=rankings,
        chosen=picked,
        shares_weights=trunk.is_shared,
        text=shown,
        n_tokens=sum(map(_n_tokens, given[: base.n_batches])),
        n_contexts=len(base.by_context),
        cost=Cost(
            seconds=time.perf_counter() - started, bytes_read=0, peak_rss_bytes=peak_rss_bytes()
        ),
        flags=(*opened.architecture.flags, *opened.notes),
    )


def _tried(
    exam: Exam, options: CutOptions, n_cut: int | None, progress: Progress | None
) -> tuple[Baseline, list[PartLoss], list[PartLoss]]:
    """Return the loss, that without each part, and the layers that go, in order."""
    is_fast, n_layers = options.drop_losers, exam.trunk.n_layers
    most_passes = MOST_SHARE * n_layers if is_fast else math.inf
    base, rows = without_each(
        exam,
        list(parts_of(exam.trunk.stack, options.kinds)),
        keep_best=n_cut if is_fast else None,
        most_passes=most_passes,
        progress=progress,
    )
    if n_cut is None:
        return base, rows, []
    layers = [row for row in rows if row.part.kind is PartKind.LAYER]
    steps = greedy(exam, n_cut, drop_losers=is_fast, most_passes=most_passes, first=layers)
    return base, rows, steps


def _n_cut(model: Model, n_layers: int, keep: float) -> int:
    """Return how many layers go.

    Raises:
        InputError: none would go, or none would stay.
    """
    if not 0 < keep < 1:
        raise InputError(f"keep is {keep:g}; expected a share of layers between 0 and 1.")
    n_kept = round(keep * n_layers)
    if n_kept < 1:
        raise InputError(
            f"{model.name}: {keep:.0%} of {n_layers} layers is less than one, so nothing would be "
            f"left. Keep at least {1 / n_layers:.2g}."
        )
    if n_kept == n_layers:
        raise InputError(
            f"{model.name}: {keep:.0%} of {n_layers} layers is all of them, so nothing would go. "
            f"Keep at most {1 - 1 / n_layers:.2g}."
        )
    return n_layers - n_kept


def _tasks(
    model: Model,
    text: Any,  # noqa: ANN401
    kind: LossKind,
    options: CutOptions,
) -> tuple[list[Task], str]:
    inputs = inputs_of(model, text, normalise=options.normalise, seed=options.seed)
    limits = limits_for(
        model, context=options.context, batch=options.batch, max_tokens=options.max_tokens
    )
    batches = batches_of(model, inputs, limits)
    found = list(tasks(model, batches, kind, seed=options.seed))
    if not found:
        raise InputError(
            f"{model.name}: the text is shorter than half a context of {limits.context} tokens. "
            "Give more text, or a shorter context."
        )
    return found, inputs.source.value


def _n_tokens(task: Task) -> int:
    first = task.batch.get("input_ids")
    return task.n_contexts if first is None else first.numel()


# --- which layers go -------------------------------------------------------------------------


def _halves(given: Sequence[Task]) -> tuple[list[Task], list[Task]]:
    """Return every other context for choosing, and the rest for judging.

    Raises:
        InputError: there is one context only.
    """
    single = [task.part(k, k + 1) for task in given for k in range(task.n_contexts)]
    if len(single) < 2:
        raise InputError(
            "the text makes a single context, and choosing layers needs two: one to choose by and "
            "one to judge by. Give more text, or a shorter context."
        )
    return single[::2], single[1::2]


def _judged(held_out: Exam, steps: Sequence[PartLoss], write_to: str | Path | None) -> ChosenCut:
    """Return what a cut costs on contexts held out; write it where that is asked for."""
    order = tuple(step.part.layer for step in steps)
    whole = loss_without(held_out, frozenset())
    without = loss_without(held_out, frozenset(order))
    gap = without - whole
    if write_to is not None:
        _write(held_out, order, without, Path(write_to))
    return ChosenCut(
        order=order,
        losses=tuple(step.loss for step in steps),
        whole_loss=float(whole.mean()),
        loss=float(without.mean()),
        deviation=float(gap.std()) / math.sqrt(len(gap)) if len(gap) > 1 else None,
        n_held_out=len(gap),
        written_to=None if write_to is None else str(Path(write_to)),
    )


def _write(held_out: Exam, order: Sequence[int], promised: PerContext, target: Path) -> None:
    """Write the model without its layers; refused unless it loads and loses what was promised."""

    def check(draft: Path) -> None:
        shorter = load(draft, dtype=held_out.trunk.model.dtype)
        gap = float((_loss_of(shorter, held_out) - promised).abs().max())
        if not gap <= SAME * (1 + float(promised.abs().max())):
            raise InputError(
                f"{target}: not written. What would be there loads, but its loss differs by "
                f"{gap:.2g} from what was measured: a setting of this family depends on a layer's "
                "number in a way that is not known here."
            )

    write_cut(held_out.trunk, target, order, check)


def _loss_of(model: Model, held_out: Exam) -> PerContext:
    """Return the losses of a shorter model beside the whole one."""
    found = []
    with held_out.trunk.ready(), model.evaluating() as module:
        for task in held_out.tasks:
            whole = held_out.trunk.states(task.batch)[0]
            found.append(losses(held_out.kind, module(**task.batch), task, whole))
    return torch.cat(found)
