"""Tiles for compiled code: some numbers of many tokens at once, in registers, in both precisions.

Enters: arrays whose last axis is a block of tokens. Leaves: the numba type `Tile` (for each of some
outputs, the numbers of a block of tokens) and the operations that loops of `tiles.py` are made of.
A tile takes a rank-one product at a time, as kernels of matrix products do: loads are few beside
the products that each is used in. As in `vectors.py`, nothing is reordered.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from orbitlens.running._compiled.powers import FULL, HIGHEST, LOWEST, SHORT

REGISTER = 64  # bytes of a vector: eight numbers, or sixteen in float32
# 2^x for |x| <= 1/2 in float32, whose relative error is 5e-9; see `exponentials.py`.
SINGLE = (
    1.0,
    6.93147188e-01,
    2.40226508e-01,
    5.55035711e-02,
    9.61808256e-03,
    1.33908634e-03,
    1.54531629e-04,
)
LOWEST_SINGLE, HIGHEST_SINGLE = -125.0, 127.0
POLYNOMIALS = {len(terms): terms for terms in (FULL, SHORT, SINGLE)}


def lanes_of(dtype: Any) -> int:
    """Return how many numbers of a type are in a vector."""
    return REGISTER // np.dtype(dtype).itemsize


class Tile(types.Type):
    """For each output, the numbers of some vectors of tokens."""

    def __init__(self, bits: int, n_vectors: int, n_outputs: int) -> None:
        self.bits, self.n_vectors, self.n_outputs = bits, n_vectors, n_outputs
        super().__init__(name=f"Tile({bits}, {n_vectors}, {n_outputs})")


@register_model(Tile)
class TileModel(models.PrimitiveModel):
    """A tile is an array of vectors, which LLVM takes apart again."""

    def __init__(self, manager: Any, kind: Tile) -> None:
        made = ir.ArrayType(_vector(kind.bits), kind.n_vectors * kind.n_outputs)
        super().__init__(manager, kind, made)


# --- pieces of code --------------------------------------------------------------------------


def _word(bits: int) -> Any:
    return ir.DoubleType() if bits == 64 else ir.FloatType()


def _vector(bits: int, word: Any = None) -> Any:
    return ir.VectorType(word or _word(bits), 8 * REGISTER // bits)


def _constant(bits: int, value: float) -> Any:
    kind = _vector(bits)
    return ir.Constant(kind, [value] * kind.count)


def _spread(builder: Any, value: Any, bits: int) -> Any:
    kind, whole = _vector(bits), ir.IntType(32)
    nothing = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(nothing, value, whole(0))
    zeros = ir.Constant(ir.VectorType(whole, kind.count), [0] * kind.count)
    return builder.shuffle_vector(first, nothing, zeros)


def _fused(builder: Any, bits: int, *numbers: Any) -> Any:
    """Return x y + z, rounded once."""
    kind = _vector(bits)
    name = f"llvm.fma.v{kind.count}f{bits}"
    declared = ir.FunctionType(kind, [kind] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, declared, name), numbers)


def _place(context: Any, builder: Any, kind: Any, array: Any, *places: Any) -> Any:
    made = context.make_array(kind)(context, builder, array)
    return cgutils.get_item_pointer(context, builder, kind, made, list(places), wraparound=False)


def _row(context: Any, builder: Any, kind: Any, array: Any, row: Any, m: int) -> Any:
    """Return where vector m of a row of a table is, as a pointer to vectors."""
    bits = kind.dtype.bitwidth
    column = context.get_constant(types.intp, m * 8 * REGISTER // bits)
    pointer = _place(context, builder, kind, array, row, column)
    return builder.bitcast(pointer, _vector(bits).as_pointer())


def _load(builder: Any, pointer: Any, bits: int) -> Any:
    return builder.load(pointer, align=bits // 8)


def _polynomial(builder: Any, bits: int, x: Any, terms: list[Any]) -> Any:
    total = terms[-1]
    for term in reversed(terms[:-1]):
        total = _fused(builder, bits, total, x, term)
    return total


def _power(builder: Any, bits: int, s: Any, values: tuple[float, ...]) -> Any:
    """Return 2^s: the whole part of s goes to the bits of the exponent. NaN stays NaN."""
    mantissa = 52 if bits == 64 else 23
    lowest = _constant(bits, LOWEST if bits == 64 else LOWEST_SINGLE)
    magic = _constant(bits, 1.5 * 2.0**mantissa)
    terms = [_constant(bits, value) for value in values]
    whole = _vector(bits, ir.IntType(bits))
    s = builder.select(builder.fcmp_ordered("<", s, lowest), lowest, s)
    rounded = builder.fadd(s, magic)  # a whole number, in the low bits
    x = builder.fsub(s, builder.fsub(rounded, magic))
    square = builder.fmul(x, x)
    # Even and odd powers apart: two chains of products, neither of which waits for the other.
    even, odd = (_polynomial(builder, bits, square, terms[part::2]) for part in (0, 1))
    p = _fused(builder, bits, odd, x, even)
    shift = ir.Constant(whole, [mantissa] * whole.count)
    moved = builder.shl(builder.bitcast(rounded, whole), shift)
    return builder.bitcast(builder.add(builder.bitcast(p, whole), moved), s.type)


def _offsets(builder: Any, bits: int, i: Any, j: Any, m: int) -> Any:
    """Return i - j, i + 1 - j, ... as floats, of vector m of a block that begins at i."""
    first = _spread(builder, builder.sitofp(builder.sub(i, j), _word(bits)), bits)
    kind = _vector(bits)
    steps = [float(m * kind.count + lane) for lane in range(kind.count)]
    return builder.fadd(first, ir.Constant(kind, steps))


def _absolute(builder: Any, bits: int, x: Any) -> Any:
    negative = builder.fcmp_ordered("<", x, _constant(bits, 0.0))
    return builder.select(negative, builder.fsub(_constant(bits, -0.0), x), x)


def _seen(builder: Any, bits: int, offsets: Any, before: Any, after: Any) -> Any:
    """Return which tokens see a key at these offsets: not too far before or after them."""
    first = _spread(builder, builder.fptrunc(before, _word(bits)) if bits == 32 else before, bits)
    last = _spread(builder, builder.fptrunc(after, _word(bits)) if bits == 32 else after, bits)
    near = builder.fcmp_ordered("<=", offsets, first)
    far = builder.fcmp_ordered(">=", offsets, builder.fsub(_constant(bits, -0.0), last))
    return builder.and_(near, far)


def _narrowed(builder: Any, bits: int, value: Any) -> Any:
    return builder.fptrunc(value, _word(bits)) if bits == 32 else value


# --- operations of compiled code -------------------------------------------------------------


@intrinsic
def tile_of(_: Any, like: Any, value: Any, vectors: Any, outputs: Any) -> Any:
    """Return a tile of one number, as wide as an array's; the last two are as long as it has."""
    bits = like.dtype.bitwidth
    kind = Tile(bits, vectors.count, outputs.count)

    def generate(_context: Any, builder: Any, _signature: Any, a: Any) -> Any:
        each = _spread(builder, _narrowed(builder, bits, a[1]), bits)
        made = ir.Constant(
            ir.ArrayType(_vector(bits), kind.n_vectors * kind.n_outputs), ir.Undefined
        )
        for p in range(kind.n_vectors * kind.n_outputs):
            made = builder.insert_value(made, each, p)
        return made

    return kind(like, types.float64, vectors, outputs), generate


@intrinsic
def add_product(_: Any, tile: Any, a: Any, row: Any, b: Any, start: Any, step: Any) -> Any:
    """Return a tile plus the products of a row of `a` with b[start], b[start + step], ..."""
    bits = tile.bits

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        made, first = args[0], _place(context, builder, b, args[3], args[4])
        rows = [
            _load(builder, _row(context, builder, a, args[1], args[2], m), bits)
            for m in range(tile.n_vectors)
        ]
        for o in range(tile.n_outputs):
            far = builder.mul(args[5], context.get_constant(types.intp, o))
            number = _spread(builder, builder.load(builder.gep(first, [far])), bits)
            for m, row_m in enumerate(rows):
                place = o * tile.n_vectors + m
                now = _fused(builder, bits, row_m, number, builder.extract_value(made, place))
                made = builder.insert_value(made, now, place)
        return made

    return tile(tile, a, types.intp, b, types.intp, types.intp), generate


@intrinsic
def read_tile(_: Any, tile: Any, array: Any, row: Any) -> Any:
    """Return a tile of the shape of another, read from as many rows of an array."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        made = args[0]
        for o in range(tile.n_outputs):
            at = builder.add(args[2], context.get_constant(types.intp, o))
            for m in range(tile.n_vectors):
                value = _load(builder, _row(context, builder, array, args[1], at, m), tile.bits)
                made = builder.insert_value(made, value, o * tile.n_vectors + m)
        return made

    return tile(tile, array, types.intp), generate


@intrinsic
def put_tile(_: Any, tile: Any, array: Any, row: Any) -> Any:
    """Write a tile into as many rows of an array."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        for o in range(tile.n_outputs):
            at = builder.add(args[2], context.get_constant(types.intp, o))
            for m in range(tile.n_vectors):
                value = builder.extract_value(args[0], o * tile.n_vectors + m)
                pointer = _row(context, builder, array, args[1], at, m)
                builder.store(value, pointer, align=tile.bits // 8)
        return context.get_dummy_value()

    return types.void(tile, array, types.intp), generate


@intrinsic
def raise_row(_: Any, total: Any, array: Any, row: Any, top: Any, terms: Any) -> Any:
    """Replace the scores s of a row by 2^(s - top), and return the total plus these."""
    values, bits = POLYNOMIALS[terms.count], total.bits

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        made = args[0]
        for m in range(total.n_vectors):
            pointer = _row(context, builder, array, args[1], args[2], m)
            s = builder.fsub(_load(builder, pointer, bits), builder.extract_value(args[3], m))
            weight = _power(builder, bits, s, values)
            builder.store(weight, pointer, align=bits // 8)
            more = builder.fadd(builder.extract_value(made, m), weight)
            made = builder.insert_value(made, more, m)
        return made

    return total(total, array, types.intp, total, terms), generate


@intrinsic
def raise_edge(
    _: Any, total: Any, array: Any, row: Any, top: Any, i: Any, j: Any, view: Any, terms: Any
) -> Any:
    """Do `raise_row` where tokens i, i + 1, ... may not see key j, or powers may not be finite."""
    values, bits = POLYNOMIALS[terms.count], total.bits
    highest = HIGHEST if bits == 64 else HIGHEST_SINGLE

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        made = args[0]
        before, after = (builder.extract_value(args[6], p) for p in (0, 1))
        for m in range(total.n_vectors):
            pointer = _row(context, builder, array, args[1], args[2], m)
            s = builder.fsub(_load(builder, pointer, bits), builder.extract_value(args[3], m))
            offsets = _offsets(builder, bits, args[4], args[5], m)
            fits = builder.fcmp_ordered("<=", s, _constant(bits, highest))
            s = builder.select(fits, s, _constant(bits, math.nan))
            weight = _power(builder, bits, s, values)
            seen = _seen(builder, bits, offsets, before, after)
            weight = builder.select(seen, weight, _constant(bits, 0.0))
            builder.store(weight, pointer, align=bits // 8)
            more = builder.fadd(builder.extract_value(made, m), weight)
            made = builder.insert_value(made, more, m)
        return made

    pair = types.UniTuple(types.float64, 2)
    whole = types.intp
    return total(total, array, whole, total, whole, whole, pair, terms), generate


@intrinsic
def lower_row(_: Any, tile: Any, array: Any, row: Any, i: Any, j: Any, slope: Any) -> Any:
    """Take slope |i - j|, slope |i + 1 - j|, ... off the scores in a row; the tile gives shapes."""
    bits = tile.bits

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        by = _spread(builder, _narrowed(builder, bits, args[5]), bits)
        for m in range(tile.n_vectors):
            pointer = _row(context, builder, array, args[1], args[2], m)
            far = _absolute(builder, bits, _offsets(builder, bits, args[3], args[4], m))
            s = builder.fsub(_load(builder, pointer, bits), builder.fmul(by, far))
            builder.store(s, pointer, align=bits // 8)
        return context.get_dummy_value()

    return types.void(tile, array, types.intp, types.intp, types.intp, types.float64), generate


@intrinsic
def largest_seen(_: Any, top: Any, array: Any, row: Any, i: Any, j: Any, view: Any) -> Any:
    """Return the larger of `top` and the scores in a row, of tokens that see key j."""
    bits = top.bits

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        made = args[0]
        before, after = (builder.extract_value(args[5], p) for p in (0, 1))
        for m in range(top.n_vectors):
            s = _load(builder, _row(context, builder, array, args[1], args[2], m), bits)
            known = builder.extract_value(made, m)
            seen = _seen(builder, bits, _offsets(builder, bits, args[3], args[4], m), before, after)
            more = builder.and_(seen, builder.fcmp_ordered("<", known, s))
            made = builder.insert_value(made, builder.select(more, s, known), m)
        return made

    pair = types.UniTuple(types.float64, 2)
    return top(top, array, types.intp, types.intp, types.intp, pair), generate


# --- the way back ----------------------------------------------------------------------------


@intrinsic
def pull_row(_: Any, due: Any, weights: Any, given: Any, row: Any) -> Any:
    """Replace what a row of weights was given by weight times that less what was due."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        for m in range(due.n_vectors):
            pointer = _row(context, builder, given, args[2], args[3], m)
            weight = _load(builder, _row(context, builder, weights, args[1], args[3], m), due.bits)
            more = builder.fsub(
                _load(builder, pointer, due.bits), builder.extract_value(args[0], m)
            )
            builder.store(builder.fmul(weight, more), pointer, align=due.bits // 8)
        return context.get_dummy_value()

    return types.void(due, weights, given, types.intp), generate


@intrinsic
def add_far(_: Any, total: Any, array: Any, row: Any, i: Any, j: Any) -> Any:
    """Return a total plus a row of numbers, each times |i - j|, |i + 1 - j|, ..."""
    bits = total.bits

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        made = args[0]
        for m in range(total.n_vectors):
            far = _absolute(builder, bits, _offsets(builder, bits, args[3], args[4], m))
            value = _load(builder, _row(context, builder, array, args[1], args[2], m), bits)
            more = _fused(builder, bits, far, value, builder.extract_value(made, m))
            made = builder.insert_value(made, more, m)
        return made

    return total(total, array, types.intp, types.intp, types.intp), generate
