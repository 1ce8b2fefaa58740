"""Compiled attention of heads beyond four wide: tiles of scores and of sums, in registers.

Enters: queries, keys and values of all heads, tokens as rows, float64 or float32. Leaves: the means
of the values. A block of queries goes through a stretch of keys: their scores are written
beside each other, raised to powers where they lie, and the values are weighed by them. Both
products are made of the same rank-one steps. A stretch of keys and its values stay in the core's
cache while all blocks of queries go by, and tiles that nobody sees are not computed. The
interpreter's lock is not held, so blocks can be shared out to threads.
"""

import math
from functools import cache
from typing import NamedTuple, no_type_check

import numpy as np
from llvmlite import binding
from numba import config
from numpy.typing import NDArray

from orbitlens.flows._fast.exponentials import EXACT
from orbitlens.flows._fast.lanes import LOG2E, SMALL, view_of
from orbitlens.flows._fast.rows import U, visible_range
from orbitlens.running._compiled.compiling import compiled
from orbitlens.running._compiled.tile_vectors import (
    add_product,
    lanes_of,
    largest_seen,
    lower_row,
    put_tile,
    raise_edge,
    raise_row,
    read_tile,
    tile_of,
)

KEYS = 128  # of a stretch: what a block writes of it stays in the nearest cache
SMALL_SINGLE = 60.0  # scores (to base 2) whose powers need no common factor in float32

Array = NDArray[np.float64] | NDArray[np.float32]


class Shape(NamedTuple):
    """How large a tile is: its vectors of queries and its keys (or coordinates of values)."""

    vectors: tuple[int, ...]  # as long as there are
    outputs: tuple[int, ...]


@cache
def tile_shape(d_head: int) -> Shape:
    """Return the tile that the processor's registers hold: 32 of AVX-512, or 16 that are shorter.

    A tile of 3 x 8 and what it is made from take 28 registers; one of 1 x 4 takes 11 of half the
    length. Heads are filled up to a multiple of the second number.
    """
    name, features = config.CPU_NAME, config.CPU_FEATURES  # type: ignore[attr-defined]
    asked = name not in {None, "", "host"} or features is not None
    wide = not asked and binding.get_host_cpu_features().get("avx512f", False)
    if not wide:
        return Shape((0,), (0,) * 4)
    return Shape((0,) * 3, (0,) * (4 if d_head <= 4 else 8))


class Packed(NamedTuple):
    """What compiled loops read and write: memory that is made once and used again."""

    queries: Array  # heads, blocks, d_head, tokens of a block; times the scale, to base 2
    keys: Array  # heads, and all else in one: groups of keys, d_head, keys of a group
    values: Array  # heads, and all else in one: tokens, d_head filled up
    sums: Array  # heads, blocks, d_head filled up, tokens of a block
    totals: Array  # heads, blocks, 1, tokens of a block
    tops: Array  # the same shape: what was taken off all scores, to base 2
    small: NDArray[np.bool_]  # heads: whether powers need no common factor


def memory_for(n_heads: int, d_head: int, n: int, dtype: type, shape: Shape) -> Packed:
    """Return memory for a system's heads."""
    block, group = lanes_of(dtype) * len(shape.vectors), len(shape.outputs)
    n_blocks, n_groups, width = -(-n // block), -(-n // group), -(-d_head // group) * group
    return Packed(
        queries=np.zeros((n_heads, n_blocks, d_head, block), dtype),
        keys=np.zeros((n_heads, n_groups * d_head * group), dtype),
        values=np.zeros((n_heads, n * width), dtype),
        sums=np.zeros((n_heads, n_blocks, width, block), dtype),
        totals=np.zeros((n_heads, n_blocks, 1, block), dtype),
        tops=np.zeros((n_heads, n_blocks, 1, block), dtype),
        small=np.zeros(n_heads, dtype=np.bool_),
    )


# --- packing ---------------------------------------------------------------------------------


class Turns(NamedTuple):
    """How coordinates turn by token (rotary), as `Turning` has it; empty if they do not."""

    cosine: Array  # tokens, d_head
    sine: Array
    partner: NDArray[np.uint64]


@no_type_check
@compiled(fastmath={"contract", "reassoc"})
def pack(rows, column, r, factor, turns, out, group):
    """Write factor times some columns of rows in groups of tokens, turned; return their length.

    The length is the largest of a token's vector; infinity if one is not a number.
    """
    longest, x = 0.0, np.empty(r, rows.dtype)
    first, size = U(column), U(r)
    for i in range(U(rows.shape[0])):
        if turns.partner.size:
            for c in range(size):
                other = rows[i, first + turns.partner[c]]
                x[c] = rows[i, first + c] * turns.cosine[i, c] + other * turns.sine[i, c]
        else:
            for c in range(size):
                x[c] = rows[i, first + c]
        square, place = factor * 0, i // U(group) * U(group) * size + i % U(group)
        for c in range(size):
            x[c] *= factor
            square += x[c] * x[c]
        for c in range(size):
            out[place + c * U(group)] = x[c]
        longest = max(longest, square) if square < math.inf else math.inf
    return math.sqrt(longest)


@no_type_check
@compiled(fastmath=EXACT)
def _copy(rows, column, r, width, out):
    for i in range(U(rows.shape[0])):
        for c in range(U(r)):
            out[i * U(width) + c] = rows[i, U(column) + c]


@no_type_check
@compiled(fastmath=EXACT, nogil=True)
def pack_heads(rows, r, scale, slopes, unnormalised, group, turns, packed):
    """Bring queries, keys and values in the order that loops read them.

    Tokens are rows; columns are the queries of all heads, then their keys, then their values.
    """
    factor, one = rows.dtype.type(scale * LOG2E), rows.dtype.type(1)
    limit = SMALL if rows.itemsize == 8 else SMALL_SINGLE
    heads, width = len(slopes), packed.sums.shape[2]
    block = packed.queries.shape[3]
    for h in range(heads):
        queries = packed.queries[h].reshape(packed.queries[h].size)
        longest = pack(rows, h * r, r, factor, turns, queries, block)
        reach = longest * pack(rows, (heads + h) * r, r, one, turns, packed.keys[h], group)
        _copy(rows, (2 * heads + h) * r, r, width, packed.values[h])
        packed.small[h] = unnormalised or (slopes[h] == 0.0 and reach <= limit)


# --- mixing ----------------------------------------------------------------------------------


@no_type_check
@compiled(fastmath=EXACT)
def score(queries, keys, first, low, high, shape, scores):
    """Write scores of a block against the groups of keys low ... high - 1; the first is row 0."""
    vectors, outputs = shape
    r, group = queries.shape[0], len(outputs)
    for g in range(low // group, (high + group - 1) // group):
        tile = tile_of(queries, 0.0, vectors, outputs)
        for c in range(r):
            tile = add_product(tile, queries, c, keys, (g * r + c) * group, 1)
        put_tile(tile, scores, g * group - first)


@no_type_check
@compiled(fastmath=EXACT)
def weigh(scores, values, first, low, high, shape, sums):
    """Add the values low ... high - 1 to the sums of a block, by the weights in `scores`."""
    vectors, outputs = shape
    width, group = sums.shape[0], len(outputs)
    for c in range(0, width, group):
        tile = read_tile(tile_of(sums, 0.0, vectors, outputs), sums, c)
        for j in range(low, high):
            tile = add_product(tile, scores, j - first, values, j * width + c, 1)
        put_tile(tile, sums, c)


@no_type_check
@compiled(fastmath=EXACT)
def raise_scores(scores, first, edges, top, i, view, always, terms, totals):
    """Replace scores of the keys edges[0] ... edges[3] - 1 by weights, and add these to totals.

    All tokens of the block see what lies between edges[1] and edges[2].
    """
    total = read_tile(top, totals, 0)
    for j in range(edges[0], edges[1]):
        total = raise_edge(total, scores, j - first, top, i, j, view, terms)
    if always:
        for j in range(edges[1], edges[2]):
            total = raise_edge(total, scores, j - first, top, i, j, view, terms)
    else:
        for j in range(edges[1], edges[2]):
            total = raise_row(total, scores, j - first, top, terms)
    for j in range(edges[2], edges[3]):
        total = raise_edge(total, scores, j - first, top, i, j, view, terms)
    put_tile(total, totals, 0)


@no_type_check
@compiled(fastmath=EXACT)
def edges_of(i, block, n, causal, window, first, last):
    """Return where what a block sees of a stretch begins, is seen by all, by some, and ends."""
    low, all_below = visible_range(i, n, causal, window)
    all_from, high = visible_range(min(i + block, n) - 1, n, causal, window)
    low, high = max(low, first), min(high, last)
    all_from, all_below = max(all_from, low), min(all_below, high)
    if all_from >= all_below:
        return low, high, high, high
    return low, all_from, all_below, high


@no_type_check
@compiled(fastmath=EXACT)
def _tops(queries, keys, i, n, slope, sees, view, shape, scores):
    """Return the largest score of each token of a block."""
    causal, window, _ = sees
    vectors, _ = shape
    block = queries.shape[1]
    top = tile_of(queries, -math.inf, vectors, (0,))
    for first in range(0, n, KEYS):
        low, _, _, high = edges_of(i, block, n, causal, window, first, min(first + KEYS, n))
        if low < high:
            score(queries, keys, first, low, high, shape, scores)
            for j in range(low, high):
                if slope != 0.0:
                    lower_row(top, scores, j - first, i, j, slope)
                top = largest_seen(top, scores, j - first, i, j, view)
    return top


@no_type_check
@compiled(fastmath=EXACT)
def _mix_head(packed, h, slope, sees, n, shape, terms, begin, end):
    """Mix the values of one head for the blocks begin ... end - 1."""
    causal, window, unnormalised = sees
    vectors, outputs = shape
    queries, keys, values = packed.queries[h], packed.keys[h], packed.values[h]
    block, group, view = queries.shape[2], len(outputs), view_of(causal, window)
    scores = np.empty((KEYS + group, block), queries.dtype)
    packed.sums[h, begin:end] = 0
    packed.totals[h, begin:end] = 0
    packed.tops[h, begin:end] = 0
    if not packed.small[h]:
        for b in range(begin, end):
            top = _tops(queries[b], keys, b * block, n, slope, sees, view, shape, scores)
            put_tile(top, packed.tops[h, b], 0)
    for first in range(0, n, KEYS):
        for b in range(begin, end):
            i = b * block
            edges = edges_of(i, block, n, causal, window, first, min(first + KEYS, n))
            low, high = edges[0], edges[3]
            if low >= high:
                continue
            score(queries[b], keys, first, low, high, shape, scores)
            top = read_tile(tile_of(queries, 0.0, vectors, (0,)), packed.tops[h, b], 0)
            if slope != 0.0:
                for j in range(low, high):
                    lower_row(top, scores, j - first, i, j, slope)
            totals = packed.totals[h, b]
            raise_scores(scores, first, edges, top, i, view, unnormalised, terms, totals)
            weigh(scores, values, first, low, high, shape, packed.sums[h, b])


@no_type_check
@compiled(fastmath=EXACT)
def _finish(sums, totals, h, r, unnormalised, begin, end, out):
    """Write sums over totals for the blocks begin ... end - 1 of one head."""
    block, n = sums.shape[2], out.shape[0]
    one = sums.dtype.type(1)
    for b in range(begin, end):
        for i in range(min(block, n - b * block)):
            part = one / (sums.dtype.type(n) if unnormalised else totals[b, 0, i])
            for c in range(U(r)):
                out[U(b * block + i), U(h * r) + c] = sums[U(b), c, U(i)] * part


@no_type_check
@compiled(fastmath=EXACT, nogil=True)
def mix_tiles(packed, slopes, causal, window, unnormalised, n, shape, terms, begin, end, out):
    """Mix the values for the blocks begin ... end - 1 of all heads, one after the other.

    Tokens are rows of `out`; `terms` is as long as the polynomial of powers is.
    """
    n_blocks, r = packed.queries.shape[1], packed.queries.shape[2]
    sees = (causal, window, unnormalised)
    for h in range(begin // n_blocks, (end - 1) // n_blocks + 1):
        first, last = max(begin - h * n_blocks, 0), min(end - h * n_blocks, n_blocks)
        slope = slopes[h] * LOG2E
        _mix_head(packed, h, slope, sees, n, shape, terms, first, last)
        _finish(packed.sums[h], packed.totals[h], h, r, unnormalised, first, last, out)
