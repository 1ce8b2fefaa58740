"""Steps: explicit Runge-Kutta methods as tables, one way to take a step with any of them.

Enters: a rate dy/dt = f(y), a vector, a length. Leaves: where the step ends, and its stages, from
which an embedded method estimates the error and interpolates. The tables of the two adaptive
methods are SciPy's. `Segment` is what every integrator returns: adaptive, fixed or compiled.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import scipy.integrate
from numpy.typing import NDArray

SAFETY, SHRINK, GROW = 0.9, 0.2, 10.0  # how a step's error changes the next one's length
BIT_LONGER = 1.05  # than what the tolerance lets pass, with the room that SAFETY leaves

Vector = NDArray[np.float64]
Table = NDArray[np.float64]
Rate = Callable[[Vector], Vector]

_NONE = np.empty((0, 0))


class Stop(IntEnum):
    """Why an integrator stopped."""

    DONE = 0
    STEP_LIMIT = 1
    STUCK = 2  # steps became shorter than float64 can add
    RAN_AWAY = 3  # the cloud outgrew its chart
    CAME_BACK = 4  # the cloud shrank below what its chart is for
    ROUNDING = 5  # float32 takes up too much of the tolerance
    OVERFLOW = 6  # numbers left the range of float64


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One stretch of an integration, in one chart."""

    saved: list[Vector]  # at the moments that were passed
    y: Vector  # where it ended
    t: float
    n_steps: int
    n_evaluations: int
    stop: Stop


@dataclass(frozen=True, kw_only=True)
class StepLimits:
    """When an integrator has to stop, and how exact it has to be."""

    rtol: float
    max_steps: int
    low: float = -math.inf  # of the logarithm of the cloud's size
    high: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Tableau:
    """A method y + h sum_s b_s k_s with stages k_s = f(y + h sum_r a_sr k_r)."""

    a: Table
    b: Vector
    order: int
    # Of embedded methods: weights of all stages and of the rate at the end, whose sums are errors.
    estimates: Table = field(default_factory=lambda: _NONE)
    a_extra: Table = field(default_factory=lambda: _NONE)  # of stages for the interpolant alone
    dense: Table = field(default_factory=lambda: _NONE)  # of the interpolant

    @property
    def n_stages(self) -> int:
        """Evaluations of a step, the one at its end apart."""
        return len(self.b)

    @property
    def exponent(self) -> float:
        """How the error of a step grows with its length, as a power: minus one over that."""
        return -1.0 / self.order

    def step(self, rate: Rate, y: Vector, h: float, stages: Table) -> Vector:
        """Return y after a step of length h, and fill `stages`, the first of which is given."""
        for s in range(1, self.n_stages):
            stages[s] = rate(y + h * (self.a[s, :s] @ stages[:s]))
        new: Vector = y + h * (self.b @ stages[: self.n_stages])
        return new

    def error(self, stages: Table, h: float, allowed: Vector) -> float:
        """Return the error of a step, in units of what is allowed (root of the mean square)."""
        wrong = h * (self.estimates @ stages[: self.n_stages + 1]) / allowed
        squares = np.square(wrong).sum(axis=1)
        if len(squares) == 1:
            return math.sqrt(squares[0] / len(allowed))
        fifth, third = squares  # DOP853's: a mean of two estimates
        return float(fifth / math.sqrt((fifth + 0.01 * third) * len(allowed))) if fifth else 0.0


def _scipys(solver: type[scipy.integrate.OdeSolver]) -> dict[str, Table]:
    return {"a": np.ascontiguousarray(solver.A), "b": np.ascontiguousarray(solver.B)}


EULER = Tableau(a=np.zeros((1, 1)), b=np.ones(1), order=1)
MIDPOINT = Tableau(a=np.array([[0.0, 0.0], [0.5, 0.0]]), b=np.array([0.0, 1.0]), order=2)
RK4 = Tableau(
    a=np.array([[0, 0, 0, 0], [0.5, 0, 0, 0], [0, 0.5, 0, 0], [0, 0, 1, 0]], dtype=np.float64),
    b=np.array([1, 2, 2, 1]) / 6,
    order=4,
)
RK45 = Tableau(
    **_scipys(scipy.integrate.RK45),
    order=5,
    estimates=np.ascontiguousarray(scipy.integrate.RK45.E[None]),
    dense=np.ascontiguousarray(scipy.integrate.RK45.P.T),
)
DOP853 = Tableau(
    **_scipys(scipy.integrate.DOP853),
    order=8,
    estimates=np.stack([scipy.integrate.DOP853.E5, scipy.integrate.DOP853.E3]),
    a_extra=np.ascontiguousarray(scipy.integrate.DOP853.A_EXTRA),
    dense=np.ascontiguousarray(scipy.integrate.DOP853.D),
)


# --- between steps ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Interpolant:
    """The vector anywhere in a step, to the accuracy of its end (about)."""

    y: Vector
    rows: Table
    nested: bool  # DOP853's form; else a polynomial without its constant

    @classmethod
    def of(
        cls, method: Tableau, rate: Rate, stages: Table, h: float, y: Vector, new: Vector
    ) -> "Interpolant":
        """Return the interpolant of a step, whose stages include the rate at its end."""
        n = method.n_stages + 1
        if not method.a_extra.size:
            return cls(y=y, rows=h * (method.dense @ stages[:n]), nested=False)
        every = np.empty((n + len(method.a_extra), y.size))
        every[:n] = stages[:n]
        for s, weights in enumerate(method.a_extra, start=n):
            every[s] = rate(y + h * (weights[:s] @ every[:s]))
        first, last, change = h * every[0], h * every[n - 1], new - y
        head = [change, first - change, 2 * change - (last + first)]
        return cls(y=y, rows=np.vstack([*head, h * (method.dense @ every)]), nested=True)

    def at(self, part: float) -> Vector:
        """Return the vector at `part` (0 to 1) of the step."""
        value = np.zeros_like(self.y)
        for k, row in enumerate(reversed(self.rows)):
            value = (value + row) * (1 - part if self.nested and k % 2 else part)
        moved: Vector = self.y + value
        return moved


# --- lengths of steps ------------------------------------------------------------------------


def last_two_alike(h: float, left: float) -> float:
    """Return a step of about h: what is left if one will do, half of it if two will.

    >>> last_two_alike(0.5, 0.51), last_two_alike(0.5, 0.6), last_two_alike(0.5, 1.1)
    (0.51, 0.3, 0.5)
    """
    if left <= BIT_LONGER * h:
        return left
    return left / 2 if left < 2 * h else h


def root_mean_square(x: Vector) -> float:
    """Return the root of the mean square, without overflow on the way."""
    top = float(np.abs(x).max())
    if not 1e-300 < top < math.inf:
        return top
    return top * float(np.linalg.norm(x / top)) / math.sqrt(x.size)


def first_length(
    rate: Rate, y: Vector, f: Vector, allowed: Vector, left: float, order: int
) -> float:
    """Return a first step from the size of the flow and of its change (Hairer II.4)."""
    d0, d1 = root_mean_square(y / allowed), root_mean_square(f / allowed)
    h0 = 1e-6 if d0 < 1e-5 or d1 < 1e-5 else 0.01 * d0 / d1
    h0 = min(h0, left)
    d2 = root_mean_square((rate(y + h0 * f) - f) / allowed) / h0
    largest = max(d1, d2)
    if largest == math.inf:  # of flows so fast that the size of their change overflows
        return h0
    h1 = max(1e-6, h0 * 1e-3) if largest <= 1e-15 else (0.01 / largest) ** (1.0 / order)
    return min(100 * h0, h1, left)
