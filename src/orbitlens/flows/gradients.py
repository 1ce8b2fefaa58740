"""Trajectories that can be differentiated: with respect to the start and to the weights.

Enters: a `System` and tokens, either of which may require gradients. Leaves: tokens at the end. The
adaptive method chooses the steps and keeps where each began; the way back takes each step once more
and multiplies by its Jacobian. So the gradient is that of the numbers returned (a discrete
adjoint), not of an equation solved backwards, and memory grows with the number of steps and not of
stages. Few tokens with heads up to four wide go forth and back in compiled code (`_fast/back.py`,
which says what it leaves out); all others go back through torch, a graph a stage. Neither has
gradients of gradients.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from orbitlens._types import Tokens
from orbitlens.errors import InputError
from orbitlens.flows._fast import fast_path
from orbitlens.flows._fast.way_back import WayBack
from orbitlens.flows.adaptive import AdaptiveRun
from orbitlens.flows.charts import RawChart, to_vector
from orbitlens.flows.fields import Field, lengths, make_field
from orbitlens.flows.steps import DOP853, StepLimits, Stop, Vector
from orbitlens.flows.system import System
from orbitlens.running.threads import threads_for_pairs


def simulate_with_gradients(
    system: System, tokens: Tokens, *, until: float, rtol: float = 1e-8, max_steps: int = 10_000
) -> Tokens:
    """Return the tokens at time `until`, differentiable in `tokens` and in the system's tensors.

    Raises:
        InputError: noise, or tokens that run away before `until`.
    """
    if system.noise > 0:
        raise InputError("a noisy flow has no gradient along its path; set noise to 0.")
    x = tokens if system.positions is None or system.reinjected else tokens + system.positions
    x = x / lengths(x) if system.geometry.on_sphere else x
    known = {f.name: getattr(system, f.name) for f in fields(system)}
    tensors = {name: value for name, value in known.items() if isinstance(value, Tensor)}
    held: dict[str, Any] = {name: value.detach() for name, value in tensors.items()}
    fixed = replace(system, **held)

    compiled = fast_path(fixed, len(x)).way_back
    if compiled is not None:
        limits = (until, max_steps)
        end: Tokens = _Compiled.apply(compiled(rtol), limits, list(tensors), x, *tensors.values())
        return end

    def steps(start: Tokens) -> "Steps":
        return _steps(fixed, start, until, rtol, max_steps)

    def make(values: list[Tensor]) -> Field:
        given: dict[str, Any] = dict(zip(tensors, values, strict=True))
        return make_field(replace(fixed, **given), len(x))

    return _Followed.apply(steps, make, system.geometry.on_sphere, x, *tensors.values())


class _Compiled(torch.autograd.Function):
    """The end of a flow, as a function of its start and its weights, by compiled code."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's own
        way: WayBack,
        limits: tuple[float, int],
        names: list[str],
        start: Tokens,
        *weights: Tensor,
    ) -> Tokens:
        """Follow the flow, and keep its steps."""
        taken = way.follow(start.detach(), *limits)
        _check_end(taken.stop, taken.t, *limits)
        ctx.way, ctx.taken, ctx.names = way, taken, names
        return taken.end

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Go back step by step, from the gradient at the end to that at the start."""
        start, found = ctx.way.back(ctx.taken, outputs[0])
        return None, None, None, start, *(found.get(name) for name in ctx.names)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What a run went through."""

    starts: list[Tokens]  # of each step
    lengths: list[float]
    end: Tokens


class _Followed(torch.autograd.Function):
    """The end of a flow, as a function of its start and its weights."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's own
        steps: Callable[[Tokens], Steps],
        make: Callable[[list[Tensor]], Field],
        on_sphere: bool,
        start: Tokens,
        *weights: Tensor,
    ) -> Tokens:
        """Follow the flow, and keep where each step began."""
        taken = steps(start.detach())
        ctx.taken, ctx.make, ctx.on_sphere = taken, make, on_sphere
        ctx.save_for_backward(*weights)
        return taken.end

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Go back step by step, from the gradient at the end to that at the start."""
        (back,) = outputs
        wanted = ctx.needs_input_grad[4:]
        pairs = zip(ctx.saved_tensors, wanted, strict=True)
        weights = [weight.detach().requires_grad_(needed) for weight, needed in pairs]
        moving = [weight for weight in weights if weight.requires_grad]
        sums = [torch.zeros_like(weight) for weight in moving]
        with torch.enable_grad():
            field = ctx.make(weights)
        for start, h in zip(reversed(ctx.taken.starts), reversed(ctx.taken.lengths), strict=True):
            back = _step_back(_Stages.of(field, start, h), ctx.on_sphere, back, moving, sums)
        found = iter(sums)
        gradients = [next(found) if needed else None for needed in wanted]
        return None, None, None, back, *gradients


@dataclass(frozen=True, kw_only=True)
class _Stages:
    """One step of DOP853 from `start`, each stage with a graph of its own."""

    start: Tokens
    h: float
    points: list[Tokens]
    rates: list[Tokens]

    @classmethod
    def of(cls, field: Field, start: Tokens, h: float) -> "_Stages":
        """Take the step anew."""
        points: list[Tokens] = []
        rates: list[Tokens] = []
        known = start.new_empty(DOP853.n_stages, *start.shape)
        for s in range(DOP853.n_stages):
            point = (start + h * _weighted(DOP853.a[s, :s], known[:s])).requires_grad_(True)
            with torch.enable_grad():
                rates.append(field(point))
            points.append(point)
            known[s] = rates[s].detach()
        return cls(start=start, h=h, points=points, rates=rates)

    @property
    def end(self) -> Tokens:
        """Where the step ends, before it is put back on its sphere."""
        return self.start + self.h * _weighted(DOP853.b, torch.stack(self.rates).detach())


def _step_back(
    stages: _Stages, on_sphere: bool, back: Tensor, moving: list[Tensor], sums: list[Tensor]
) -> Tensor:
    """Return the gradient at a step's start from that at its end, and add those of weights.

    With k_s the stages, l the gradient at the end and m_s what stage s hands back to its point:
    m_s = (dk_s/dx)^T h (b_s l + sum_{r > s} a_rs m_r), and the start has l + sum_s m_s.
    """
    if on_sphere:
        moved = stages.end.requires_grad_(True)
        with torch.enable_grad():
            unit = moved / lengths(moved)
        (back,) = torch.autograd.grad(unit, moved, back)
    handed = back.new_zeros(DOP853.n_stages, *back.shape)
    for s in reversed(range(DOP853.n_stages)):
        later = _weighted(DOP853.a[s + 1 :, s], handed[s + 1 :])
        wanted = [stages.points[s], *moving]
        given = stages.h * (float(DOP853.b[s]) * back + later)
        # Stages share what depends on weights alone, which must outlive the first of them.
        mine, *more = torch.autograd.grad(
            stages.rates[s], wanted, given, retain_graph=True, allow_unused=True
        )
        handed[s] = mine
        for total, each in zip(sums, more, strict=True):
            if each is not None:
                total += each
    return back + handed.sum(dim=0)


def _steps(system: System, x: Tokens, until: float, rtol: float, max_steps: int) -> Steps:
    """Return the steps that the adaptive method takes."""
    limits = StepLimits(rtol=rtol, max_steps=max_steps)
    run = AdaptiveRun(RawChart(system, x.shape[0]), DOP853, limits, None)
    run.starts = []
    with threads_for_pairs(system.n_heads * len(x) ** 2):
        segment = run.follow(to_vector(x, 0.0, scaled=False), 0.0, np.array([until]))
    _check_end(segment.stop, segment.t, until, max_steps)
    starts = [torch.from_numpy(y.reshape(x.shape)) for y in run.starts]
    return Steps(
        starts=starts, lengths=run.lengths, end=torch.from_numpy(segment.y.reshape(x.shape))
    )


def _check_end(stop: Stop, t: float, until: float, max_steps: int) -> None:
    if stop is not Stop.DONE:
        raise InputError(
            f"tokens could not be followed to t = {until} in {max_steps} steps (they got to "
            f"{t:.4g}); they may run away. Ask for a shorter time."
        )


def _weighted(weights: Vector, vectors: Tensor) -> Tensor:
    return torch.tensordot(torch.from_numpy(weights.copy()), vectors, dims=1)
