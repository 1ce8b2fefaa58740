"""The attention of one head as a C function, called by its address.

Enters: arrays of compiled code. Leaves: what `lanes.py` or `rows.py` write into the last of them.
Numba optimises whatever a function calls anew with every caller; these loops are large, and the
integrator calls them through six other functions. Behind an address they are compiled once.
"""

from functools import cache
from typing import Any, no_type_check

from llvmlite import ir
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

from orbitlens.flows._fast.exponentials import EXACT
from orbitlens.flows._fast.lanes import WIDEST_LANES, mix_lanes
from orbitlens.flows._fast.rows import mix_rows
from orbitlens.running._compiled.compiling import compiled_c
from orbitlens.running._compiled.powers import FULL, LANES

N_ARRAYS, N_NUMBERS, N_REALS = 7, 8, 2
SIGNATURE = types.void(
    *[types.CPointer(types.float64)] * N_ARRAYS,
    *[types.intp] * N_NUMBERS,
    *[types.float64] * N_REALS,
)
N_FULL = len(FULL) + 2  # rows of an exact table


@cache
def mixer_address() -> int:
    """Return where the machine code is; the first call compiles it, or reads it from a cache."""
    return int(compiled_c(SIGNATURE, fastmath=EXACT)(_mix_head).address)


@no_type_check
def _mix_head(
    q,
    k,
    v,
    out,
    full,
    quick,
    memory,
    width,
    columns,
    n,
    n_quick,
    n_memory,
    causal,
    window,
    unnormalised,
    scale,
    slope,
):
    shape = (width, columns)
    queries, keys, values = carray(q, shape), carray(k, shape), carray(v, shape)
    mixed, hides, raw = carray(out, shape), causal != 0, unnormalised != 0
    if width <= WIDEST_LANES:
        tables = (carray(full, (N_FULL, LANES)), carray(quick, (n_quick, LANES)))
        rows, sees = carray(memory, (n_memory, LANES)), (hides, window, raw)
        mix_lanes(queries, keys, values, scale, slope, *sees, n, tables, 0, n, rows, mixed)
    else:
        mix_rows(queries, keys, values, scale, slope, hides, window, raw, 0, n, mixed)


@intrinsic
def mix_head(_: Any, address: Any, arrays: Any, numbers: Any, reals: Any) -> Any:
    """Call the function at an address with seven arrays, eight whole numbers and two floats."""

    def generate(context: Any, builder: Any, _signature: Any, a: Any) -> Any:
        given = []
        for c in range(N_ARRAYS):
            array = builder.extract_value(a[1], c)
            given.append(context.make_array(arrays[c])(context, builder, array).data)
        given += [builder.extract_value(a[2], c) for c in range(N_NUMBERS)]
        given += [builder.extract_value(a[3], c) for c in range(N_REALS)]
        # Numba's C functions return what they return, without a status.
        kind = ir.FunctionType(ir.VoidType(), [value.type for value in given])
        builder.call(builder.inttoptr(a[0], kind.as_pointer()), given)
        return context.get_dummy_value()

    whole, real = types.UniTuple(types.intp, N_NUMBERS), types.UniTuple(types.float64, N_REALS)
    return types.void(types.intp, arrays, whole, real), generate
