"""Exponentials that loops over tokens turn into vector instructions, in both precisions.

Enters: a float, 64 or 32 bits wide. Leaves: its exponential, of the same width, by arithmetic
without branches: the whole part goes to the bits of the exponent, the rest through a polynomial.
"""

from typing import Any, no_type_check

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from orbitlens.running._compiled.compiling import compiled

EXACT = {"contract"}  # reordering would undo the rounding trick of `exponential`
LOWEST = -708.0  # of an exponent; below, the result is not a normal number
HIGHEST = 709.0  # of an exponent; above, the result is not finite
# The same in float32.
LOWEST_SINGLE = -87.0
HIGHEST_SINGLE = 88.0

LOG2E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
MAGIC = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to a whole number, in the low bits
# exp(x) for |x| <= ln(2) / 2: the polynomial through its values at 12 Chebyshev points, whose
# relative error is 1.6e-17; it begins 1 + x.
_C2, _C3 = 0.5000000000000019, 0.1666666666666668
_C4, _C5 = 0.04166666666648795, 0.008333333333319589
_C6, _C7 = 0.0013888888952352863, 0.00019841269890076403
_C8, _C9 = 2.4801485441561313e-05, 2.755724088722987e-06
_C10, _C11 = 2.763265472252779e-07, 2.5110049204818658e-08


@intrinsic
def _times_two_to(typingctx: Any, p: Any, t: Any) -> Any:
    """Return p times 2^k, where k is the low bits of t: added to p's exponent, in the register."""
    whole, mantissa = (32, 23) if p == types.float32 else (64, 52)

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = ir.IntType(whole)
        bits, k = (builder.bitcast(argument, kind) for argument in arguments)
        moved = builder.add(bits, builder.shl(k, kind(mantissa)))
        return builder.bitcast(moved, arguments[0].type)

    return p(p, t), generate


@no_type_check
@compiled(fastmath=EXACT)
def _exponential_double(s):
    """Return exp(s) for s at most HIGHEST, to 3e-16; without branches, so that loops vectorise."""
    s = max(s, LOWEST)
    t = s * LOG2E + MAGIC
    k = t - MAGIC
    x = s - k * LN2_HIGH - k * LN2_LOW
    x2 = x * x
    x4 = x2 * x2
    low = (_C2 + x * _C3) + x2 * (_C4 + x * _C5)
    high = (_C6 + x * _C7) + x2 * (_C8 + x * _C9) + x4 * (_C10 + x * _C11)
    p = 1.0 + (x + x2 * (low + x4 * high))  # the 1 last: then all else is rounded far below it
    return _times_two_to(p, t)


# 2^x for |x| <= 1/2 in float32: 1 + x times the polynomial through (2^x - 1) / x at six Chebyshev
# points, whose relative error is 5e-9.
_ONE_SINGLE = np.float32(1.0)
_MAGIC_SINGLE = np.float32(12582912.0)  # 1.5 * 2^23
_LOG2E_SINGLE, _LOWEST_SINGLE = np.float32(LOG2E), np.float32(LOWEST_SINGLE)
_S1, _S2 = np.float32(6.93147188e-01), np.float32(2.40226508e-01)
_S3, _S4 = np.float32(5.55035711e-02), np.float32(9.61808256e-03)
_S5, _S6 = np.float32(1.33908634e-03), np.float32(1.54531629e-04)


@no_type_check
@compiled(fastmath=EXACT)
def _exponential_single(s):
    """Return exp(s) to 2e-7, in float32 throughout: twice as many to a register."""
    s = max(s, _LOWEST_SINGLE) * _LOG2E_SINGLE
    t = s + _MAGIC_SINGLE
    x = s - (t - _MAGIC_SINGLE)
    x2 = x * x
    p = (_S1 + x * _S2) + x2 * ((_S3 + x * _S4) + x2 * (_S5 + x * _S6))
    return _times_two_to(_ONE_SINGLE + x * p, t)


# --- by precision ----------------------------------------------------------------------------


@no_type_check
def exponential(s):
    """Return exp(s) for s at most HIGHEST, as wide as s is; for compiled code."""


@no_type_check
@overload(exponential, jit_options={"fastmath": EXACT})
def _exponential(s):
    if s == types.float32:
        return lambda s: _exponential_single(s)
    return lambda s: _exponential_double(s)
