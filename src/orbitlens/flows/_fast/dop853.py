"""A compiled integrator for small systems: attention, DOP853 and step control in one numba loop.

Enters: arrays. Leaves: arrays. Nothing is called back into Python and the interpreter's lock is not
held, so threads run one system each, with steps of their own. Coefficients are those of SciPy's
DOP853 (Hairer, Norsett & Wanner, Solving ODEs I, section II.5), the rules those of `adaptive.py`.
"""

import math
from typing import no_type_check

import numpy as np

from orbitlens.flows._fast.attention import (
    ON_SPHERE,
    length,
    lent,
    lent_work,
    log_size,
    rate,
    rate_here,
    tidy,
    workspace,
)
from orbitlens.flows._fast.rows import FAST, U
from orbitlens.flows._fast.vectors import borrowed
from orbitlens.flows.steps import BIT_LONGER, DOP853, GROW, SAFETY, SHRINK, Stop
from orbitlens.running._compiled.compiling import compiled

N_STAGES = len(DOP853.b)
PIECE = 2048  # coordinates summed over stages at a time: they stay in the nearest cache
# Numba reads plain numbers and arrays, not members of an enumeration.
DONE, STEP_LIMIT, STUCK = int(Stop.DONE), int(Stop.STEP_LIMIT), int(Stop.STUCK)
RAN_AWAY, CAME_BACK = int(Stop.RAN_AWAY), int(Stop.CAME_BACK)

_A, _B, _FIFTH, _THIRD = DOP853.a, DOP853.b, DOP853.estimates[0], DOP853.estimates[1]
_A_EXTRA, _D = DOP853.a_extra, DOP853.dense


@no_type_check
@compiled(fastmath=FAST)
def move(y, stages, weights, n_used, h, out):
    """Write y + h sum_s weights_s stages_s, over the first `n_used` stages, into `out`."""
    for begin in range(0, y.size, PIECE):
        end = U(min(begin + PIECE, y.size))
        for i in range(U(begin), end):
            out[i] = y[i]
        waiting, w0 = -1, 0.0  # stages are added two at a time: `out` is read half as often
        for s in range(n_used):
            w = h * weights[s]
            if w == 0.0:
                continue
            if waiting < 0:
                waiting, w0 = s, w
                continue
            first, second = stages[waiting], stages[s]
            for i in range(U(begin), end):
                out[i] += w0 * first[i] + w * second[i]
            waiting = -1
        if waiting >= 0:
            row = stages[waiting]
            for i in range(U(begin), end):
                out[i] += w0 * row[i]


@no_type_check
@compiled(fastmath=FAST)
def _squared_error(stages, weights, h, y, new, rtol, atol, scratch):
    """Return the sum of squares of an estimate of the step's error, in units of what is allowed."""
    for i in range(U(y.size)):
        scratch[i] = 0.0
    move(scratch, stages, weights, N_STAGES + 1, h, scratch)
    total = 0.0
    for i in range(U(y.size)):
        allowed = atol + rtol * max(abs(y[i]), abs(new[i]))
        total += (scratch[i] / allowed) ** 2
    return total


@no_type_check
@compiled()
def step_error(stages, h, y, new, rtol, atol, scratch):
    """Return DOP853's error of a step, relative to what is allowed: a mean of two estimates."""
    fifth = _squared_error(stages, _FIFTH, h, y, new, rtol, atol, scratch)
    third = _squared_error(stages, _THIRD, h, y, new, rtol, atol, scratch)
    if fifth == 0.0:
        return 0.0
    return fifth / math.sqrt((fifth + 0.01 * third) * y.size)


@no_type_check
@compiled()
def _last_two_alike(h, left):
    if left <= BIT_LONGER * h:
        return left
    return left / 2 if left < 2 * h else h


@no_type_check
@compiled()
def _relative(x, y, rtol, atol, scratch):
    """Return the root of the mean square of x in units of what is allowed at y."""
    for i in range(y.size):
        scratch[i] = x[i] / (atol + rtol * abs(y[i]))
    return length(scratch) / math.sqrt(y.size)


@no_type_check
@compiled()
def _first_step(system, y, f, scaled, n, rtol, atol, until, scratch, work):
    """Return a first step from the size of the flow and of its change (Hairer II.4)."""
    moved, change = scratch[0], scratch[1]
    d0, d1 = _relative(y, y, rtol, atol, moved), _relative(f, y, rtol, atol, moved)
    h0 = 1e-6 if d0 < 1e-5 or d1 < 1e-5 else 0.01 * d0 / d1
    h0 = min(h0, until)
    for i in range(y.size):
        moved[i] = y[i] + h0 * f[i]
    rate(system, moved, scaled, n, change, work)
    for i in range(y.size):
        change[i] -= f[i]
    d2 = _relative(change, y, rtol, atol, moved) / h0
    largest = max(d1, d2)
    if largest == math.inf:  # of flows so fast that the size of their change overflows
        return h0
    h1 = max(1e-6, h0 * 1e-3) if largest <= 1e-15 else (0.01 / largest) ** (1.0 / 8.0)
    return min(100 * h0, h1, until)


@no_type_check
@compiled()
def _try(system, y, stages, h, scaled, n, new, scratch, work):
    """Fill the stages of a step of length h, and write where it ends into `new`."""
    y, new, scratch = borrowed(y), borrowed(new), borrowed(scratch)
    stages, work = borrowed(stages), lent_work(work)
    for m in range(1, N_STAGES + 1):  # one call of what is compiled in here
        last = m == N_STAGES
        point = new if last else scratch
        move(y, stages, _B if last else _A[m], m, h, point)
        rate_here(system, point, scaled, n, stages[m], work)


@no_type_check
@compiled(fastmath=FAST)
def _interpolant(system, stages, h, y, new, scaled, n, dense, scratch, work):
    """Fill the seven coefficient rows of DOP853's dense output over the last step."""
    for m in range(3):
        move(y, stages, _A_EXTRA[m], N_STAGES + 1 + m, h, scratch)
        rate(system, scratch, scaled, n, stages[N_STAGES + 1 + m], work)
    for i in range(y.size):
        change = new[i] - y[i]
        dense[0, i] = change
        dense[1, i] = h * stages[0, i] - change
        dense[2, i] = 2 * change - h * (stages[N_STAGES, i] + stages[0, i])
    for m in range(4):
        for i in range(y.size):
            total = 0.0
            for p in range(N_STAGES + 4):
                total += _D[m, p] * stages[p, i]
            dense[3 + m, i] = h * total


@no_type_check
@compiled()
def _between(dense, y, part, out):
    """Write the dense output at `part` (0 to 1) of the step into `out`."""
    for i in range(y.size):
        value = 0.0
        for m in range(7):
            value += dense[6 - m, i]
            value *= part if m % 2 == 0 else 1 - part
        out[i] = y[i] + value


@no_type_check
@compiled()
def _crossed(y, scaled, n, low, high):
    """Return the chart's bound that the cloud has crossed, or DONE."""
    size = log_size(y, scaled, n)
    if size > high:
        return RAN_AWAY
    return CAME_BACK if size < low else DONE


@no_type_check
@compiled()
def _allowed(y, f, scaled, rtol):
    """Return the absolute tolerance: relative to the cloud, or to its flow if it has no size."""
    if scaled:
        return rtol / math.sqrt(float(y.size))
    size = length(y)
    return rtol * max(size if size > 0.0 else length(f), 1e-300) / math.sqrt(float(y.size))


@no_type_check
@compiled(nogil=True)
def follow(system, start, t, times, scaled, n, rtol, max_steps, low, high, most_kept=-1):
    """Integrate from time `t` through the moments `times`, until the cloud's size leaves a range.

    Returns (moments kept, how many, last vector, last time, steps, evaluations, why it stopped,
    what was kept of steps). Of each step its start and its length are kept if `most_kept` is not
    negative, and its stages, of the first so many.
    """
    system = lent(system)  # the caller's own outlives this call
    size = start.size
    y, new = start.copy(), np.empty(size)
    stages = np.empty((N_STAGES + 4, size))
    dense, scratch = np.empty((7, size)), np.empty((2, size))
    work = workspace(system, n)
    saved = np.empty((times.size, size))
    until = times[-1]
    rate(system, y, scaled, n, stages[0], work)
    atol = _allowed(y, stages[0], scaled, rtol)
    h = _first_step(system, y, stages[0], scaled, n, rtol, atol, until - t, scratch, work)
    n_saved, n_steps, n_evaluations, grew, n_taken = 0, 0, 2, True, 0
    starts, lengths = np.empty((0, size)), np.empty(0)
    kept = np.empty((0, N_STAGES, size))
    stop = DONE
    while t < until and stop == DONE:
        h = _last_two_alike(h, until - t)
        if n_steps >= max_steps or h < min(10 * np.spacing(t), until - t):
            stop = STEP_LIMIT if n_steps >= max_steps else STUCK
            break
        _try(system, y, stages, h, scaled, n, new, scratch[0], work)
        error = step_error(stages, h, y, new, rtol, atol, scratch[0])
        n_steps, n_evaluations = n_steps + 1, n_evaluations + N_STAGES
        factor = GROW if error == 0.0 else SAFETY * error**-0.125
        if not error < 1.0:  # NaN counts as too large
            h *= factor if factor > SHRINK else SHRINK
            grew = False
            continue
        if most_kept >= 0:
            if n_taken == len(lengths):
                more = max(8, n_taken)
                starts = np.concatenate((starts, np.empty((more, size))))
                lengths = np.concatenate((lengths, np.empty(more)))
                room = min(more, most_kept - len(kept))
                kept = np.concatenate((kept, np.empty((room, N_STAGES, size))))
            starts[n_taken], lengths[n_taken] = y, h
            if n_taken < len(kept):
                kept[n_taken] = stages[:N_STAGES]
        n_taken += 1
        after = t + h if t + h < until * (1 - 1e-15) else until
        if n_saved < times.size and times[n_saved] < after:
            _interpolant(system, stages, h, y, new, scaled, n, dense, scratch[0], work)
            n_evaluations += 3
            while n_saved < times.size and times[n_saved] < after:
                _between(dense, y, (times[n_saved] - t) / h, saved[n_saved])
                tidy(system, saved[n_saved], scaled, n)
                n_saved += 1
        y[:] = new
        tidy(system, y, scaled, n)
        while n_saved < times.size and times[n_saved] <= after:
            saved[n_saved] = y
            n_saved += 1
        t = after
        h *= min(GROW if grew else 1.0, factor)
        grew = True
        stages[0] = stages[N_STAGES]
        if scaled or system.geometry & ON_SPHERE:
            rate(system, y, scaled, n, stages[0], work)  # tidying moved y by a rounding error
            n_evaluations += 1
        atol = _allowed(y, stages[0], scaled, rtol)
        stop = _crossed(y, scaled, n, low, high)
    taken = (starts[:n_taken], lengths[:n_taken], kept[: min(n_taken, len(kept))])
    return saved, n_saved, y, t, n_steps, n_evaluations, stop, taken
