"""Steps of SciPy's adaptive pairs: its coefficients, sums that are compiled.

Enters: what SciPy's solvers take. Leaves: solvers that do as SciPy's do, in three things better. A
stage's sum reads only what has a weight, once, where a product with the table of all stages takes
half as long as attention itself. The last two steps are alike: SciPy ends on a stub after a step as
long as the tolerance lets pass, and where there are few steps that costs up to a hundredfold in
accuracy. And an error estimate that is all rounding does not keep the next step from growing.
"""

import math
from typing import Any, no_type_check

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.integrate import DOP853, RK45

from orbitlens.flows.loops import FAST, U

SAFETY, SHRINK, GROW = 0.9, 0.2, 10.0  # how a step's error changes the next one's length
BIT_LONGER = 1.05  # than what the tolerance lets pass, with the room that SAFETY leaves
ROUNDED = 2.0  # times what rounding makes of an estimate: up to there it may be all of it
WELL_BELOW = 0.1  # of the tolerance: a larger error leaves no room to grow
STRETCH = 2048  # coordinates summed together: they stay in the first cache

Vector = NDArray[np.float64]
_ESTIMATORS = np.stack([DOP853.E5, DOP853.E3])


@no_type_check
@njit(cache=True, fastmath=FAST)
def _add_weighed(stages, weights, n_used, h, begin, end, out):
    """Add h sum_s weights_s stages_s to out[: end - begin]."""
    for s in range(U(n_used)):
        w = h * weights[s]
        if w != 0.0:
            row = stages[s]
            for i in range(U(begin), U(end)):
                out[i - U(begin)] += w * row[i]


@no_type_check
@njit(cache=True, nogil=True)
def move(y, stages, weights, n_used, h, out):
    """Write y + h sum_s weights_s stages_s, over the first `n_used` stages, into `out`."""
    for begin in range(0, y.size, STRETCH):
        end = min(begin + STRETCH, y.size)
        out[begin:end] = y[begin:end]
        _add_weighed(stages, weights, n_used, h, begin, end, out[begin:end])


@no_type_check
@njit(cache=True, fastmath=FAST)
def _squares(wrong, y, y_new, begin, end, rtol, atol):
    total = 0.0
    for i in range(U(begin), U(end)):
        allowed = atol + rtol * max(abs(y[i]), abs(y_new[i]))
        relative = wrong[i - U(begin)] / allowed
        total += relative * relative
    return total


@no_type_check
@njit(cache=True, nogil=True)
def squared_errors(stages, estimators, y, y_new, rtol, atol):
    """Return, for each estimator, the sum of squares of errors in units of what is allowed."""
    totals = np.zeros(len(estimators))
    wrong = np.empty(min(STRETCH, y.size))
    for begin in range(0, y.size, STRETCH):
        end = min(begin + STRETCH, y.size)
        for e in range(len(estimators)):
            wrong[:] = 0.0
            _add_weighed(stages, estimators[e], estimators.shape[1], 1.0, begin, end, wrong)
            totals[e] += _squares(wrong, y, y_new, begin, end, rtol, atol)
    return totals


@no_type_check
@njit(cache=True, nogil=True)
def eighth_order_error(stages, h, y, y_new, rtol, atol):
    """Return DOP853's error of a step, relative to what is allowed: a mean of two estimates."""
    fifth, third = squared_errors(stages, _ESTIMATORS, y, y_new, rtol, atol)
    if fifth == 0.0:
        return 0.0
    return h * fifth / math.sqrt((fifth + 0.01 * third) * y.size)


@no_type_check
@njit(cache=True)
def last_two_alike(h, left):
    """Return a step of about h: what is left if one will do, half of it if two will.

    >>> last_two_alike(0.5, 0.51), last_two_alike(0.5, 0.6), last_two_alike(0.5, 1.1)
    (0.51, 0.3, 0.5)
    """
    if left <= BIT_LONGER * h:
        return left
    return left / 2 if left < 2 * h else h


class _Steps:
    """One step, for solvers that have SciPy's tables."""

    rounding = 0.0  # of a rate: root of the mean square, in units of what is allowed
    spread: float  # what the estimate makes of rounding: the length of its weights

    def _step_impl(self: Any) -> tuple[bool, str | None]:
        left = self.t_bound - self.t
        shortest = 10 * float(np.spacing(self.t))
        h, failed_before = max(self.h_abs, shortest), False
        while h >= min(shortest, left):
            h = last_two_alike(h, left)
            y_new, f_new = self._try(h)
            error = self._error(h, y_new)
            factor = GROW if error == 0 else SAFETY * error**self.error_exponent
            if error < 1:
                if error <= min(ROUNDED * h * self.rounding * self.spread, WELL_BELOW):
                    factor = GROW
                self.h_abs = h * min(1.0 if failed_before else GROW, factor)
                self.y_old, self.h_previous = self.y, h
                self.t = self.t_bound if h == left else self.t + h
                self.y, self.f = y_new, f_new
                return True, None
            failed_before, self.rounding = True, 0.0  # to grow freely is tried until it fails
            h *= factor if factor > SHRINK else SHRINK  # of an error that is no number as well
        return False, self.TOO_SMALL_STEP

    def _try(self: Any, h: float) -> tuple[Vector, Vector]:
        stages, y = self.K, np.empty_like(self.y)
        stages[0] = self.f
        for s in range(1, self.n_stages):
            move(self.y, stages, self.A[s], s, h, y)
            stages[s] = self.fun(self.t + h * self.C[s], y)
        move(self.y, stages, self.B, self.n_stages, h, y)
        f = self.fun(self.t + h, y)
        stages[-1] = f
        return y, f


class EighthOrder(_Steps, DOP853):
    """Dormand and Prince's method of order eight."""

    spread = float(np.linalg.norm(DOP853.E5))

    def _error(self, h: float, y_new: Vector) -> float:
        return float(eighth_order_error(self.K, h, self.y, y_new, self.rtol, self.atol))


class FifthOrder(_Steps, RK45):
    """Dormand and Prince's pair of orders five and four."""

    spread = float(np.linalg.norm(RK45.E))

    def _error(self, h: float, y_new: Vector) -> float:
        (square,) = squared_errors(self.K, self.E[None], self.y, y_new, self.rtol, self.atol)
        return h * math.sqrt(square / self.n)
