"""Flows that are followed step by step, and the way back through their steps.

Enters: a `System` and tokens. Leaves: tokens at the end, then gradients with respect to the start
and to every tensor. With k_s the stages of a step, l the gradient at its end and m_s what stage s
hands back to its point,

    m_s = (dk_s/dx)^T h (b_s l + sum_{r > s} a_rs m_r),    at the start: l + sum_s m_s.

Stages are kept up to a limit; later steps take theirs anew.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from orbitlens._types import Tokens
from orbitlens.flows._fast.dop853 import move
from orbitlens.flows.adaptive import AdaptiveRun
from orbitlens.flows.charts import RawChart, to_vector
from orbitlens.flows.fields import lengths
from orbitlens.flows.rate_back import Evaluated, RateBack
from orbitlens.flows.steps import DOP853, StepLimits, Stop, Vector
from orbitlens.flows.system import System
from orbitlens.running.threads import threads_for_pairs

MOST_NUMBERS = 2**24  # of stages that are kept: 128 MB


@dataclass(frozen=True, kw_only=True)
class StepTaken:
    """One step that was taken."""

    start: Tokens
    h: float
    stages: list[Evaluated] | None  # None: not kept


@dataclass(kw_only=True)
class StepsTaken:
    """The steps of a run."""

    steps: list[StepTaken] = field(default_factory=list)
    end: Tokens
    t: float = 0.0
    stop: Stop = Stop.DONE
    n_numbers: int = 0  # of all stages

    @property
    def lengths(self) -> list[float]:
        """How long the steps were."""
        return [step.h for step in self.steps]


class _Kept(RawChart):
    """Tokens as they are; what the way back needs of each rate is kept."""

    def __init__(self, system: System, n_tokens: int, rate: RateBack) -> None:
        super().__init__(system, n_tokens)
        self._rate = rate
        self.seen: list[Evaluated] = []

    def rate(self, y: Vector) -> Vector:
        self.seen.append(self._rate(torch.from_numpy(y.reshape(self.shape))))
        return self.seen[-1].rate.numpy().ravel()


@dataclass(frozen=True, kw_only=True)
class StepsBack:
    """A system whose flow goes step by step, forth and back."""

    system: System
    n_tokens: int
    rtol: float

    def follow(self, start: Tensor, until: float, max_steps: int) -> StepsTaken:
        """Follow tokens, and keep the steps."""
        x = start.double()
        chart = _Kept(self.system, self.n_tokens, RateBack(self.system, self.n_tokens))
        taken = StepsTaken(end=x)

        def keep(y: Vector, h: float) -> None:
            # The first rate is that at the start; tries that failed lie between it and the last.
            stages = [chart.seen[0], *chart.seen[-DOP853.n_stages : -1]]
            taken.n_numbers += sum(stage.n_numbers for stage in stages)
            kept = stages if taken.n_numbers <= MOST_NUMBERS else None
            taken.steps.append(
                StepTaken(start=torch.from_numpy(y.reshape(x.shape)), h=h, stages=kept)
            )
            del chart.seen[: -1 if not chart.constrained else None]

        limits = StepLimits(rtol=self.rtol, max_steps=max_steps)
        run = AdaptiveRun(chart, DOP853, limits, None)
        run.on_step = keep
        with threads_for_pairs(self.system.n_heads * self.n_tokens**2):
            segment = run.follow(to_vector(x, 0.0, scaled=False), 0.0, np.array([until]))
        taken.end = torch.from_numpy(segment.y.reshape(x.shape))
        taken.t, taken.stop = segment.t, segment.stop
        return taken

    def back(self, taken: StepsTaken, gradient: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the gradients with respect to the start and to the system's tensors, by name."""
        rate, back = RateBack(self.system, self.n_tokens), gradient.double()
        space = np.empty((2, DOP853.n_stages, back.numel()))
        with threads_for_pairs(self.system.n_heads * self.n_tokens**2):
            for step in reversed(taken.steps):
                back = self._step_back(rate, step, back, *space)
        return back, rate.gradients()

    def _step_back(
        self, rate: RateBack, step: StepTaken, back: Tensor, known: Vector, handed: Vector
    ) -> Tensor:
        """Go back through a step; the last two are memory for its rates and what they hand back."""
        start, h, method = step.start.numpy().ravel(), step.h, DOP853
        points, stages = [], []
        for s in range(method.n_stages):
            points.append(_moved(start, known, method.a[s, :s], h).view_as(back))
            stages.append(step.stages[s] if step.stages else rate(points[s]))
            known[s] = stages[s].rate.numpy().ravel()
        if self.system.geometry.on_sphere:
            end = _moved(start, known, method.b, h).view_as(back)
            size = lengths(end)
            back = (back - (back * end).sum(dim=-1, keepdim=True) * end / size**2) / size
        for s in reversed(range(method.n_stages)):
            own = (h * method.b[s] * back).numpy().ravel()
            given = _moved(own, handed[s + 1 :], method.a[s + 1 :, s], h).view_as(back)
            handed[s] = rate.back(points[s], stages[s], given).numpy().ravel()
        return back + torch.from_numpy(handed.sum(axis=0)).view_as(back)


def _moved(start: Vector, rates: Vector, weights: Vector, h: float) -> Tensor:
    """Return start + h sum_s weights_s rates_s."""
    out = np.empty_like(start)
    move(start, rates, np.ascontiguousarray(weights), len(weights), h, out)
    return torch.from_numpy(out)
