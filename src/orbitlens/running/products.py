"""Which code multiplies matrices: torch's own, or something that uses all of the processor.

Enters: the size of a model, or two matrices. Leaves: a context in which products are made by what
is faster, or a product. torch's own are MKL's, which on processors of AMD with AVX-512 uses half of
their width. oneDNN, inside torch, uses all of it in float32 (one Zen 5 core: 108 and 245 GFLOP/s),
and compiled code of ours in float64 (47 to 68, and 85 to 119). All round each product once, in an
order of their own, so that results differ by rounding.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from orbitlens.running.threads import SMALL_MODEL

CPU_INFO = Path("/proc/cpuinfo")
MAKER = "AuthenticAMD"
LINEAR_MAPS = frozenset({torch.nn.functional.linear, torch.addmm})
PRODUCTS = frozenset({torch.Tensor.__matmul__, torch.Tensor.matmul, torch.matmul})
HANDLED = LINEAR_MAPS | PRODUCTS
CALL = "_linear_pointwise"  # not public; a torch without it goes on with its own products


@contextmanager
def fast_products(n_parameters: int) -> Iterator[None]:
    """Multiply by what is faster for a while, for a model that is not small."""
    if n_parameters < SMALL_MODEL or not has_half_width():
        yield
        return
    with _FastProducts():
        yield


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b, by compiled code where that is faster."""
    return _compiled_product(a, b) if has_half_width() else a @ b


@cache
def has_half_width() -> bool:
    """Whether this is a processor of whose width torch's own products use half."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not CPU_INFO.is_file():
        return False
    return MAKER in CPU_INFO.read_text(encoding="ascii", errors="replace")


@cache
def has_onednn() -> bool:
    """Whether this torch has oneDNN, and the call of it that is used here."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, CALL)


class _FastProducts(TorchFunctionMode):
    """Products on the CPU go to who is faster; everything else goes where it did."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,  # noqa: ANN401 - of the arguments
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - what the function returns
        if kwargs or func not in HANDLED:  # most calls
            return func(*args, **(kwargs or {}))
        if func in PRODUCTS:
            return _compiled_product(*args) if len(args) == 2 else func(*args)
        operands = _operands(func, args) if has_onednn() else None
        if operands is None or _is_differentiated(*operands):
            return func(*args)
        multiply = getattr(torch.ops.mkldnn, CALL)
        return multiply(*operands, "none", [], "")  # no function behind the product


def _compiled_product(a: Any, b: Any) -> Tensor:  # noqa: ANN401 - anything may be an argument
    if not (_fits(a, torch.float64) and _fits(b, torch.float64)) or _is_differentiated(a, b):
        return torch.matmul(a, b)
    from orbitlens.running._compiled import multiply  # numba is slow to import

    return multiply.multiply_tensors(a, b) if multiply.fits(a, b) else torch.matmul(a, b)


def _operands(
    func: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """Return inputs, weights (a row for each output) and bias; None where oneDNN does not fit."""
    if func is torch.nn.functional.linear and len(args) in {2, 3}:
        x, weight, bias = (*args, None)[:3]
    elif func is torch.addmm and len(args) == 3:  # GPT-2 multiplies by columns
        bias, x, by_columns = args
        if not _fits(by_columns) or not _fits(bias) or bias.dim() != 1:
            return None
        weight = by_columns.T
    else:
        return None
    fits = _fits(x) and _fits(weight) and (bias is None or _fits(bias))
    return (x, weight, bias) if fits else None


def _is_differentiated(*tensors: Tensor | None) -> bool:
    """Whether someone may ask for a derivative, for which these calls have no rule."""
    wanted = any(tensor is not None and tensor.requires_grad for tensor in tensors)
    return (
        (wanted and torch.is_grad_enabled())
        or forward_ad._current_level >= 0
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def _fits(tensor: Any, dtype: torch.dtype = torch.float32) -> bool:  # noqa: ANN401
    kind = (Tensor, torch.nn.Parameter)
    if type(tensor) not in kind or tensor.dtype != dtype or tensor.device.type != "cpu":
        return False
    return tensor.layout == torch.strided and tensor.numel() > 0 and not tensor.is_neg()
