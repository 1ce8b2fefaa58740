"""Compiled blocks of rows: what tokens take up in heads too wide for the loops.

Enters: arrays whose rows are tokens, float64 or float32. Leaves: arrays. Scores of a block of rows
against all that it sees are one matrix product, their exponentials are taken where they lie, and
the values are weighed by a second product; what nobody sees is not computed. The block fits in a
core's own cache while tokens are not too many. Nothing holds the interpreter's lock, so that rows
can be shared out to threads, which then must each have the products to themselves.
"""

from typing import NamedTuple, no_type_check

import numpy as np
from numba import njit
from numpy.typing import NDArray

from orbitlens.flows.loops import (
    FAST,
    U,
    exponentiate,
    longest_column,
    raise_two,
    shape_scores,
    sight_of,
)
from orbitlens.flows.powers import LOG2E, SMALL, SMALL_SINGLE

ROWS = 128  # mixed together

Array = NDArray[np.float64] | NDArray[np.float32]


class Projection(NamedTuple):
    """How queries, keys and values come from tokens; empty arrays stand for what there is not."""

    weights: Array  # 3 heads, d_model, d_head: of queries, keys and values
    biases: Array  # 2 heads, d_head
    cosine: Array  # tokens, d_head: rotary, see `Turning`
    sine: Array
    partner: NDArray[np.int64]


@no_type_check
@njit(cache=True, fastmath=FAST)
def _turn_rows(x, cosine, sine, partner):
    row = np.empty(x.shape[1], x.dtype)
    for i in range(x.shape[0]):
        row[:] = x[i]
        for a in range(x.shape[1]):
            x[i, a] = row[a] * cosine[i, a] + row[partner[a]] * sine[i, a]


@no_type_check
@njit(cache=True, nogil=True)
def project_rows(x, how, shrink, begin, end, out):
    """Write queries, keys and values of the tokens begin ... end - 1 into out[m, begin:end]."""
    tokens = x[begin:end]
    for m in range(len(how.weights)):
        part = out[m, begin:end]
        np.dot(tokens, how.weights[m], part)
        if m < len(how.biases):
            part += how.biases[m] * shrink
        if 3 * m < 2 * len(how.weights) and how.partner.size:
            _turn_rows(part, how.cosine[begin:end], how.sine[begin:end], how.partner)


@no_type_check
@njit(cache=True, fastmath=FAST)
def _mix_block(q, k, v, scale, slope, causal, window, unnormalised, begin, end, reach, scores, out):
    """Write what the tokens begin ... end - 1 take up from the values of one head into `out`."""
    n, b = k.shape[0], end - begin
    low, high = sight_of(begin, n, causal, window)[0], sight_of(end - 1, n, causal, window)[1]
    width = high - low
    s = scores[: b * width].reshape(b, width)
    block = q[begin:end]
    small = SMALL if q.itemsize == 8 else SMALL_SINGLE
    largest = reach * longest_column(block.T)
    quick = slope == 0.0 and largest < small  # NaN fails the test, and stays NaN
    np.dot(block * q.dtype.type(scale * LOG2E if quick else scale), k[low:high].T, s)
    part = np.empty(b, q.dtype)
    for m in range(b):
        first, last = sight_of(begin + m, n, causal, window)
        seen = (first - low, last - low)
        if quick:
            total = raise_two(s, U(m), U(0), U(width), seen)
        else:
            top = shape_scores(s, m, 0, width, seen, slope, begin + m - low, unnormalised)
            total = exponentiate(s, U(m), U(0), U(width), top)
        part[m] = 1.0 / (float(n) if unnormalised else total)
    mixed = out[begin:end]
    np.dot(s, v[low:high], mixed)
    for m in range(U(b)):
        for a in range(U(mixed.shape[1])):
            mixed[m, a] *= part[m]


@no_type_check
@njit(cache=True, nogil=True)
def mix_heads(q, k, v, scale, slopes, causal, window, unnormalised, begin, end, scores, out):
    """Mix the rows begin ... end - 1 of all heads, counted one after the other.

    `scores` is memory for ROWS rows.
    """
    n = q.shape[1]
    for h in range(begin // n, (end - 1) // n + 1):
        first, last = max(begin - h * n, 0), min(end - h * n, n)
        reach = scale * longest_column(k[h].T)
        for i in range(first, last, ROWS):
            _mix_block(
                q[h],
                k[h],
                v[h],
                scale,
                slopes[h],
                causal,
                window,
                unnormalised,
                i,
                min(i + ROWS, last),
                reach,
                scores,
                out[h],
            )
