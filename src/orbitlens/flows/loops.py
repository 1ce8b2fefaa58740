"""Compiled loops over tokens: what each token takes up from a head's values.

Enters: arrays whose columns are tokens, float64 or float32. Leaves: arrays. The loops are written
so that the compiler turns them into vector instructions, exponentials included: head widths are
padded to a multiple of `LANES`, rows are contiguous, nothing in a loop depends on a branch, and no
constant is wider than the arrays are. The interpreter's lock is not held, so rows can be shared out
to threads.
"""

import math
from typing import no_type_check

import numpy as np
from numba import njit

from orbitlens.flows.powers import (
    HIGHEST,
    HIGHEST_SINGLE,
    LOG2E,
    SMALL,
    SMALL_SINGLE,
    exponential,
    power,
)

# Sums may be taken in any order; NaN and infinity stay what they are.
FAST = {"reassoc", "contract", "arcp", "nsz"}
U = np.uint64
LANES = 4  # coordinates of a head that one pass over the tokens takes together

# Loops below count with unsigned numbers: a signed index might be negative, which Python counts
# from the end, and the test for it keeps loops from being vectorised. Slices would do, but at 64
# tokens making them takes as long as the arithmetic.


@no_type_check
@njit(cache=True, fastmath={"nnan", "nsz"})
def _largest(rows, m, low, high):
    top = rows[m, low]
    for j in range(low, high):
        top = max(top, rows[m, j])
    return top


@no_type_check
@njit(cache=True, fastmath={"contract", "reassoc"})
def exponentiate(rows, m, low, high, top):
    """Replace s = rows[m, low:high] by exp(s - top) and return its sum."""
    total = rows.dtype.type(0)
    for j in range(low, high):
        weight = exponential(rows[m, j] - top)
        rows[m, j] = weight
        total += weight
    return total


@no_type_check
@njit(cache=True, fastmath={"contract", "reassoc"})
def raise_two(rows, m, low, high, sight):
    """Replace s = rows[m] by 2^s where it is seen and by 0 elsewhere, and return its sum."""
    first, last = U(sight[0]), U(sight[1])
    for j in range(low, first):
        rows[m, j] = 0.0
    for j in range(last, high):
        rows[m, j] = 0.0
    total = rows.dtype.type(0)
    for j in range(first, last):
        weight = power(rows[m, j])
        rows[m, j] = weight
        total += weight
    return total


# --- mixing ----------------------------------------------------------------------------------


@no_type_check
@njit(cache=True, fastmath=FAST)
def _score_pair(q, i, twin, k, scale, low, high, rows):
    """Write the scores of the tokens i and twin against low ... high - 1 into two rows."""
    for a in range(U(0), U(q.shape[0]), U(LANES)):
        b, c, d = a + U(1), a + U(2), a + U(3)
        p0, p1, p2, p3 = scale * q[a, i], scale * q[b, i], scale * q[c, i], scale * q[d, i]
        q0, q1 = scale * q[a, twin], scale * q[b, twin]
        q2, q3 = scale * q[c, twin], scale * q[d, twin]
        if a == U(0):
            for j in range(low, high):
                k0, k1, k2, k3 = k[a, j], k[b, j], k[c, j], k[d, j]
                rows[U(0), j] = p0 * k0 + p1 * k1 + p2 * k2 + p3 * k3
                rows[U(1), j] = q0 * k0 + q1 * k1 + q2 * k2 + q3 * k3
        else:
            for j in range(low, high):
                k0, k1, k2, k3 = k[a, j], k[b, j], k[c, j], k[d, j]
                rows[U(0), j] += p0 * k0 + p1 * k1 + p2 * k2 + p3 * k3
                rows[U(1), j] += q0 * k0 + q1 * k1 + q2 * k2 + q3 * k3


@no_type_check
@njit(cache=True, fastmath=FAST)
def longest_column(x):
    """Return the largest length of a column, NaN if anything in it is NaN."""
    largest = total = zero = x.dtype.type(0)
    for j in range(U(x.shape[1])):
        square = zero
        for a in range(U(x.shape[0])):
            square += x[a, j] * x[a, j]
        largest = max(largest, square)
        total += square
    return math.sqrt(largest) + 0.0 * total


@no_type_check
@njit(cache=True, fastmath=FAST)
def _weigh_pair(rows, v, low, high, i, twin, part, part_twin, out):
    """Write the means of values under two rows of weights into the columns i and twin."""
    for a in range(U(0), U(out.shape[0]), U(LANES)):
        b, c, d = a + U(1), a + U(2), a + U(3)
        p0 = p1 = p2 = p3 = q0 = q1 = q2 = q3 = v.dtype.type(0)
        for j in range(low, high):
            p, q = rows[U(0), j], rows[U(1), j]
            v0, v1, v2, v3 = v[a, j], v[b, j], v[c, j], v[d, j]
            p0 += p * v0
            p1 += p * v1
            p2 += p * v2
            p3 += p * v3
            q0 += q * v0
            q1 += q * v1
            q2 += q * v2
            q3 += q * v3
        out[a, i], out[b, i], out[c, i], out[d, i] = p0 * part, p1 * part, p2 * part, p3 * part
        out[a, twin], out[b, twin] = q0 * part_twin, q1 * part_twin
        out[c, twin], out[d, twin] = q2 * part_twin, q3 * part_twin


@no_type_check
@njit(cache=True)
def sight_of(i, n, causal, window):
    """Return the stretch of tokens that token i sees."""
    low, high = 0, n
    if causal:
        high = i + 1
    if window > 0:
        low = max(0, i - window + 1)
        high = min(high, i + window)
    return low, high


@no_type_check
@njit(cache=True, fastmath=FAST)
def shape_scores(rows, m, low, high, sight, slope, i, unnormalised):
    """Hide what token i does not see, add its biases, and return what to shift its scores by."""
    for j in range(low, sight[0]):
        rows[m, j] = -math.inf
    for j in range(sight[1], high):
        rows[m, j] = -math.inf
    if slope != 0.0:
        for j in range(sight[0], sight[1]):
            rows[m, j] -= slope * abs(j - i)
    if unnormalised:
        highest = HIGHEST if rows.itemsize == 8 else HIGHEST_SINGLE
        for j in range(low, high):
            rows[m, j] = rows[m, j] if rows[m, j] <= highest else math.nan
    return rows.dtype.type(0) if unnormalised else _largest(rows, U(m), U(low), U(high))


@no_type_check
@njit(cache=True, fastmath=FAST)
def _mix_two(q, k, v, scale, unnormalised, begin, end, out):
    """Do `mix_rows` in one pass: heads of two coordinates, small scores, everyone seen."""
    n = U(q.shape[1])
    a, b = U(0), U(1)
    for i in range(U(begin), U(end)):
        q0, q1 = scale * q[a, i], scale * q[b, i]
        total = s0 = s1 = v.dtype.type(0)
        for j in range(U(0), n):
            weight = power(q0 * k[a, j] + q1 * k[b, j])
            total += weight
            s0 += weight * v[a, j]
            s1 += weight * v[b, j]
        part = 1.0 / (float(n) if unnormalised else total)
        out[a, i], out[b, i] = s0 * part, s1 * part
        for c in range(U(2), U(out.shape[0])):
            out[c, i] = 0.0


@no_type_check
@njit(cache=True, fastmath=FAST)
def _mix_four(q, k, v, scale, unnormalised, begin, end, out):
    """Do `mix_rows` in one pass: heads of four coordinates, small scores, everyone seen."""
    n = U(q.shape[1])
    a, b, c, d = U(0), U(1), U(2), U(3)
    for i in range(U(begin), U(end)):
        q0, q1, q2, q3 = scale * q[a, i], scale * q[b, i], scale * q[c, i], scale * q[d, i]
        total = s0 = s1 = s2 = s3 = v.dtype.type(0)
        for j in range(U(0), n):
            weight = power(q0 * k[a, j] + q1 * k[b, j] + q2 * k[c, j] + q3 * k[d, j])
            total += weight
            s0 += weight * v[a, j]
            s1 += weight * v[b, j]
            s2 += weight * v[c, j]
            s3 += weight * v[d, j]
        part = 1.0 / (float(n) if unnormalised else total)
        out[a, i], out[b, i], out[c, i], out[d, i] = s0 * part, s1 * part, s2 * part, s3 * part


@no_type_check
@njit(cache=True, fastmath=FAST)
def _mix_pairs(q, k, v, scale, slope, causal, window, unnormalised, begin, end, reach, out):
    """Do `mix_rows` for two tokens at a time: keys and values are read half as often.

    An odd last one is done twice.
    """
    r, n = q.shape
    rows = np.empty((2, n), q.dtype)
    small = SMALL if q.itemsize == 8 else SMALL_SINGLE
    factor, base_two = q.dtype.type(scale), q.dtype.type(scale * LOG2E)
    for i in range(begin, end, 2):
        twin = min(i + 1, end - 1)
        sight = sight_of(i, n, causal, window)
        sight_twin = sight_of(twin, n, causal, window)
        low, high = sight[0], sight_twin[1]
        square = 0.0
        for a in range(r):
            square += q[a, i] * q[a, i] + q[a, twin] * q[a, twin]
        if slope == 0.0 and reach * math.sqrt(square) < small:
            _score_pair(q, U(i), U(twin), k, base_two, U(low), U(high), rows)
            total = raise_two(rows, U(0), U(low), U(high), sight)
            total_twin = raise_two(rows, U(1), U(low), U(high), sight_twin)
        else:
            _score_pair(q, U(i), U(twin), k, factor, U(low), U(high), rows)
            top = shape_scores(rows, 0, low, high, sight, slope, i, unnormalised)
            top_twin = shape_scores(rows, 1, low, high, sight_twin, slope, twin, unnormalised)
            total = exponentiate(rows, U(0), U(low), U(high), top)
            total_twin = exponentiate(rows, U(1), U(low), U(high), top_twin)
        if unnormalised:
            total = total_twin = float(n)
        _weigh_pair(rows, v, U(low), U(high), U(i), U(twin), 1.0 / total, 1.0 / total_twin, out)


@no_type_check
@njit(cache=True, fastmath=FAST, nogil=True)
def mix_rows(q, k, v, width, scale, slope, causal, window, unnormalised, begin, end, out):
    """Write what the tokens begin ... end - 1 take up from the values of one head into `out`.

    Tokens are columns; a head's width is filled up with zeros to a multiple of LANES. Scores known
    to be small need no shift by the largest; narrow heads then take one pass over the tokens.
    """
    reach = scale * longest_column(k)
    if width <= LANES and slope == 0.0 and window == 0 and not causal:
        small = SMALL if q.itemsize == 8 else SMALL_SINGLE
        if reach * longest_column(q) < small:  # NaN fails the test, and stays NaN
            base_two = q.dtype.type(scale * LOG2E)
            if width <= 2:
                _mix_two(q, k, v, base_two, unnormalised, begin, end, out)
            else:
                _mix_four(q, k, v, base_two, unnormalised, begin, end, out)
            return
    _mix_pairs(q, k, v, scale, slope, causal, window, unnormalised, begin, end, reach, out)


@no_type_check
@njit(cache=True, nogil=True)
def mix_heads(q, k, v, width, scale, slopes, causal, window, unnormalised, begin, end, out):
    """Do `mix_rows` for all rows begin ... end - 1 of all heads, counted one after the other."""
    n = q.shape[2]
    for h in range(begin // n, (end - 1) // n + 1):
        first, last = max(begin - h * n, 0), min(end - h * n, n)
        mix_rows(
            q[h],
            k[h],
            v[h],
            width,
            scale,
            slopes[h],
            causal,
            window,
            unnormalised,
            first,
            last,
            out[h],
        )
