"""Trajectories that can be differentiated: with respect to the start and to the weights.

Enters: a `System` and tokens, either of which may require gradients. Leaves: tokens at the end with
their graph. The steps are chosen once, without a graph, by the adaptive method; the same steps of
the same method are then taken in torch, so the gradient is that of the numbers returned.
"""

from dataclasses import fields, replace

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from orbitlens._types import Tokens
from orbitlens.errors import InputError
from orbitlens.flows.adaptive import AdaptiveRun
from orbitlens.flows.charts import RawChart, to_vector
from orbitlens.flows.fields import Field, lengths, make_field
from orbitlens.flows.steps import DOP853, StepLimits, Stop, Vector
from orbitlens.flows.system import System


def simulate_with_gradients(
    system: System, tokens: Tokens, *, until: float, rtol: float = 1e-8, max_steps: int = 10_000
) -> Tokens:
    """Return the tokens at time `until`, differentiable in `tokens` and in the system's tensors.

    Memory grows with the number of steps, not of stages: each step is computed again on the way
    back.

    Raises:
        InputError: noise, or tokens that run away before `until`.
    """
    if system.noise > 0:
        raise InputError("a noisy flow has no gradient along its path; set noise to 0.")
    x = tokens if system.positions is None or system.reinjected else tokens + system.positions
    x = x / lengths(x) if system.geometry.on_sphere else x
    steps = _steps(_detached(system), x.detach(), until, rtol, max_steps)
    field = make_field(system, x.shape[0])
    on_sphere = system.geometry.on_sphere
    for h in steps:
        x = checkpoint(_step, field, x, h, on_sphere, use_reentrant=False)
    return x


def _detached(system: System) -> System:
    tensors = {f.name: getattr(system, f.name) for f in fields(system)}
    changes = {k: v.detach() for k, v in tensors.items() if isinstance(v, Tensor)}
    return replace(system, **changes)  # type: ignore[arg-type]


def _steps(system: System, x: Tokens, until: float, rtol: float, max_steps: int) -> list[float]:
    """Return the lengths of the steps that the adaptive method takes."""
    limits = StepLimits(rtol=rtol, max_steps=max_steps)
    run = AdaptiveRun(RawChart(system, x.shape[0]), DOP853, limits, None)
    segment = run.follow(to_vector(x, 0.0, scaled=False), 0.0, np.array([until]))
    if segment.stop is not Stop.DONE:
        raise InputError(
            f"tokens could not be followed to t = {until} in {max_steps} steps (they got to "
            f"{segment.t:.4g}); they may run away. Ask for a shorter time."
        )
    return run.lengths


def _step(field: Field, x: Tokens, h: float, on_sphere: bool) -> Tokens:
    """Take one step of DOP853, written in torch."""
    stages: list[Tensor] = []
    for row in range(DOP853.n_stages):
        stages.append(field(x + h * _weighted(DOP853.a[row, :row], stages, x)))
    moved = x + h * _weighted(DOP853.b, stages, x)
    return moved / lengths(moved) if on_sphere else moved


def _weighted(weights: Vector, stages: list[Tensor], like: Tensor) -> Tensor:
    pairs = zip(weights, stages, strict=True)
    return sum((w * k for w, k in pairs if w), torch.zeros_like(like))
