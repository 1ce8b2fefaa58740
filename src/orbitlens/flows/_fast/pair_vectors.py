"""Vectors for pairs of tokens: sums that are kept lane by lane, and powers whose table is held.

Enters: arrays whose rows are eight lanes. Leaves: operations of compiled code, on the types of
`vectors.py`, for loops that write as they go.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from orbitlens.flows._fast.vectors import (
    LANES_TYPE,
    VECTOR,
    Bundle,
    _fused,
    _pointer,
    _power,
    _read,
    _write,
)
from orbitlens.running._compiled.powers import LANES


def _row(context: Any, builder: Any, kind: Any, array: Any, row: Any) -> Any:
    made = context.make_array(kind)(context, builder, array)
    places = [row, context.get_constant(types.intp, 0)]
    return cgutils.get_item_pointer(context, builder, kind, made, places, wraparound=False)


def _summed(builder: Any, rows: list[Any]) -> Any:
    """Return in lane m the sum of vector m's lanes: halves of pairs are added, level by level."""
    apart = 1
    while len(rows) > 1:
        first = [lane & ~apart | (LANES if lane & apart else 0) for lane in range(LANES)]
        masks = (first, [place + apart for place in first])
        kind = ir.VectorType(ir.IntType(32), LANES)
        parts = [
            [builder.shuffle_vector(x, y, ir.Constant(kind, mask)) for mask in masks]
            for x, y in zip(rows[::2], rows[1::2], strict=True)
        ]
        rows = [builder.fadd(*part) for part in parts]
        apart *= 2
    return rows[0]


@intrinsic
def keep(_: Any, of: Any, weight: Any, array: Any, j: Any) -> Any:
    """Add weight, and weight times each coordinate of a bundle, to the rows from j on of an array.

    A row is eight lanes wide, and they are not summed: see `summed`.
    """

    def generate(context: Any, builder: Any, _signature: Any, a: Any) -> Any:
        for c in range(of.width + 1):
            row = builder.add(a[3], context.get_constant(types.intp, c))
            place = _row(context, builder, array, a[2], row)
            old = _read(builder, place)
            if c == of.width:
                more = builder.fadd(a[1], old)
            else:
                more = _fused(builder, a[1], builder.extract_value(a[0], c), old)
            _write(builder, more, place)
        return context.get_dummy_value()

    return types.void(of, weight, array, types.intp), generate


@intrinsic
def summed(_: Any, array: Any, j: Any, step: Any) -> Any:
    """Return the sums of the rows j, j + step, ... of an array: one a lane."""

    def generate(context: Any, builder: Any, _signature: Any, a: Any) -> Any:
        rows, row = [], a[1]
        for _ in range(LANES):
            rows.append(_read(builder, _row(context, builder, array, a[0], row)))
            row = builder.add(row, a[2])
        return _summed(builder, rows)

    return LANES_TYPE(array, types.intp, types.intp), generate


@intrinsic
def held(_: Any, table: Any, terms: Any) -> Any:
    """Return a table of `powers.py` in registers; a loop that writes would read it anew."""

    def generate(context: Any, builder: Any, _signature: Any, a: Any) -> Any:
        nought = context.get_constant(types.intp, 0)
        made = ir.Constant(ir.ArrayType(VECTOR, terms.count + 2), ir.Undefined)
        for row in range(terms.count + 2):
            value = _read(builder, _pointer(context, builder, table, a[0], row, nought))
            made = builder.insert_value(made, value, row)
        return made

    return Bundle(terms.count + 2)(table, terms), generate


@intrinsic
def power_held(_: Any, s: Any, table: Any) -> Any:
    """Return 2^s by a table that is `held`."""

    def generate(_context: Any, builder: Any, _signature: Any, a: Any) -> Any:
        rows = [builder.extract_value(a[1], row) for row in range(table.width)]
        return _power(builder, a[0], rows[0], rows[1], rows[2:])

    return s(s, table), generate
