"""Loops of products of float64 matrices, at the full width of AVX-512.

Enters: two stacks of matrices, whatever their strides. Leaves: their products. A panel of the
second matrix's columns lies packed in the core's cache while rows of the first go by, twelve at a
time: each number of these is multiplied with two vectors of the panel, in registers.
"""

from typing import no_type_check

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from orbitlens.running._compiled.compiling import compiled
from orbitlens.running._compiled.tile_vectors import add_product, put_tile, tile_of

DEPTH = 256  # numbers of a row that are multiplied before the next rows are
ROWS = 192  # rows that stay in the second cache while all panels go by
ACROSS = 16  # columns of a panel
COLUMNS = 256  # whose panels stay in the second cache
LANES = (0, 0)  # vectors of a panel's row, as a type that numba knows the length of
TALL, SHORT = (0,) * 12, (0,) * 4  # rows at a time; what is left over goes by fours
EXACT = {"contract"}


@no_type_check
@compiled(fastmath=EXACT)
def _pack(b, start, row_step, column_step, depth, width, panel):
    """Write `width` columns of `depth` rows beside each other, filled up with zeros."""
    for k in range(depth):
        place = start + k * row_step
        for c in range(ACROSS):
            panel[k, c] = b[place + c * column_step] if c < width else 0.0


@no_type_check
@compiled(fastmath=EXACT)
def _rows(a, start, row_step, column_step, panel, depth, outputs, found):
    """Write the products of some rows, as many as `outputs` is long, with a panel."""
    tile = tile_of(panel, 0.0, LANES, outputs)
    for k in range(depth):
        tile = add_product(tile, panel, k, a, start + k * column_step, row_step)
    put_tile(tile, found, 0)


@no_type_check
@compiled(fastmath=EXACT)
def _hand_over(found, skipped, n_rows, width, is_first, out, place, row_step):
    """Write rows of products to where they belong, or add them to what is there."""
    for o in range(skipped, n_rows):
        for c in range(width):
            at = place + o * row_step + c
            out[at] = found[o, c] if is_first else out[at] + found[o, c]


@no_type_check
@compiled(fastmath=EXACT)
def _panel(a, start, a_row, a_column, panel, depth, rows, width, is_first, out, place, m, found):
    """Multiply some rows, first to last, with a panel; `place` is where row 0 goes."""
    i, last = rows
    while i < last:
        if last - i >= len(TALL):
            _rows(a, start + i * a_row, a_row, a_column, panel, depth, TALL, found)
            _hand_over(found, 0, len(TALL), width, is_first, out, place + i * m, m)
            i += len(TALL)
            continue
        # The last rows are multiplied with some before them that are done already.
        begin = min(i, last - len(SHORT))
        _rows(a, start + begin * a_row, a_row, a_column, panel, depth, SHORT, found)
        _hand_over(found, i - begin, len(SHORT), width, is_first, out, place + begin * m, m)
        i = begin + len(SHORT)


@no_type_check
@compiled(fastmath=EXACT)
def _some_columns(a, b, out, starts, n, depth, low, high, m, a_steps, b_steps, panels, found):
    """Multiply a matrix with the columns low ... high - 1 of another."""
    a_start, b_start, out_start = starts
    for first in range(0, depth, DEPTH):
        deep = min(DEPTH, depth - first)
        for p in range((high - low + ACROSS - 1) // ACROSS):
            c = low + p * ACROSS
            place = b_start + first * b_steps[0] + c * b_steps[1]
            _pack(b, place, b_steps[0], b_steps[1], deep, min(ACROSS, high - c), panels[p])
        begin = a_start + first * a_steps[1]
        for row in range(0, n, ROWS):
            rows = (row, min(row + ROWS, n))
            for p in range((high - low + ACROSS - 1) // ACROSS):
                c = low + p * ACROSS
                width, place = min(ACROSS, high - c), out_start + c
                _panel(
                    a, begin, a_steps[0], a_steps[1], panels[p], deep, rows, width,
                    first == 0, out, place, m, found,
                )  # fmt: skip


@no_type_check
def multiply_stacks(
    a, b, out, batch, n, depth, m, a_batch, a_row, a_column, b_batch, b_row, b_column
):
    """Multiply stacks of matrices, n x depth and depth x m; n is at least as long as `SHORT`."""
    everything = (2**60,)  # how far the addresses reach is decided by the steps
    left, right, product = carray(a, everything), carray(b, everything), carray(out, everything)
    panels = np.empty((COLUMNS // ACROSS, DEPTH, ACROSS))
    found = np.empty((len(TALL), ACROSS))
    for h in range(batch):
        starts = (h * a_batch, h * b_batch, h * n * m)
        for low in range(0, m, COLUMNS):
            high = min(low + COLUMNS, m)
            _some_columns(
                left, right, product, starts, n, depth, low, high, m,
                (a_row, a_column), (b_row, b_column), panels, found,
            )  # fmt: skip
