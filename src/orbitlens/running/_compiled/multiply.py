"""Products of float64 tensors by compiled code: which ones, and how threads share them.

Enters: two matrices, or stacks of them, whatever their strides. Leaves: their products.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import torch
from numba import types
from torch import Tensor

from orbitlens.running._compiled.compiling import compiled_c
from orbitlens.running._compiled.panels import EXACT, multiply_stacks
from orbitlens.running.threads import do_parts

NARROWEST = 8  # rows, columns or numbers of a row
LEAST_WORK = 2**19  # products of two numbers: below, a call costs what it saves
PART = 2**22  # products of two numbers for which another thread is worth waking
N_POINTERS, N_NUMBERS = 3, 10
SIGNATURE = types.void(*[types.CPointer(types.float64)] * N_POINTERS, *[types.intp] * N_NUMBERS)


def fits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are matrices, or stacks of them, that are worth compiled code."""
    if min(a.dim(), b.dim()) < 2 or a.shape[-1] != b.shape[-2]:
        return False
    n, depth, m = a.shape[-2], a.shape[-1], b.shape[-1]
    if min(n, depth, m) < NARROWEST:
        return False
    lead = _common(a.shape[:-2], b.shape[:-2])
    return lead is not None and lead.numel() * n * depth * m >= LEAST_WORK


def _common(a: torch.Size, b: torch.Size) -> torch.Size | None:
    """Return the shape that two shapes are stretched to; None if there is none.

    Most are the same, or one is empty: torch's own function takes 20 times as long to see it.
    """
    if a == b or not b:
        return a
    if not a:
        return b
    try:
        return torch.broadcast_shapes(a, b)
    except RuntimeError:  # torch's own product says it better
        return None


def multiply_tensors(a: Tensor, b: Tensor) -> Tensor:
    """Return the products of two float64 tensors that `fits` lets pass."""
    n, depth, m = a.shape[-2], a.shape[-1], b.shape[-1]
    if max(a.dim(), b.dim()) > 3:  # a stack of stacks is one
        lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        flat = (x.expand(*lead, -1, -1).reshape(-1, *x.shape[-2:]) for x in (a, b))
        return multiply_tensors(*flat).view(*lead, n, m)
    stack = max(_height(a), _height(b))
    out = a.new_empty(*([stack] if 3 in {a.dim(), b.dim()} else []), n, m)
    steps = (*_steps(a), *_steps(b))
    addresses = (a.data_ptr(), b.data_ptr(), out.data_ptr())
    run, n_threads = _function(), torch.get_num_threads()
    # Threads share the matrices of a stack, or the rows of one.
    whole, by = (n, (steps[1], 0, m)) if stack == 1 else (stack, (steps[0], steps[3], n * m))
    count = min(n_threads, stack * n * depth * m // PART, whole)
    if count <= 1:
        run(*addresses, stack, n, depth, m, *steps)
        return out
    cuts = [whole * part // count for part in range(count + 1)]

    def some(low: int, high: int) -> None:
        moved = [place + 8 * low * step for place, step in zip(addresses, by, strict=True)]
        size = (1, high - low) if stack == 1 else (high - low, n)
        run(*moved, *size, depth, m, *steps)

    do_parts(some, list(pairwise(cuts)), n_threads)
    return out


def _height(a: Tensor) -> int:
    return len(a) if a.dim() == 3 else 1


def _steps(a: Tensor) -> tuple[int, ...]:
    """Return how far apart matrices of a stack are (one may serve all), rows, and columns."""
    found = a.stride()
    return found if len(found) == 3 and len(a) > 1 else (0, *found[-2:])


@cache
def _function() -> Callable[..., None]:
    """Return the compiled function; the first call compiles it, or reads it from a cache."""
    address = int(compiled_c(SIGNATURE, fastmath=EXACT)(multiply_stacks).address)
    arguments = [ctypes.c_void_p] * N_POINTERS + [ctypes.c_ssize_t] * N_NUMBERS
    return ctypes.CFUNCTYPE(None, *arguments)(address)
