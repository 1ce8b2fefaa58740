"""A compiled integrator for small systems: attention, DOP853 and step control in one numba loop.

Enters: arrays. Leaves: arrays. Nothing is called back into Python and the interpreter's lock is not
held, so threads run one system each, with steps of their own. Coefficients are those of SciPy's
DOP853 (Hairer, Norsett & Wanner, Solving ODEs I, section II.5).
"""

import math
from typing import NamedTuple, no_type_check

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.integrate import DOP853

from orbitlens.flows.loops import FAST, U, mix_rows
from orbitlens.flows.steps import (
    GROW,
    SAFETY,
    SHRINK,
    eighth_order_error,
    last_two_alike,
    move,
)

Array = NDArray[np.float64]
LARGEST_LOGIT = 1e280  # beyond, attention is a choice of the largest score, and floats overflow
N_STAGES = 12

# Status codes of a run.
DONE, STEP_LIMIT, RUNS_AWAY, STUCK = 0, 1, 2, 3
# Geometries: what is done to attention's input and output.
ON_SPHERE, UNIT_INPUT, UNIT_OUTPUT = 1, 2, 4

_A = np.ascontiguousarray(DOP853.A)
_B = np.ascontiguousarray(DOP853.B)
_A_EXTRA = np.ascontiguousarray(DOP853.A_EXTRA)
_D = np.ascontiguousarray(DOP853.D)


class KernelSystem(NamedTuple):
    """A system as arrays; empty arrays stand for what it does not have."""

    w_q: Array  # heads, d_model, d_head padded with zeros to a multiple of LANES
    w_k: Array
    w_v: Array
    w_o: Array  # heads, d_head, d_model
    width: int  # d_head before it was padded
    b_q: Array  # heads, d_head
    b_k: Array
    drift: Array  # d_model
    slopes: Array  # heads: ALiBi
    cosine: Array  # pairs, tokens: rotary
    sine: Array
    first: NDArray[np.int64]  # pairs: the coordinates that turn together
    second: NDArray[np.int64]
    positions: Array  # tokens, d_model: re-injected
    beta: float
    causal: bool
    window: int  # 0: none
    geometry: int
    unnormalised: bool


# --- attention -------------------------------------------------------------------------------


@no_type_check
@njit(cache=True, fastmath=FAST)
def _unit_rows(x, out):
    for i in range(x.shape[0]):
        square = 0.0
        for a in range(x.shape[1]):
            square += x[i, a] * x[i, a]
        shrink = 1.0 / max(math.sqrt(square), 1e-300)
        for a in range(x.shape[1]):
            out[i, a] = x[i, a] * shrink


@no_type_check
@njit(cache=True, fastmath=FAST)
def _unit_columns(x):
    for i in range(x.shape[1]):
        square = 0.0
        for c in range(x.shape[0]):
            square += x[c, i] * x[c, i]
        shrink = 1.0 / max(math.sqrt(square), 1e-300)
        for c in range(x.shape[0]):
            x[c, i] *= shrink


@no_type_check
@njit(cache=True, fastmath=FAST)
def _project(x, weight, bias, shrink, width, out):
    """Write weight^T x + shrink bias into the first rows of `out`; tokens are columns."""
    n = U(x.shape[1])
    for a in range(U(width)):
        start = bias[a] * shrink if bias.size else 0.0
        for i in range(n):
            out[a, i] = start
        for c in range(U(x.shape[0])):
            w = weight[c, a]
            for i in range(n):
                out[a, i] += w * x[c, i]


@no_type_check
@njit(cache=True, fastmath=FAST)
def _turn(x, system):
    """Turn the planes of queries or keys by the angles of their tokens."""
    for m in range(system.first.size):
        first, second = x[system.first[m]], x[system.second[m]]
        cosine, sine = system.cosine[m], system.sine[m]
        for i in range(first.size):
            a, b = first[i], second[i]
            first[i], second[i] = a * cosine[i] - b * sine[i], b * cosine[i] + a * sine[i]


@no_type_check
@njit(cache=True, fastmath=FAST)
def attention(system, x, log_scale, out, work):
    """Write A(exp(log_scale) x) / exp(log_scale) into `out`."""
    seen, q, k, v, mixed, flow = work
    n, d = x.shape
    n_heads, width = system.w_q.shape[0], system.width
    none = system.b_q[:0, 0] if system.b_q.size else system.drift[:0]
    shrink = math.exp(-log_scale)
    scale = min(system.beta * math.exp(min(2 * log_scale, 640.0)), LARGEST_LOGIT)
    for c in range(d):
        for i in range(n):
            seen[c, i] = x[i, c]
            if system.positions.size:
                seen[c, i] += system.positions[i, c] * shrink
        flow[c] = system.drift[c] * shrink if system.drift.size else 0.0
    if system.geometry & UNIT_INPUT:
        _unit_columns(seen)
    for h in range(n_heads):
        _project(seen, system.w_q[h], system.b_q[h] if system.b_q.size else none, shrink, width, q)
        _project(seen, system.w_k[h], system.b_k[h] if system.b_k.size else none, shrink, width, k)
        _project(seen, system.w_v[h], none, shrink, width, v)
        _turn(q, system)
        _turn(k, system)
        slope = system.slopes[h] * system.beta if system.slopes.size else 0.0
        mix_rows(
            q,
            k,
            v,
            width,
            scale,
            slope,
            system.causal,
            system.window,
            system.unnormalised,
            0,
            n,
            mixed,
        )
        for c in range(U(d)):
            for a in range(U(width)):
                w = system.w_o[h, a, c]
                for i in range(U(n)):
                    flow[c, i] += w * mixed[a, i]
    for i in range(n):
        for c in range(d):
            out[i, c] = flow[c, i]


@no_type_check
@njit(cache=True)
def _workspace(system, n):
    """Return arrays to work in; coordinates that only fill up a head stay zero."""
    d, r = system.w_q.shape[1], system.w_q.shape[2]
    return (
        np.empty((d, n)),
        np.zeros((r, n)),
        np.zeros((r, n)),
        np.zeros((r, n)),
        np.zeros((r, n)),
        np.empty((d, n)),
    )


@no_type_check
@njit(cache=True, fastmath=FAST)
def rate(system, y, scaled, n, out, work):
    """Write dy/dt into `out`, in the raw chart or (`scaled`) the scaled one."""
    d = system.w_q.shape[1]
    size = n * d
    x = y[:size].reshape(n, d)
    a = out[:size].reshape(n, d)
    if scaled:
        attention(system, x, y[size], a, work)
        speed = 0.0
        for i in range(size):
            speed += y[i] * out[i]
        for i in range(size):
            out[i] -= speed * y[i]
        out[size] = speed
        return
    attention(system, x, 0.0, a, work)
    if system.geometry & UNIT_OUTPUT:
        _unit_rows(a, a)
    if system.geometry & ON_SPHERE:
        for i in range(n):
            along = 0.0
            for c in range(d):
                along += x[i, c] * a[i, c]
            for c in range(d):
                a[i, c] -= along * x[i, c]


@no_type_check
@njit(cache=True)
def _tidy(system, y, scaled, n):
    d = system.w_q.shape[1]
    size = n * d
    if scaled:
        square = 0.0
        for i in range(size):
            square += y[i] * y[i]
        length = math.sqrt(square)
        for i in range(size):
            y[i] /= length
        y[size] += math.log(length)
    elif system.geometry & ON_SPHERE:
        x = y[:size].reshape(n, d)
        _unit_rows(x, x)


@no_type_check
@njit(cache=True)
def _first_step(system, y, f, scaled, n, rtol, atol, until, scratch, work):
    """Return a first step from the size of the flow and of its change (Hairer II.4)."""
    d0, d1, d2 = 0.0, 0.0, 0.0
    for i in range(y.size):
        size = atol + rtol * abs(y[i])
        d0 += (y[i] / size) ** 2
        d1 += (f[i] / size) ** 2
    d0, d1 = math.sqrt(d0 / y.size), math.sqrt(d1 / y.size)
    h0 = 1e-6 if d0 < 1e-5 or d1 < 1e-5 else 0.01 * d0 / d1
    h0 = min(h0, until)
    moved, change = scratch[0], scratch[1]
    for i in range(y.size):
        moved[i] = y[i] + h0 * f[i]
    rate(system, moved, scaled, n, change, work)
    for i in range(y.size):
        d2 += ((change[i] - f[i]) / (atol + rtol * abs(y[i]))) ** 2
    d2 = math.sqrt(d2 / y.size) / h0
    largest = max(d1, d2)
    h1 = max(1e-6, h0 * 1e-3) if largest <= 1e-15 else (0.01 / largest) ** (1.0 / 8.0)
    return min(100 * h0, h1, until)


@no_type_check
@njit(cache=True, fastmath=FAST)
def _interpolant(system, stages, h, y, new, scaled, n, dense, scratch, work):
    """Fill the seven coefficient rows of DOP853's dense output over the last step."""
    size = y.size
    for m in range(3):
        move(y, stages, _A_EXTRA[m], N_STAGES + 1 + m, h, scratch)
        rate(system, scratch, scaled, n, stages[N_STAGES + 1 + m], work)
    for i in range(size):
        change = new[i] - y[i]
        dense[0, i] = change
        dense[1, i] = h * stages[0, i] - change
        dense[2, i] = 2 * change - h * (stages[N_STAGES, i] + stages[0, i])
    for m in range(4):
        for i in range(size):
            total = 0.0
            for p in range(N_STAGES + 4):
                total += _D[m, p] * stages[p, i]
            dense[3 + m, i] = h * total


@no_type_check
@njit(cache=True)
def _between(dense, y, part, out):
    """Write the dense output at `part` (0 to 1) of the step into `out`."""
    for i in range(y.size):
        value = 0.0
        for m in range(7):
            value += dense[6 - m, i]
            value *= part if m % 2 == 0 else 1 - part
        out[i] = y[i] + value


@no_type_check
@njit(cache=True, fastmath=FAST)
def _log_spread(system, y, n):
    """Return ln(beta max|x|^2 max|w_q| max|w_k|), a bound on the spread of raw scores."""
    d = system.w_q.shape[1]
    largest = 0.0
    for i in range(n):
        square = 0.0
        for c in range(d):
            square += y[i * d + c] ** 2
        largest = max(largest, square)
    wq, wk = 0.0, 0.0
    for h in range(system.w_q.shape[0]):
        sq, sk = 0.0, 0.0
        for c in range(d):
            for a in range(system.w_q.shape[2]):
                sq += system.w_q[h, c, a] ** 2
                sk += system.w_k[h, c, a] ** 2
        wq, wk = max(wq, sq), max(wk, sk)
    size = system.beta * largest * math.sqrt(wq * wk)
    return math.log(size) if size > 0 else -1e300


@no_type_check
@njit(cache=True, nogil=True)
def integrate(system, start, t, times, scaled, n, rtol, max_steps, spread_limit):
    """Integrate from time `t` through the moments `times`; stop early where tokens run away.

    Returns (moments kept, how many, last vector, last time, steps, evaluations, status).
    """
    size = start.size
    y, new = start.copy(), np.empty(size)
    stages = np.empty((N_STAGES + 4, size))
    dense, scratch = np.empty((7, size)), np.empty((2, size))
    work = _workspace(system, n)
    saved = np.empty((times.size, size))
    until = times[-1]
    norm = 0.0
    for i in range(size):
        norm += y[i] * y[i]
    spot = math.sqrt(norm / size)
    rate(system, y, scaled, n, stages[0], work)
    if spot == 0.0:  # all at the origin: errors against how far a bias carries them in unit time
        for i in range(size):
            norm += stages[0, i] * stages[0, i]
        spot = math.sqrt(norm / size)
    atol = rtol / math.sqrt(float(size)) if scaled else rtol * max(spot, 1e-300)
    h = _first_step(system, y, stages[0], scaled, n, rtol, atol, until - t, scratch, work)
    n_saved, n_steps, n_evaluations, grew = 0, 0, 2, True
    status = DONE
    while t < until:
        if n_steps >= max_steps:
            status = STEP_LIMIT
            break
        h = last_two_alike(h, until - t)
        if h <= 1e-15 * max(t, 1e-300):
            status = STUCK
            break
        for m in range(1, N_STAGES):
            move(y, stages, _A[m], m, h, scratch[0])
            rate(system, scratch[0], scaled, n, stages[m], work)
        move(y, stages, _B, N_STAGES, h, new)
        rate(system, new, scaled, n, stages[N_STAGES], work)
        n_evaluations += N_STAGES
        error = eighth_order_error(stages, h, y, new, rtol, atol)
        if not error < 1.0:  # NaN counts as too large
            h *= max(SHRINK, SAFETY * error**-0.125) if error == error else SHRINK
            grew = False
            n_steps += 1
            continue
        n_steps += 1
        factor = GROW if error == 0.0 else min(GROW, SAFETY * error**-0.125)
        after = t + h if t + h < until * (1 - 1e-15) else until
        if n_saved < times.size and times[n_saved] < after:
            _interpolant(system, stages, h, y, new, scaled, n, dense, scratch[0], work)
            n_evaluations += 3
            while n_saved < times.size and times[n_saved] < after:
                _between(dense, y, (times[n_saved] - t) / h, saved[n_saved])
                _tidy(system, saved[n_saved], scaled, n)
                n_saved += 1
        for i in range(size):
            y[i] = new[i]
        _tidy(system, y, scaled, n)
        while n_saved < times.size and times[n_saved] <= after:
            saved[n_saved] = y
            n_saved += 1
        t = after
        h *= factor if grew else min(1.0, factor)
        grew = True
        if not scaled and _log_spread(system, y, n) > spread_limit:
            status = RUNS_AWAY
            break
        for i in range(size):
            stages[0, i] = stages[N_STAGES, i]
        if scaled or system.geometry & ON_SPHERE:
            rate(system, y, scaled, n, stages[0], work)  # tidying moved y by a rounding error
            n_evaluations += 1
            if scaled and _settled(stages[0], size - 1):
                _coast(saved, n_saved, times, y, t, stages[0, size - 1])
                return saved, times.size, y, until, n_steps, n_evaluations, DONE
    return saved, n_saved, y, t, n_steps, n_evaluations, status


@no_type_check
@njit(cache=True)
def _settled(flow, size):
    """Say whether directions stand still to rounding: then only the scale grows on."""
    square = 0.0
    for i in range(size):
        square += flow[i] * flow[i]
    return math.sqrt(square) < 1e-15


@no_type_check
@njit(cache=True)
def _coast(saved, n_saved, times, y, t, speed):
    """Finish a run whose directions stand still: the logarithm of the scale is linear in time."""
    last = y.size - 1
    begin = y[last]
    for m in range(n_saved, times.size):
        y[last] = begin + speed * (times[m] - t)
        saved[m] = y
