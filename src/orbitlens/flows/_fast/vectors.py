"""Vectors for compiled code: one number of eight tokens, as registers hold them.

Enters: arrays whose columns are tokens. Leaves: the numba types `Lanes` (one float64 of each token)
and `Bundle` (some coordinates of them), and the operations that loops are made of. LLVM takes the
widest instructions that the processor has: eight lanes are one register of AVX-512 and two of AVX2.
Nothing is reordered: a token's numbers do not depend on which lane it is in.
"""

import math
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from orbitlens.running._compiled.powers import HIGHEST, LANES

WORD = ir.DoubleType()
VECTOR = ir.VectorType(WORD, LANES)
BITS = ir.VectorType(ir.IntType(64), LANES)
MANTISSA = 52  # bits


class Lanes(types.Type):
    """One number of several tokens."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


class Bundle(types.Type):
    """Some coordinates of several tokens."""

    def __init__(self, width: int) -> None:
        self.width = width
        super().__init__(name=f"Bundle({width})")


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):
    """Lanes are a vector of LLVM's."""

    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, VECTOR)


@register_model(Bundle)
class BundleModel(models.PrimitiveModel):
    """A bundle is an array of vectors, which LLVM takes apart again."""

    def __init__(self, manager: Any, kind: Bundle) -> None:
        super().__init__(manager, kind, ir.ArrayType(VECTOR, kind.width))


LANES_TYPE = Lanes()

# --- pieces of code --------------------------------------------------------------------------


def _constant(value: float) -> Any:
    return ir.Constant(VECTOR, [value] * LANES)


def _spread(builder: Any, value: Any) -> Any:
    nothing, whole = ir.Constant(VECTOR, ir.Undefined), ir.IntType(32)
    first = builder.insert_element(nothing, value, whole(0))
    zeros = ir.Constant(ir.VectorType(whole, LANES), [0] * LANES)
    return builder.shuffle_vector(first, nothing, zeros)


def _fused(builder: Any, *numbers: Any) -> Any:
    """Return x y + z, rounded once."""
    kind = ir.FunctionType(VECTOR, [VECTOR] * 3)
    name = f"llvm.fma.v{LANES}f64"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), numbers)


def _pointer(context: Any, builder: Any, kind: Any, array: Any, row: int, column: Any) -> Any:
    made = context.make_array(kind)(context, builder, array)
    places = [context.get_constant(types.intp, row), column]
    return cgutils.get_item_pointer(context, builder, kind, made, places, wraparound=False)


def _spread_number(context: Any, builder: Any, kind: Any, array: Any, row: int, j: Any) -> Any:
    return _spread(builder, builder.load(_pointer(context, builder, kind, array, row, j)))


def _read(builder: Any, pointer: Any) -> Any:
    return builder.load(builder.bitcast(pointer, VECTOR.as_pointer()), align=8)


def _write(builder: Any, value: Any, pointer: Any) -> None:
    builder.store(value, builder.bitcast(pointer, VECTOR.as_pointer()), align=8)


def _polynomial(builder: Any, x: Any, terms: list[Any]) -> Any:
    total = terms[-1]
    for term in reversed(terms[:-1]):
        total = _fused(builder, total, x, term)
    return total


def _power(builder: Any, s: Any, lowest: Any, magic: Any, terms: list[Any]) -> Any:
    """Return 2^s: the whole part of s goes to the bits of the exponent. NaN stays NaN."""
    s = builder.select(builder.fcmp_ordered("<", s, lowest), lowest, s)
    rounded = builder.fadd(s, magic)  # a whole number, in the low bits
    x = builder.fsub(s, builder.fsub(rounded, magic))
    square = builder.fmul(x, x)
    # Even and odd powers apart: two chains of products, neither of which waits for the other.
    even, odd = (_polynomial(builder, square, terms[part::2]) for part in (0, 1))
    p = _fused(builder, odd, x, even)
    shift = ir.Constant(BITS, [MANTISSA] * LANES)
    moved = builder.shl(builder.bitcast(rounded, BITS), shift)
    return builder.bitcast(builder.add(builder.bitcast(p, BITS), moved), VECTOR)


def _offsets(builder: Any, i: Any, j: Any) -> Any:
    """Return i - j, i + 1 - j, ... as floats."""
    first = _spread(builder, builder.sitofp(builder.sub(i, j), WORD))
    return builder.fadd(first, ir.Constant(VECTOR, [float(lane) for lane in range(LANES)]))


def _absolute(builder: Any, x: Any) -> Any:
    return builder.select(
        builder.fcmp_ordered("<", x, _constant(0.0)), builder.fsub(_constant(-0.0), x), x
    )


# --- operations of compiled code -------------------------------------------------------------


@intrinsic
def bundle(_: Any, array: Any, i: Any, factor: Any, coordinates: Any) -> Any:
    """Return factor times the columns i, i + 1, ...; `coordinates` is as long as they are."""

    def generate(context: Any, builder: Any, _signature: Any, a: Any) -> Any:
        made = ir.Constant(ir.ArrayType(VECTOR, coordinates.count), ir.Undefined)
        by = _spread(builder, a[2])
        for c in range(coordinates.count):
            value = _read(builder, _pointer(context, builder, array, a[0], c, a[1]))
            made = builder.insert_value(made, builder.fmul(value, by), c)
        return made

    signature = Bundle(coordinates.count)(array, types.intp, types.float64, coordinates)
    return signature, generate


@intrinsic
def no_bundle(_: Any, coordinates: Any) -> Any:
    """Return a bundle of zeros."""
    zeros = ir.Constant(
        ir.ArrayType(VECTOR, coordinates.count), [_constant(0.0)] * coordinates.count
    )
    return Bundle(coordinates.count)(coordinates), lambda *_: zeros


@intrinsic
def spread(_: Any, value: Any) -> Any:
    """Return a number in every lane."""
    return LANES_TYPE(types.float64), lambda _c, builder, _s, a: _spread(builder, a[0])


@intrinsic
def lanes(_: Any, array: Any, row: Any, i: Any) -> Any:
    """Return the columns i, i + 1, ... of one row of an array."""

    def generate(context: Any, builder: Any, _signature: Any, a: Any) -> Any:
        made = context.make_array(array)(context, builder, a[0])
        places = [a[1], a[2]]
        return _read(
            builder,
            cgutils.get_item_pointer(context, builder, array, made, places, wraparound=False),
        )

    return LANES_TYPE(array, types.intp, types.intp), generate


@intrinsic
def product(_: Any, of: Any, array: Any, j: Any) -> Any:
    """Return the inner products of a bundle's tokens with column j of an array."""

    def generate(context: Any, builder: Any, _signature: Any, a: Any) -> Any:
        numbers = [_spread_number(context, builder, array, a[1], c, a[2]) for c in range(of.width)]
        total = builder.fmul(builder.extract_value(a[0], 0), numbers[0])
        for c in range(1, of.width):
            total = _fused(builder, builder.extract_value(a[0], c), numbers[c], total)
        return total

    return LANES_TYPE(of, array, types.intp), generate


@intrinsic
def gather(_: Any, of: Any, weight: Any, array: Any, j: Any) -> Any:
    """Return a bundle plus weight times column j of an array."""

    def generate(context: Any, builder: Any, _signature: Any, a: Any) -> Any:
        made = a[0]
        for c in range(of.width):
            number = _spread_number(context, builder, array, a[2], c, a[3])
            more = _fused(builder, a[1], number, builder.extract_value(made, c))
            made = builder.insert_value(made, more, c)
        return made

    return of(of, weight, array, types.intp), generate


@intrinsic
def put(_: Any, of: Any, factor: Any, array: Any, i: Any) -> Any:
    """Write a bundle, times a factor a lane, into the columns i, i + 1, ... of an array."""

    def generate(context: Any, builder: Any, _signature: Any, a: Any) -> Any:
        for c in range(of.width):
            value = builder.fmul(builder.extract_value(a[0], c), a[1])
            _write(builder, value, _pointer(context, builder, array, a[2], c, a[3]))
        return context.get_dummy_value()

    return types.void(of, factor, array, types.intp), generate


@intrinsic
def put_more(_: Any, of: Any, factor: Any, array: Any, i: Any) -> Any:
    """Add a bundle, times a factor a lane, to the columns i, i + 1, ... of an array."""

    def generate(context: Any, builder: Any, _signature: Any, a: Any) -> Any:
        for c in range(of.width):
            place = _pointer(context, builder, array, a[2], c, a[3])
            mine = builder.extract_value(a[0], c)
            _write(builder, _fused(builder, mine, a[1], _read(builder, place)), place)
        return context.get_dummy_value()

    return types.void(of, factor, array, types.intp), generate


@intrinsic
def inner(_: Any, x: Any, y: Any) -> Any:
    """Return the inner product of two bundles, in each lane."""

    def generate(_context: Any, builder: Any, _signature: Any, a: Any) -> Any:
        pairs = [[builder.extract_value(each, c) for each in a] for c in range(x.width)]
        total = builder.fmul(*pairs[0])
        for pair in pairs[1:]:
            total = _fused(builder, *pair, total)
        return total

    return LANES_TYPE(x, y), generate


@intrinsic
def write_lanes(_: Any, value: Any, array: Any, row: Any, i: Any) -> Any:
    """Write lanes into the columns i, i + 1, ... of one row of an array."""

    def generate(context: Any, builder: Any, _signature: Any, a: Any) -> Any:
        made = context.make_array(array)(context, builder, a[1])
        places = [a[2], a[3]]
        pointer = cgutils.get_item_pointer(context, builder, array, made, places, wraparound=False)
        _write(builder, a[0], pointer)
        return context.get_dummy_value()

    return types.void(value, array, types.intp, types.intp), generate


@intrinsic
def power(_: Any, s: Any, table: Any, terms: Any) -> Any:
    """Return 2^s by a table of `powers.py` whose polynomial is as long as `terms`.

    The table is read from memory, where an instruction can take it from as it multiplies; for
    constants the compiler makes instructions of their own.
    """

    def generate(context: Any, builder: Any, _signature: Any, a: Any) -> Any:
        nought = context.get_constant(types.intp, 0)
        rows = [
            _read(builder, _pointer(context, builder, table, a[1], row, nought))
            for row in range(terms.count + 2)
        ]
        return _power(builder, a[0], rows[0], rows[1], rows[2:])

    return s(s, table, terms), generate


@intrinsic
def plus(_: Any, x: Any, y: Any) -> Any:
    """Return x + y."""
    return x(x, y), lambda _c, builder, _s, a: builder.fadd(*a)


@intrinsic
def minus(_: Any, x: Any, y: Any) -> Any:
    """Return x - y."""
    return x(x, y), lambda _c, builder, _s, a: builder.fsub(*a)


@intrinsic
def times(_: Any, x: Any, y: Any) -> Any:
    """Return x y."""
    return x(x, y), lambda _c, builder, _s, a: builder.fmul(*a)


@intrinsic
def over(_: Any, x: Any, y: Any) -> Any:
    """Return x / y."""
    return x(x, y), lambda _c, builder, _s, a: builder.fdiv(*a)


@intrinsic
def largest(_: Any, x: Any, y: Any) -> Any:
    """Return the larger of two."""

    def generate(_context: Any, builder: Any, _signature: Any, a: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", a[0], a[1]), a[1], a[0])

    return x(x, y), generate


@intrinsic
def highest(_: Any, x: Any) -> Any:
    """Return the largest lane, as a number."""

    def generate(_context: Any, builder: Any, _signature: Any, a: Any) -> Any:
        numbers = [builder.extract_element(a[0], ir.IntType(32)(lane)) for lane in range(LANES)]
        while len(numbers) > 1:
            pairs = zip(numbers[::2], numbers[1::2], strict=True)
            numbers = [builder.select(builder.fcmp_ordered("<", x, y), y, x) for x, y in pairs]
        return numbers[0]

    return types.float64(x), generate


@intrinsic
def infinite_if_nan(_: Any, x: Any) -> Any:
    """Return x, with infinity for what is not a number."""

    def generate(_context: Any, builder: Any, _signature: Any, a: Any) -> Any:
        return builder.select(builder.fcmp_ordered("ord", a[0], a[0]), a[0], _constant(math.inf))

    return x(x), generate


@intrinsic
def capped(_: Any, x: Any) -> Any:
    """Return x, or NaN where 2^x is not finite."""

    def generate(_context: Any, builder: Any, _signature: Any, a: Any) -> Any:
        fits = builder.fcmp_ordered("<=", a[0], _constant(HIGHEST))
        return builder.select(fits, a[0], _constant(math.nan))

    return x(x), generate


@intrinsic
def apart(_: Any, i: Any, j: Any) -> Any:
    """Return |i - j|, |i + 1 - j|, ..."""

    def generate(_context: Any, builder: Any, _signature: Any, a: Any) -> Any:
        return _absolute(builder, _offsets(builder, a[0], a[1]))

    return LANES_TYPE(types.intp, types.intp), generate


@intrinsic
def hidden_as(_: Any, x: Any, i: Any, j: Any, most_before: Any, most_after: Any, other: Any) -> Any:
    """Return x, but a number where i, i + 1, ... do not see j: too far before or after them."""

    def generate(_context: Any, builder: Any, _signature: Any, a: Any) -> Any:
        offsets = _offsets(builder, a[1], a[2])
        before = builder.fcmp_ordered("<=", offsets, _spread(builder, a[3]))
        after = builder.fcmp_ordered(
            ">=", offsets, builder.fsub(_constant(-0.0), _spread(builder, a[4]))
        )
        return builder.select(builder.and_(before, after), a[0], _spread(builder, a[5]))

    real = types.float64
    return x(x, types.intp, types.intp, real, real, real), generate


@intrinsic
def borrowed(_: Any, array: Any) -> Any:
    """Return an array that is not counted: someone else keeps it for as long as it is read.

    Numba counts references wherever an array is passed on, with an instruction that locks memory;
    of a system's twenty arrays this took as long as a quarter of the arithmetic of 64 tokens.
    """

    def generate(context: Any, builder: Any, _signature: Any, a: Any) -> Any:
        made = context.make_array(array)(context, builder, a[0])
        made.meminfo = cgutils.get_null_value(made.meminfo.type)
        made.parent = cgutils.get_null_value(made.parent.type)
        return made._getvalue()

    return array(array), generate
