"""The way back through a compiled integration: from the gradient at its end to that at its start.

Enters: a system as arrays, the steps that `dop853.follow` took, a gradient. Leaves: gradients with
respect to the start and to all weights, each step taken back as `gradients.py` says. What is kept
of a step's stages is not computed anew.
"""

from typing import NamedTuple, no_type_check

import numpy as np

from orbitlens.flows._fast.attention import (
    LARGEST_LOGIT,
    ON_SPHERE,
    UNIT_INPUT,
    Array,
    add_output,
    length,
    lent,
    project,
    rate,
    see,
    turn,
    workspace,
)
from orbitlens.flows._fast.back_lanes import mix_back
from orbitlens.flows._fast.dop853 import N_STAGES, move
from orbitlens.flows._fast.lanes import columns_for
from orbitlens.flows._fast.rows import FAST, U
from orbitlens.flows.steps import DOP853
from orbitlens.running._compiled.compiling import compiled

_A, _B = DOP853.a, DOP853.b


class Gradients(NamedTuple):
    """Sums over all evaluations, in the shapes of `SystemArrays`."""

    w_q: Array
    w_k: Array
    w_v: Array
    w_o: Array
    b_q: Array
    b_k: Array
    drift: Array
    positions: Array


class Space(NamedTuple):
    """Arrays to work in; columns are tokens, filled up with zeros."""

    seen: Array
    flow: Array
    given: Array  # gradient with respect to attention's output
    back: Array  # with respect to what attention sees
    heads: Array  # queries, keys, values, gradient of means, means, gradients of the first three
    about: Array


@no_type_check
@compiled()
def _space(system, n):
    d, r = system.w_q.shape[1], system.w_q.shape[2]
    columns = columns_for(n, r)
    return Space(
        np.zeros((d, n)),
        np.zeros((d, n)),
        np.zeros((d, n)),
        np.zeros((d, n)),
        np.zeros((8, r, columns)),
        np.zeros((3, columns)),
    )


@no_type_check
@compiled(fastmath=FAST)
def _turn_back(x, system):
    """Turn gradients of queries or keys by minus the angles of their tokens."""
    for m in range(system.first.size):
        first, second = x[system.first[m]], x[system.second[m]]
        cosine, sine = system.cosine[m], system.sine[m]
        for i in range(cosine.size):
            a, b = first[i], second[i]
            first[i], second[i] = a * cosine[i] + b * sine[i], b * cosine[i] - a * sine[i]


@no_type_check
@compiled(fastmath=FAST)
def _unproject(seen, gradient, weight, width, sums, back):
    """Add the gradient of a projection to that of its weight, and hand it on to what it saw."""
    n = U(seen.shape[1])
    for c in range(U(seen.shape[0])):
        for a in range(U(width)):
            w, total = weight[c, a], 0.0
            for i in range(n):
                total += seen[c, i] * gradient[a, i]
                back[c, i] += w * gradient[a, i]
            sums[c, a] += total


@no_type_check
@compiled(fastmath=FAST)
def _add_sums(gradient, width, n, sums):
    for a in range(U(width)):
        total = 0.0
        for i in range(U(n)):
            total += gradient[a, i]
        sums[a] += total


@no_type_check
@compiled(fastmath=FAST)
def _means_back(system, h, given, mean_back, n):
    """Write the gradient with respect to one head's means."""
    for a in range(U(system.width)):
        for i in range(U(n)):
            mean_back[a, i] = 0.0
        for c in range(U(given.shape[0])):
            w = system.w_o[h, a, c]
            for i in range(U(n)):
                mean_back[a, i] += w * given[c, i]


@no_type_check
@compiled(fastmath=FAST)
def _head_back(system, h, n, space, sums):
    """Add what one head hands back to the gradients, and its output to the flow."""
    q, k, v, g, mixed, dq, dk, dv = space.heads
    none = system.b_q[:0, 0] if system.b_q.size else system.drift[:0]
    b_q = system.b_q[h] if system.b_q.size else none
    b_k = system.b_k[h] if system.b_k.size else none
    project(space.seen, system.w_q[h], b_q, 1.0, system.width, q)
    project(space.seen, system.w_k[h], b_k, 1.0, system.width, k)
    project(space.seen, system.w_v[h], none, 1.0, system.width, v)
    turn(q, system)
    turn(k, system)
    _means_back(system, h, space.given, g, n)
    scale = min(system.beta, LARGEST_LOGIT)
    sees = (n, system.causal, system.window)
    mix_back(q, k, v, g, scale, sees, system.powers[0], (mixed, dq, dk, dv, space.about))
    add_output(system.w_o[h], mixed, system.width, space.flow)
    for a in range(U(system.width)):
        for c in range(U(space.flow.shape[0])):
            total = 0.0
            for i in range(U(n)):
                total += mixed[a, i] * space.given[c, i]
            sums.w_o[h, a, c] += total
    _turn_back(dq, system)
    _turn_back(dk, system)
    if system.b_q.size:
        _add_sums(dq, system.width, n, sums.b_q[h])
    if system.b_k.size:
        _add_sums(dk, system.width, n, sums.b_k[h])
    _unproject(space.seen, dq, system.w_q[h], system.width, sums.w_q[h], space.back)
    _unproject(space.seen, dk, system.w_k[h], system.width, sums.w_k[h], space.back)
    _unproject(space.seen, dv, system.w_v[h], system.width, sums.w_v[h], space.back)


@no_type_check
@compiled(fastmath=FAST)
def _seen_back(system, x, n, space, sums, out):
    """Add to `out` what is handed back to tokens through what attention sees of them."""
    d = x.shape[1]
    for i in range(n):
        part, along = 1.0, 0.0
        if system.geometry & UNIT_INPUT:
            point = x[i].copy()
            if system.positions.size:
                for c in range(d):
                    point[c] += system.positions[i, c]
            part = 1.0 / max(length(point), 1e-300)
            for c in range(d):
                along += space.seen[c, i] * space.back[c, i]
        for c in range(d):
            more = (space.back[c, i] - along * space.seen[c, i]) * part
            out[i, c] += more
            if system.positions.size:
                sums.positions[i, c] += more


@no_type_check
@compiled(fastmath=FAST)
def rate_back(system, y, given, n, space, sums, out):
    """Write the gradient at a point from that of its rate, and add those of weights.

    Free flows, flows on the sphere and Pre-LN ones, in the raw chart, by softmax, without ALiBi.
    """
    d = system.w_q.shape[1]
    x, g, back = y.reshape(n, d), given.reshape(n, d), out.reshape(n, d)
    on_sphere = system.geometry & ON_SPHERE
    see(system, y, 1.0, space.seen)
    for i in range(n):
        along = 0.0
        if on_sphere:
            for c in range(d):
                along += x[i, c] * g[i, c]
        for c in range(d):
            space.given[c, i] = g[i, c] - along * x[i, c]
            space.flow[c, i] = system.drift[c] if system.drift.size else 0.0
            space.back[c, i] = 0.0
    for h in range(system.w_q.shape[0]):
        _head_back(system, h, n, space, sums)
    if system.drift.size:
        _add_sums(space.given, d, n, sums.drift)
    for i in range(n):
        straight, along = 0.0, 0.0
        if on_sphere:  # of out = a - (x . a) x
            for c in range(d):
                straight += x[i, c] * space.flow[c, i]
                along += x[i, c] * g[i, c]
        for c in range(d):
            back[i, c] = -straight * g[i, c] - along * space.flow[c, i]
    _seen_back(system, x, n, space, sums, back)


@no_type_check
@compiled(fastmath=FAST)
def _tidy_back(system, new, n, gradient):
    """Turn the gradient at tokens of length 1 into that at the tokens before they had it."""
    if not system.geometry & ON_SPHERE:
        return
    d = new.size // n
    for i in range(n):
        point, g = new[i * d : (i + 1) * d], gradient[i * d : (i + 1) * d]
        size, along = max(length(point), 1e-300), 0.0
        for c in range(d):
            along += point[c] * g[c]
        for c in range(d):
            g[c] = (g[c] - along / size * (point[c] / size)) / size


@no_type_check
@compiled(nogil=True)
def go_back(system, starts, lengths, kept, n, gradient, sums):
    """Take all steps back; `gradient` is that at the end, and becomes that at the start.

    `kept` holds the stages of the first steps, as many as memory was meant for.
    """
    system = lent(system)  # the caller's own outlives this call
    size = gradient.size
    stages, point, new = np.empty((N_STAGES, size)), np.empty(size), np.empty(size)
    handed, given = np.zeros((N_STAGES, size)), np.empty(size)
    nothing = np.zeros(size)
    space, work = _space(system, n), workspace(system, n)
    for step in range(len(lengths) - 1, -1, -1):
        y, h = starts[step], lengths[step]
        if step < len(kept):
            stages[:] = kept[step]
        else:
            for s in range(N_STAGES):
                move(y, stages, _A[s], s, h, point)
                rate(system, point, False, n, stages[s], work)
        move(y, stages, _B, N_STAGES, h, new)
        _tidy_back(system, new, n, gradient)
        for s in range(N_STAGES - 1, -1, -1):
            move(nothing, handed[s + 1 :], _A[s + 1 :, s].copy(), N_STAGES - 1 - s, h, given)
            for i in range(size):
                given[i] += h * _B[s] * gradient[i]
            move(y, stages, _A[s], s, h, point)
            rate_back(system, point, given, n, space, sums, handed[s])
        for s in range(N_STAGES):
            for i in range(size):
                gradient[i] += handed[s, i]
