"""The adaptive integrator: steps as long as the tolerance lets pass, in any chart.

Enters: a chart, a vector on it, moments. Leaves: a `Segment`. Step control is that of Hairer,
Norsett & Wanner (Solving ODEs I, II.4), but for two things. The last two steps are alike: ending on
a stub after the longest step that passes costs up to a hundredfold in accuracy where steps are few.
And an error estimate that is all rounding does not keep the next step from growing.
"""

from collections.abc import Callable

import numpy as np

from orbitlens.flows._fast.dop853 import move
from orbitlens.flows.charts import Chart
from orbitlens.flows.steps import (
    GROW,
    SAFETY,
    SHRINK,
    Interpolant,
    Rate,
    Segment,
    StepLimits,
    Stop,
    Tableau,
    Vector,
    first_length,
    last_two_alike,
    root_mean_square,
)

ROUNDED = 2.0  # times what rounding makes of an estimate: up to there it may be all of it
WELL_BELOW = 0.1  # of the tolerance: a larger error leaves no room to grow
NOISY = 0.1  # share of the tolerance that rounding in single precision may take up


def take_step(method: Tableau, rate: Rate, y: Vector, h: float, stages: Vector) -> Vector:
    """Do what `Tableau.step` does, with sums that leave out what has no weight."""
    point, new = np.empty_like(y), np.empty_like(y)
    for s in range(1, method.n_stages):
        move(y, stages, method.a[s], s, h, point)
        stages[s] = rate(point)
    move(y, stages, method.b, method.n_stages, h, new)
    return new


class AdaptiveRun:
    """An integration under way in one chart."""

    def __init__(
        self, chart: Chart, method: Tableau, limits: StepLimits, exact: Chart | None
    ) -> None:
        """Prepare; `exact` is the same chart in float64, where `chart` computes in float32."""
        self.chart, self.method, self.limits, self.exact = chart, method, limits, exact
        self.n_evaluations = self.n_steps = 0
        self.lengths: list[float] = []  # of the steps taken
        self.on_step: Callable[[Vector, float], None] | None = (
            None  # told each step's start, length
        )
        self.rounding = 0.0  # of a rate: root of the mean square, in units of what is allowed

    def rate(self, y: Vector) -> Vector:
        """Return dy/dt, counted."""
        self.n_evaluations += 1
        return self.chart.rate(y)

    def follow(self, y: Vector, t: float, moments: Vector) -> Segment:
        """Step through the moments, until a limit is met."""
        with np.errstate(all="ignore"):  # a stage that overflows makes the step shorter
            return self._follow(y, t, moments)

    def _follow(self, y: Vector, t: float, moments: Vector) -> Segment:
        saved: list[Vector] = []
        until = float(moments[-1])
        stages = np.empty((self.method.n_stages + 1, y.size))
        stages[0] = self.rate(y)
        self.atol = self.chart.absolute(self.limits.rtol, y, stages[0])
        allowed = self._allowed(y, y)
        h = first_length(self.rate, y, stages[0], allowed, until - t, self.method.order)
        self.rounding = self._measured_rounding(y, stages[0])
        stop = Stop.DONE
        while t < until and stop is Stop.DONE:
            taken = self._take(y, t, until, h, stages)
            if taken is None:
                spent = self.n_steps >= self.limits.max_steps
                stop = Stop.STEP_LIMIT if spent else Stop.STUCK
                break
            new, length, h, failed = taken
            self.lengths.append(length)
            if self.on_step is not None:
                self.on_step(y, length)
            after = until if length == until - t else t + length
            saved += self._between(y, new, t, after, stages, moments[len(saved) :])
            y, t = self.chart.tidy(new), after
            # Tidying moves y by as much as the tolerance: its rate is another one then.
            stages[0] = self.rate(y) if self.chart.constrained else stages[-1]
            self.atol = self.chart.absolute(self.limits.rtol, y, stages[0])
            stop = self._stop(y, stages[0], length, failed)
        return Segment(
            saved=saved,
            y=y,
            t=t,
            n_steps=self.n_steps,
            n_evaluations=self.n_evaluations,
            stop=stop,
        )

    def _allowed(self, y: Vector, new: Vector) -> Vector:
        return self.atol + self.limits.rtol * np.maximum(np.abs(y), np.abs(new))

    def _take(
        self, y: Vector, t: float, until: float, h: float, stages: Vector
    ) -> tuple[Vector, float, float, bool] | None:
        """Return where a step ends, its length, the next one's, and whether longer ones failed."""
        left, failed = until - t, False
        shortest = 10 * float(np.spacing(t))
        while h >= min(shortest, left) and self.n_steps < self.limits.max_steps:
            h = last_two_alike(h, left)
            new = take_step(self.method, self.rate, y, h, stages)
            stages[-1] = self.rate(new)
            error = self.method.error(stages, h, self._allowed(y, new))
            self.n_steps += 1
            factor = GROW if error == 0 else SAFETY * error**self.method.exponent
            if error < 1:
                return new, h, h * self._growth(error, factor, h, failed), failed
            failed, self.rounding = True, 0.0  # to grow freely is tried until it fails
            h *= factor if factor > SHRINK else SHRINK  # of an error that is no number as well
        return None

    def _growth(self, error: float, factor: float, h: float, failed: bool) -> float:
        spread = float(np.linalg.norm(self.method.estimates[0]))
        if error <= min(ROUNDED * h * self.rounding * spread, WELL_BELOW):
            factor = GROW
        return min(1.0 if failed else GROW, factor)

    def _between(
        self, y: Vector, new: Vector, t: float, after: float, stages: Vector, moments: Vector
    ) -> list[Vector]:
        """Return the vectors at the moments that a step passed."""
        passed = moments[moments <= after * (1 + 1e-12)]
        if not len(passed):
            return []
        tidy: Callable[[Vector], Vector] = self.chart.tidy
        if passed[0] >= after:
            return [tidy(new) for _ in passed]
        h = after - t
        inside = Interpolant.of(self.method, self.rate, stages, h, y, new)
        return [tidy(new if m >= after else inside.at((m - t) / h)) for m in passed]

    def _stop(self, y: Vector, f: Vector, h: float, failed: bool) -> Stop:
        size = self.chart.log_size(y)
        if size > self.limits.high:
            return Stop.RAN_AWAY
        if size < self.limits.low:
            return Stop.CAME_BACK
        # A step that failed although it was short enough fails again however short it becomes:
        # rounding does not shrink as a power of it.
        noisy = self.exact is not None and failed and h * self._measured_rounding(y, f) > NOISY
        return Stop.ROUNDING if noisy else Stop.DONE

    def _measured_rounding(self, y: Vector, f: Vector) -> float:
        """Measure by one float64 evaluation how far off a rate is, in what is allowed."""
        if self.exact is None:
            return 0.0
        self.n_evaluations += 1
        return root_mean_square((self.exact.rate(y) - f) / self._allowed(y, y))
