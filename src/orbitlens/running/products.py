"""Which library multiplies a running model's float32 matrices: torch's own, or oneDNN inside torch.

Enters: the size of a model. Leaves: a context in which its linear maps are oneDNN's where that is
faster. torch's own products are MKL's, which on processors of AMD with AVX-512 uses half of their
width; oneDNN uses all of it (one Zen 5 core: 108 and 245 GFLOP/s). Both round each product once, in
an order of their own, so that results differ by float32's rounding.
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
CALL = "_linear_pointwise"  # not public; a torch without it goes on with its own products


@contextmanager
def fast_products(n_parameters: int) -> Iterator[None]:
    """Multiply by oneDNN for a while, for a model that is not small, where that is faster."""
    if n_parameters < SMALL_MODEL or not onednn_is_faster():
        yield
        return
    with _OneDnnProducts():
        yield


@cache
def onednn_is_faster() -> bool:
    """Whether this is a processor whose width torch's own products do not use."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    has_call = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, CALL)
    if not (wide and has_call and CPU_INFO.is_file()):
        return False
    return MAKER in CPU_INFO.read_text(encoding="ascii", errors="replace")


class _OneDnnProducts(TorchFunctionMode):
    """Linear maps of float32 on the CPU go to oneDNN; everything else goes where it did."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,  # noqa: ANN401 - of the arguments
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - what the function returns
        if func not in LINEAR_MAPS:  # most calls: this is all that they cost
            return func(*args, **(kwargs or {}))
        operands = None if kwargs or _is_differentiated() else _operands(func, args)
        if operands is None:
            return func(*args, **(kwargs or {}))
        multiply = getattr(torch.ops.mkldnn, CALL)
        return multiply(*operands, "none", [], "")  # no function behind the product


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


def _is_differentiated() -> bool:
    """Whether someone may ask for a derivative, for which oneDNN's own call has no rule."""
    return (
        torch.is_grad_enabled()
        or forward_ad._current_level >= 0
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def _fits(tensor: Any) -> bool:  # noqa: ANN401 - anything may be an argument
    kind = (Tensor, torch.nn.Parameter)
    if type(tensor) not in kind or tensor.dtype != torch.float32 or tensor.device.type != "cpu":
        return False
    return tensor.layout == torch.strided and tensor.numel() > 0
