"""The compiled right-hand side of small systems: attention in every setting, and both charts.

Enters: a system as arrays, tokens as rows. Leaves: dy/dt, in arrays. Tokens are turned to columns
inside, as the loops of `rows.py` want them.
"""

import math
from typing import NamedTuple, no_type_check

import numpy as np
from numpy.typing import NDArray

from orbitlens.flows._fast.lanes import columns_for
from orbitlens.flows._fast.mixer import mix_head
from orbitlens.flows._fast.pairs import WIDEST_PAIRS, is_symmetric, memory_for_pairs
from orbitlens.flows._fast.rows import FAST, U
from orbitlens.flows._fast.vectors import borrowed
from orbitlens.running._compiled.compiling import compiled
from orbitlens.running._compiled.powers import Tables

Array = NDArray[np.float64]
LARGEST_LOGIT = 1e280  # beyond, attention is a choice of the largest score, and floats overflow

# Geometries: what is done to attention's input and output.
ON_SPHERE, UNIT_INPUT, UNIT_OUTPUT = 1, 2, 4


class SystemArrays(NamedTuple):
    """A system as arrays; empty arrays stand for what it does not have."""

    w_q: Array  # heads, d_model, d_head padded with zeros (`padded_width`)
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
    powers: Tables  # of powers.py
    mixer: int  # address of the loops over tokens


@no_type_check
@compiled()
def lent(system):
    """Return a system whose arrays are not counted; the caller's own keeps them."""
    return SystemArrays(
        borrowed(system.w_q),
        borrowed(system.w_k),
        borrowed(system.w_v),
        borrowed(system.w_o),
        system.width,
        borrowed(system.b_q),
        borrowed(system.b_k),
        borrowed(system.drift),
        borrowed(system.slopes),
        borrowed(system.cosine),
        borrowed(system.sine),
        borrowed(system.first),
        borrowed(system.second),
        borrowed(system.positions),
        system.beta,
        system.causal,
        system.window,
        system.geometry,
        system.unnormalised,
        (borrowed(system.powers[0]), borrowed(system.powers[1])),
        system.mixer,
    )


@no_type_check
@compiled()
def lent_work(work):
    """Return a workspace whose arrays are not counted; the caller's own keeps them."""
    seen, q, k, v, mixed, flow, symmetric, memory = work
    return (
        borrowed(seen),
        borrowed(q),
        borrowed(k),
        borrowed(v),
        borrowed(mixed),
        borrowed(flow),
        borrowed(symmetric),
        borrowed(memory),
    )


@no_type_check
@compiled(fastmath=FAST)
def length(x):
    """Return the length of a vector, without overflow or underflow on the way."""
    top = 0.0
    for i in range(x.size):
        top = max(top, abs(x[i]))
    if not 1e-300 < top < math.inf:
        return top
    square = 0.0
    for i in range(x.size):
        square += (x[i] / top) ** 2
    return top * math.sqrt(square)


@no_type_check
@compiled(fastmath=FAST)
def log_size(y, scaled, n):
    """Return the logarithm of the largest token's length."""
    size = y.size - 1 if scaled else y.size
    d, top = size // n, 0.0
    for i in range(size):
        top = max(top, abs(y[i]))
    largest = 0.0
    if 1e-300 < top < math.inf:
        for i in range(n):
            square = 0.0
            for c in range(d):
                square += (y[i * d + c] / top) ** 2
            largest = max(largest, square)
        top *= math.sqrt(largest)
    return math.log(max(top, 1e-300)) + (y[size] if scaled else 0.0)


@no_type_check
@compiled(fastmath=FAST)
def unit_rows(x):
    """Give each row length 1."""
    for i in range(x.shape[0]):
        size = max(length(x[i]), 1e-300)
        for a in range(x.shape[1]):
            x[i, a] /= size


@no_type_check
@compiled(fastmath=FAST)
def unit_tokens(y, n, d):
    """Give each token of a vector length 1."""
    for i in range(n):
        top = 0.0
        for c in range(d):
            top = max(top, abs(y[i * d + c]))
        size = top
        if 1e-300 < top < math.inf:
            square = 0.0
            for c in range(d):
                square += (y[i * d + c] / top) ** 2
            size = top * math.sqrt(square)
        size = max(size, 1e-300)
        for c in range(d):
            y[i * d + c] /= size


@no_type_check
@compiled(fastmath=FAST, forceinline=True)
def project(x, weight, bias, shrink, width, out):
    """Write weight^T x + shrink bias into the first rows of `out`; tokens are columns."""
    n = U(x.shape[1])
    for a in range(U(width)):
        start = bias[a] * shrink if bias.size else 0.0
        for i in range(n):
            out[a, i] = start
        _add_rows(weight[:, a], x, x.shape[0], n, out[a])


@no_type_check
@compiled(fastmath=FAST, forceinline=True)
def _add_rows(weights, rows, n_rows, n, out):
    """Add weights_c rows_c of the first rows to `out`: two or three at a time, in one pass."""
    done = 0
    while n_rows - done > 1:
        w0, w1, first, second = weights[done], weights[done + 1], rows[done], rows[done + 1]
        if n_rows - done == 3:
            w2, third = weights[done + 2], rows[done + 2]
            for i in range(n):
                out[i] += w0 * first[i] + w1 * second[i] + w2 * third[i]
            return
        for i in range(n):
            out[i] += w0 * first[i] + w1 * second[i]
        done += 2
    if done < n_rows:
        w0, first = weights[done], rows[done]
        for i in range(n):
            out[i] += w0 * first[i]


@no_type_check
@compiled(fastmath=FAST, forceinline=True)
def turn(x, system):
    """Turn the planes of queries or keys by the angles of their tokens."""
    for m in range(system.first.size):
        first, second = x[system.first[m]], x[system.second[m]]
        cosine, sine = system.cosine[m], system.sine[m]
        for i in range(cosine.size):
            a, b = first[i], second[i]
            first[i], second[i] = a * cosine[i] - b * sine[i], b * cosine[i] + a * sine[i]


@no_type_check
@compiled(fastmath=FAST, forceinline=True)
def see(system, y, shrink, seen):
    """Write what attention sees of the tokens into the columns of `seen`."""
    d, n = U(seen.shape[0]), U(seen.shape[1])
    for c in range(d):
        for i in range(n):
            seen[c, i] = y[i * d + c]
    if system.positions.size:
        for c in range(d):
            for i in range(n):
                seen[c, i] += system.positions[i, c] * shrink
    if system.geometry & UNIT_INPUT:
        unit_rows(seen.T)


@no_type_check
@compiled(fastmath=FAST, forceinline=True)
def add_output(weight, mixed, width, flow):
    """Add weight^T mixed to `flow`; tokens are columns."""
    for c in range(U(flow.shape[0])):
        _add_rows(weight[:, c], mixed, width, U(flow.shape[1]), flow[c])


@no_type_check
@compiled(fastmath=FAST, forceinline=True)
def _to_tangents(seen, flow, along):
    """Take from the flow of each (unit) token its part along the token; `along` is to work in."""
    d, n = U(flow.shape[0]), U(flow.shape[1])
    for i in range(n):
        along[i] = 0.0
    for c in range(d):
        for i in range(n):
            along[i] += seen[c, i] * flow[c, i]
    for c in range(d):
        for i in range(n):
            flow[c, i] -= along[i] * seen[c, i]


@no_type_check
@compiled(forceinline=True)
def _mix(system, q, k, v, scale, slope, n, memory, n_memory, mixed):
    """Write the means of one head's values into `mixed`."""
    full, quick = system.powers
    sizes = (q.shape[0], q.shape[1], n, quick.shape[0], n_memory)
    sees = (int(system.causal), system.window, int(system.unnormalised))
    mix_head(system.mixer, (q, k, v, mixed, full, quick, memory), sizes + sees, (scale, slope))


@no_type_check
@compiled(fastmath=FAST, forceinline=True)
def attend(system, y, log_scale, out, work):
    """Write A(exp(log_scale) x) / exp(log_scale), of the tokens x in y, into `out`.

    On a sphere whose tokens attention sees as they are, its part along each token is taken out.
    """
    seen, q, k, v, mixed, flow, symmetric, memory = work
    d, n = U(seen.shape[0]), U(seen.shape[1])
    none = system.b_q[:0, 0] if system.b_q.size else system.drift[:0]
    shrink = math.exp(min(-log_scale, 700.0))
    scale = min(system.beta * math.exp(min(2 * log_scale, 640.0)), LARGEST_LOGIT)
    see(system, y, shrink, seen)
    for c in range(d):
        start = system.drift[c] * shrink if system.drift.size else 0.0
        for i in range(n):
            flow[c, i] = start
    for h in range(system.w_q.shape[0]):
        b_q = system.b_q[h] if system.b_q.size else none
        b_k = system.b_k[h] if system.b_k.size else none
        project(seen, system.w_q[h], b_q, shrink, system.width, q)
        project(seen, system.w_k[h], b_k, shrink, system.width, k)
        project(seen, system.w_v[h], none, shrink, system.width, v)
        turn(q, system)
        turn(k, system)
        slope = system.slopes[h] * system.beta if system.slopes.size else 0.0
        n_memory = memory.shape[0] if symmetric[h] else 0
        _mix(system, q, k, v, scale, slope, seen.shape[1], memory, n_memory, mixed)
        add_output(system.w_o[h], mixed, system.width, flow)
    if sees_sphere(system):
        _to_tangents(seen, flow, mixed[0])
    for c in range(d):
        for i in range(n):
            out[i * d + c] = flow[c, i]


@no_type_check
@compiled(forceinline=True)
def sees_sphere(system):
    """Return whether tokens are on a sphere, attention sees them, and nothing follows it."""
    return system.geometry == ON_SPHERE and not system.positions.size


@no_type_check
@compiled()
def workspace(system, n):
    """Return arrays to work in; coordinates that only fill up a head stay zero."""
    d, r = system.w_q.shape[1], system.w_q.shape[2]
    columns = columns_for(n, r)
    symmetric = np.zeros(system.w_q.shape[0], np.bool_)
    if r <= WIDEST_PAIRS:
        for h in range(symmetric.size):
            symmetric[h] = is_symmetric(system, h)
    return (
        np.empty((d, n)),
        np.zeros((r, columns)),
        np.zeros((r, columns)),
        np.zeros((r, columns)),
        np.zeros((r, columns)),
        np.empty((d, n)),
        symmetric,
        memory_for_pairs(r, columns if symmetric.any() else 0),
    )


@no_type_check
@compiled(fastmath=FAST, forceinline=True)
def rate_here(system, y, scaled, n, out, work):
    """Write dy/dt into `out`, in the raw chart or (`scaled`) the scaled one.

    Compiled into its caller: a call that hands on all arrays of a system takes a fifth of the rate
    of 64 tokens.
    """
    d = system.w_q.shape[1]
    size = n * d
    attend(system, y, y[size] if scaled else 0.0, out, work)
    if scaled:
        speed = 0.0
        for i in range(size):
            speed += y[i] * out[i]
        for i in range(size):
            out[i] -= speed * y[i]
        out[size] = speed
        return
    if system.geometry & UNIT_OUTPUT:
        unit_tokens(out, n, d)
    if system.geometry & ON_SPHERE and not sees_sphere(system):
        for i in range(n):
            along = 0.0
            for c in range(d):
                along += y[i * d + c] * out[i * d + c]
            for c in range(d):
                out[i * d + c] -= along * y[i * d + c]


@no_type_check
@compiled()
def rate(system, y, scaled, n, out, work):
    """Do what `rate_here` does, where no time is to be had: it is compiled once for all."""
    rate_here(system, y, scaled, n, out, work)


@no_type_check
@compiled()
def tidy(system, y, scaled, n):
    """Put `y` back on its chart's constraint after a step."""
    d = system.w_q.shape[1]
    size = n * d
    if scaled:
        long = length(y[:size])
        for i in range(size):
            y[i] /= long
        y[size] += math.log(long)
    elif system.geometry & ON_SPHERE:
        unit_tokens(y, n, d)
