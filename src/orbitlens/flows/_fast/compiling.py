"""Compilation: numba's `njit`, with machine code kept between runs where that is possible.

Enters: a function and numba's options. Leaves: its compiled form. Numba keeps machine code beside
the source, in `NUMBA_CACHE_DIR` or under the home directory, and refuses to compile where none of
them can be written: in containers, and for users without a home. Code is then compiled anew by each
process, which changes nothing but the time that its first use takes.
"""

from collections.abc import Callable
from typing import Any

import numba

NO_PLACE = "cannot cache function"  # how numba's refusal begins


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:  # noqa: ANN401 - numba's own
    """Return numba's decorator with these options, and a cache where one can be had."""
    return lambda function: _with_cache(lambda **more: numba.njit(**options, **more)(function))


def compiled_c(signature: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]:  # noqa: ANN401
    """Return numba's decorator for C functions, which compiles at once; cached where possible."""
    return lambda function: _with_cache(
        lambda **more: numba.cfunc(signature, **options, **more)(function)
    )


def _with_cache(make: Callable[..., Any]) -> Any:  # noqa: ANN401
    try:
        return make(cache=True)
    except RuntimeError as error:
        if not str(error).startswith(NO_PLACE):
            raise
        return make()
