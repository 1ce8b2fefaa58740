"""One training loop, for models that are trained in memory.

Enters: a loss by the number of the step, an optimizer of torch, and how its rate goes. Leaves: the
losses, and the parameters where the optimizer took them. Batches, records and stopping rules are
plain functions of the caller, so that a loop never has to be written again; `training.py` adds
what a run on disk needs (processes, a log, resuming).

>>> x = torch.tensor([4.0], requires_grad=True)
>>> losses = fit(lambda step: x.square().sum(), torch.optim.SGD([x], lr=0.25), steps=3)
>>> losses.tolist(), x.tolist()
([16.0, 4.0, 1.0], [0.5])
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from orbitlens.errors import InputError, TrainingError

Loss = Callable[[int], Float[Tensor, ""]]
Shape = Literal["cosine", "linear"]


def fit(
    loss_at: Loss,
    optimizer: Optimizer,
    *,
    steps: int,
    schedule: LRScheduler | Callable[[int], float] | None = None,
    clip: float | None = None,
    after: Callable[[int], bool | None] | None = None,
) -> Float[Tensor, " steps"]:
    """Minimise a loss and return its value at each step, before the parameters moved.

    Args:
        loss_at: the loss of a step, counted from 0; it draws its own batch, and may record.
        optimizer: holds the parameters.
        steps: how many to take at most.
        schedule: a scheduler of torch, or the learning rate by step; None: that of the optimizer.
        clip: largest norm of the gradient of all parameters together; None: any.
        after: called with the number of steps taken; what is measured during training goes here.
            Training ends where it returns True.

    Raises:
        TrainingError: a loss is not finite.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    rate_of = schedule if callable(schedule) else None
    losses: list[Tensor] = []
    for step in range(steps):
        loss = loss_at(step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(parameters, clip, foreach=True)
        if rate_of is not None:
            for group in optimizer.param_groups:
                group["lr"] = rate_of(step)
        optimizer.step()
        if isinstance(schedule, LRScheduler):
            schedule.step()
        losses.append(loss.detach())
        if after is not None and after(step + 1):
            break
    optimizer.zero_grad(set_to_none=True)
    return _finite(losses)


def _finite(losses: list[Tensor]) -> Float[Tensor, " steps"]:
    kept = torch.stack(losses) if losses else torch.zeros(0)
    broken = (~kept.isfinite()).nonzero()[:, 0].tolist()
    if broken:
        raise TrainingError(
            f"the loss of step {broken[0]} is {kept[broken[0]].item()}: training diverged. Try a "
            "smaller learning rate, a longer warm-up or clipped gradients."
        )
    return kept


def rate_at(
    time: int | float, *, peak: float, steps: int, warmup: int | float = 0, shape: Shape = "cosine"
) -> float:
    """Return the learning rate at a time, in steps: up in a line, then down to zero.

    >>> [round(rate_at(t, peak=1.0, steps=10, warmup=2), 3) for t in (1, 2, 6, 10)]
    [0.5, 1.0, 0.5, 0.0]
    """
    if shape == "linear":
        done, up = time / steps, warmup / steps
        return peak * (done / up if done < up else max(0.0, (1 - done) / (1 - up)))
    if 0 < time <= warmup:
        return peak * time / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (time - warmup) / max(1, steps - warmup)))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generator, which layers draw their weights from; restored behind it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


class NormalizedDescent(Optimizer):
    """Gradient descent with steps of one length, p - rate * g / |g|.

    |g| is the norm over all parameters together. Nothing moves where it is zero. Losses of
    separable problems have their minimum at infinity: plain descent gets there at the pace of a
    logarithm, this one linearly, along the same path in the limit of small steps.

    Args:
        params: what is trained.
        lr: length of a step.
        separate: the first axis numbers independent problems, each with its own norm.
    """

    def __init__(self, params: Iterable[Tensor], lr: float, *, separate: bool = False) -> None:
        """Prepare descent."""
        super().__init__(params, {"lr": lr, "separate": separate})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move all parameters.

        Raises:
            InputError: a parameter has no gradient.
        """
        for group in self.param_groups:
            _normalized_step(group["params"], group["lr"], separate=group["separate"])


def _normalized_step(parameters: list[Tensor], rate: float, *, separate: bool) -> None:
    gradients = [p.grad for p in parameters if p.grad is not None]
    if len(gradients) < len(parameters):
        raise InputError(
            f"{len(gradients)} of {len(parameters)} parameters have a gradient; a step needs that "
            "of all. Call backward() first, and leave out what is not used."
        )
    rows = [g.flatten(1) if separate else g.flatten()[None] for g in gradients]
    joined = torch.cat(rows, dim=1)
    # Gradients of separable problems reach 1e-300: their squares would be zero.
    largest = joined.abs().amax(dim=1)
    still = largest < torch.finfo(largest.dtype).tiny
    scale = torch.where(still, torch.ones_like(largest), largest)
    norms = scale * (joined / scale[:, None]).norm(dim=1)
    factor = torch.where(still, torch.zeros_like(norms), rate / norms.where(~still, scale))
    for parameter, gradient in zip(parameters, gradients, strict=True):
        shape = (-1, *[1] * (gradient.ndim - 1)) if separate else ()
        parameter -= factor.view(shape) * gradient
