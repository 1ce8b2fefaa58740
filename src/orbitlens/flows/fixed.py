"""Fixed steps, with or without noise: to compare with, and for stochastic flows.

Enters: a chart, a vector, a step. Leaves: a `Segment` and the times it was saved at.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from orbitlens.errors import InputError
from orbitlens.flows.charts import RawChart
from orbitlens.flows.steps import Segment, Stop, Tableau, Vector
from orbitlens.flows.streams import random_stream


@dataclass(frozen=True, kw_only=True)
class FixedSteps:
    """Equal steps; noise, where there is any, is added after each (Euler-Maruyama)."""

    chart: RawChart
    method: Tableau
    n_steps: int
    h: float
    noise: float = 0.0
    seed: int = 0

    @classmethod
    def of(
        cls,
        chart: RawChart,
        method: Tableau,
        *,
        step: float | None,
        until: float,
        noise: float,
        seed: int,
    ) -> "FixedSteps":
        """Divide a run into steps of about `step`.

        Raises:
            InputError: there is no step, or none of that length fits.
        """
        if step is None or not 0 < step <= until:
            raise InputError(
                f"a step of {step} was given for a run of {until}; fixed-step methods and noise "
                "need a step between 0 and the time to run."
            )
        n_steps = max(1, round(until / step))
        return cls(
            chart=chart, method=method, n_steps=n_steps, h=until / n_steps, noise=noise, seed=seed
        )

    def nearest(self, times: Vector) -> Vector:
        """Return the moments nearest to `times` that the steps meet: none lies between steps."""
        kept: Vector = np.unique(np.rint(times / self.h)) * self.h
        return kept

    def follow(self, y: Vector, moments: Vector, max_steps: int) -> Segment:
        """Take all steps, or as many as are allowed, and save the moments."""
        wanted = {round(moment / self.h) for moment in moments}
        generator = random_stream(self.seed, "noise")
        stages = np.empty((self.method.n_stages, y.size))
        saved: list[Vector] = []
        taken, stop = 0, Stop.DONE
        while taken < self.n_steps and stop is Stop.DONE:
            if taken == max_steps:
                stop = Stop.STEP_LIMIT
                break
            stages[0] = self.chart.rate(y)
            y = self.chart.tidy(
                self._kicked(self.method.step(self.chart.rate, y, self.h, stages), generator)
            )
            taken += 1
            if not np.isfinite(y).all():
                stop = Stop.OVERFLOW
            elif taken in wanted:
                saved.append(y)
        return Segment(
            saved=saved,
            y=y,
            t=taken * self.h,
            n_steps=taken,
            n_evaluations=taken * self.method.n_stages,
            stop=stop,
        )

    def _kicked(self, y: Vector, generator: torch.Generator) -> Vector:
        if self.noise == 0:
            return y
        kick = torch.randn(y.size, generator=generator, dtype=torch.float64).numpy()
        kicked: Vector = y + self.noise * math.sqrt(self.h) * kick
        return kicked
