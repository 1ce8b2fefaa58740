"""The way back through compiled attention of any width: tiles, as in `tiles.py`.

Enters: queries, keys and values of all heads, what their means were, and the gradient with respect
to these. Leaves: gradients of all three. With weights p_ij and means m_i,

    given_ij = g_i . v_j,    s_ij = p_ij (given_ij - g_i . m_i),
    dv_j = sum_i p_ij g_i,   dq_i = scale sum_j s_ij k_j,   dk_j = scale sum_i s_ij q_i.

A block of queries meets a stretch of keys once: five products, and no exponential twice. The sums
over queries run along coordinates, so tokens are rows there, a few coordinates at a time.
"""

from typing import NamedTuple, no_type_check

import numpy as np
from numpy.typing import NDArray

from orbitlens.flows._fast.exponentials import EXACT
from orbitlens.flows._fast.lanes import LOG2E, view_of
from orbitlens.flows._fast.rows import U
from orbitlens.flows._fast.tiles import Shape, edges_of, pack, raise_scores, score, weigh
from orbitlens.running._compiled.compiling import compiled
from orbitlens.running._compiled.tile_vectors import (
    add_far,
    add_product,
    lanes_of,
    lower_row,
    pull_row,
    put_tile,
    read_tile,
    tile_of,
)

STRETCH = 64  # keys: weights and what they are given are both to stay in the nearest cache
TWO_VECTORS = 8  # coordinates of a head up to which one vector of them is enough

Array = NDArray[np.float64]


class BackPacked(NamedTuple):
    """What the way back reads and writes beside `Packed`, made once and used again."""

    key_rows: Array  # heads, and all else in one: tokens, d_head filled up
    values: Array  # heads, and all else in one: groups of tokens, as keys are
    given: Array  # heads, blocks, d_head, tokens of a block
    query_rows: Array  # heads, parts of a head's coordinates x tokens, coordinates; times the scale
    given_rows: Array  # the same shape
    logs: Array  # heads, blocks, 1, tokens of a block: of the sums of powers, to base 2
    due: Array  # the same shape: g . m
    far: Array  # the same shape: sums of the scores' gradients, times how far off the key is
    queries_back: Array  # heads, blocks, d_head filled up, tokens of a block
    keys_back: Array  # copies, heads, parts x tokens, coordinates
    values_back: Array  # the same shape


def rear_shape(d_head: int, shape: Shape) -> Shape:
    """Return the tile of sums over queries: vectors of coordinates, and keys."""
    wide = len(shape.vectors) > 1 and d_head > TWO_VECTORS
    return Shape((0,) * (2 if wide else 1), shape.outputs)


def back_memory(n_heads: int, d_head: int, n: int, copies: int, shape: Shape) -> BackPacked:
    """Return memory for a system's heads; each copy is for one thread's sums over queries."""
    lanes, group = lanes_of(float), len(shape.outputs)
    block, across = lanes * len(shape.vectors), lanes * len(rear_shape(d_head, shape).vectors)
    n_blocks, n_groups, width = -(-n // block), -(-n // group), -(-d_head // group) * group
    n_parts, n_keys, n_queries = -(-d_head // across), n_groups * group, n_blocks * block
    tokens = (n_heads, n_blocks, 1, block)
    return BackPacked(
        key_rows=np.zeros((n_heads, n_keys * width)),
        values=np.zeros((n_heads, n_groups * d_head * group)),
        given=np.zeros((n_heads, n_blocks, d_head, block)),
        query_rows=np.zeros((n_heads, n_parts * n_queries, across)),
        given_rows=np.zeros((n_heads, n_parts * n_queries, across)),
        logs=np.zeros(tokens),
        due=np.zeros(tokens),
        far=np.zeros(tokens),
        queries_back=np.zeros((n_heads, n_blocks, width, block)),
        keys_back=np.zeros((copies, n_heads, n_parts * n_keys, across)),
        values_back=np.zeros((copies, n_heads, n_parts * n_keys, across)),
    )


# --- packing ---------------------------------------------------------------------------------


@no_type_check
@compiled(fastmath=EXACT)
def _as_rows(grouped, r, group, n, factor, out):
    """Write vectors that lie in groups of tokens as rows, a few coordinates at a time."""
    across = out.shape[1]
    height = out.shape[0] // -(-r // across)
    for i in range(U(n)):
        place = i // U(group) * U(group) * U(r) + i % U(group)
        for c in range(U(r)):
            row = c // U(across) * U(height) + i
            out[row, c % U(across)] = grouped[place + c * U(group)] * factor


@no_type_check
@compiled(fastmath=EXACT)
def _filled_up(grouped, r, group, width, n, out):
    """Write vectors that lie in groups of tokens as rows of some width."""
    for j in range(U(n)):
        place = j // U(group) * U(group) * U(r) + j % U(group)
        for c in range(U(r)):
            out[j * U(width) + c] = grouped[place + c * U(group)]


@no_type_check
@compiled(fastmath=EXACT, nogil=True)
def pack_back(rows, given, means, logs, r, unnormalised, group, still, packed, back):
    """Bring what the way back reads in its order; queries and keys are in `packed` already."""
    n, heads, block = rows.shape[0], logs.shape[0], packed.queries.shape[3]
    width = back.queries_back.shape[2]
    for h in range(heads):
        queries = packed.queries[h].reshape(packed.queries[h].size)
        blocks = back.given[h].reshape(back.given[h].size)
        pack(rows, (2 * heads + h) * r, r, 1.0, still, back.values[h], group)
        pack(given, h * r, r, 1.0, still, blocks, block)
        _filled_up(packed.keys[h], r, group, width, n, back.key_rows[h])
        _as_rows(queries, r, block, n, 1 / LOG2E, back.query_rows[h])
        _as_rows(blocks, r, block, n, 1.0, back.given_rows[h])
        for i in range(U(n)):
            due = 0.0
            if not unnormalised:
                for c in range(U(h * r), U((h + 1) * r)):
                    due += given[i, c] * means[i, c]
            b, lane = i // U(block), i % U(block)
            back.due[U(h), b, U(0), lane] = due
            back.logs[U(h), b, U(0), lane] = logs[U(h), i]
    back.far[:] = 0
    back.queries_back[:] = 0
    back.keys_back[:] = 0
    back.values_back[:] = 0


@no_type_check
@compiled(fastmath=EXACT)
def _turn_back(x, i, turns, first, out):
    """Write a vector turned by minus its token's angles."""
    for c in range(U(x.size)):
        total = x[c]
        if turns.partner.size:
            other = turns.partner[c]
            total = x[c] * turns.cosine[i, c] + x[other] * turns.sine[i, other]
        out[i, U(first) + c] = total


@no_type_check
@compiled(fastmath=EXACT, nogil=True)
def unpack_back(back, r, scale, turns, out):
    """Write gradients of queries, keys and values as rows, in the columns of what they are of."""
    n, heads, block = out.shape[0], back.logs.shape[0], back.logs.shape[3]
    copies, across = back.keys_back.shape[0], back.keys_back.shape[3]
    height = back.keys_back.shape[2] // -(-r // across)
    q, k = np.empty(r), np.empty(r)
    for h in range(U(heads)):
        for i in range(U(n)):
            for c in range(U(r)):
                q[c] = back.queries_back[h, i // U(block), c, i % U(block)] * scale
                row, place = c // U(across) * U(height) + i, c % U(across)
                k[c], v = 0.0, 0.0
                for copy in range(U(copies)):
                    k[c] += back.keys_back[copy, h, row, place]
                    v += back.values_back[copy, h, row, place]
                out[i, (U(2 * heads) + h) * U(r) + c] = v
            _turn_back(q, i, turns, h * U(r), out)
            _turn_back(k, i, turns, (U(heads) + h) * U(r), out)


# --- the way back ----------------------------------------------------------------------------


@no_type_check
@compiled(fastmath=EXACT)
def _clear_rows(rows, low, high):
    for j in range(low, high):
        for lane in range(rows.shape[1]):
            rows[j, lane] = 0


@no_type_check
@compiled(fastmath=EXACT)
def _add_outers(rows, i, block, weights, first, low, high, n_parts, rear, sums):
    """Add rows i, i + 1, ... to the sums of the keys low ... high - 1, by weights."""
    vectors, outputs = rear
    group = len(outputs)
    n_queries, n_keys = rows.shape[0] // n_parts, sums.shape[0] // n_parts
    columns = weights.reshape(weights.size)
    for j in range(low // group * group, high, group):
        for part in range(n_parts):
            at, begin = part * n_keys + j, part * n_queries + i
            tile = read_tile(tile_of(sums, 0.0, vectors, outputs), sums, at)
            for lane in range(block):
                place = (j - first) * block + lane
                tile = add_product(tile, rows, begin + lane, columns, place, block)
            put_tile(tile, sums, at)


@no_type_check
@compiled(fastmath=EXACT)
def _pull(weights, pulls, first, low, high, i, biased, due, far, shape):
    """Replace what pairs were given by the gradients of their scores."""
    vectors, _ = shape
    before = read_tile(tile_of(weights, 0.0, vectors, (0,)), due, 0)
    total = read_tile(tile_of(weights, 0.0, vectors, (0,)), far, 0)
    for j in range(low, high):
        pull_row(before, weights, pulls, j - first)
        if biased:
            total = add_far(total, pulls, j - first, i, j)
    put_tile(total, far, 0)


@no_type_check
@compiled(fastmath=EXACT)
def _head_back(packed, back, h, copy, slope, biased, sees, n, shape, rear, terms, begin, end):
    """Go back through one head for the blocks begin ... end - 1."""
    causal, window, unnormalised = sees
    vectors, outputs = shape
    queries, keys, values, key_rows = (
        packed.queries[h],
        packed.keys[h],
        back.values[h],
        back.key_rows[h],
    )
    query_rows, given_rows = back.query_rows[h], back.given_rows[h]
    keys_back, values_back = back.keys_back[copy, h], back.values_back[copy, h]
    block, r, group, view = (
        queries.shape[2],
        queries.shape[1],
        len(outputs),
        view_of(causal, window),
    )
    n_parts = -(-r // query_rows.shape[1])
    weights, pulls = np.empty((STRETCH + group, block)), np.empty((STRETCH + group, block))
    totals = np.zeros((1, block))
    for first in range(0, n, STRETCH):
        for b in range(begin, end):
            i = b * block
            edges = edges_of(i, block, n, causal, window, first, min(first + STRETCH, n))
            low, high = edges[0], edges[3]
            if low >= high:
                continue
            score(queries[b], keys, first, low, high, shape, weights)
            score(back.given[h, b], values, first, low, high, shape, pulls)
            top = read_tile(tile_of(queries, 0.0, vectors, (0,)), back.logs[h, b], 0)
            if slope != 0.0:
                zero = tile_of(queries, 0.0, vectors, (0,))
                for j in range(low, high):
                    lower_row(zero, weights, j - first, i, j, slope)
            raise_scores(weights, first, edges, top, i, view, unnormalised, terms, totals)
            _pull(
                weights, pulls, first, low, high, i, biased, back.due[h, b], back.far[h, b], shape
            )
            weigh(pulls, key_rows, first, low, high, shape, back.queries_back[h, b])
            over = (low // group * group - first, -(-high // group) * group - first)
            for rows in (weights, pulls):
                _clear_rows(rows, over[0], low - first)
                _clear_rows(rows, high - first, over[1])
            _add_outers(given_rows, i, block, weights, first, low, high, n_parts, rear, values_back)
            _add_outers(query_rows, i, block, pulls, first, low, high, n_parts, rear, keys_back)


@no_type_check
@compiled(fastmath=EXACT, nogil=True)
def mix_back(
    packed, back, slopes, biased, causal, window, unnormalised, n, shape, rear, terms, begin, end
):
    """Do the jobs begin ... end - 1: one copy's share of a head's blocks each."""
    n_blocks, copies = packed.queries.shape[1], back.keys_back.shape[0]
    sees = (causal, window, unnormalised)
    for job in range(begin, end):
        h, copy = job // copies, job % copies
        first, last = n_blocks * copy // copies, n_blocks * (copy + 1) // copies
        slope = slopes[h] * LOG2E
        _head_back(packed, back, h, copy, slope, biased, sees, n, shape, rear, terms, first, last)
