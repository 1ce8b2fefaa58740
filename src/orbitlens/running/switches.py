"""Switches for what a model's arguments do not reach, each for the time of one call.

Enters: a model. Leaves: context managers that put a mask or a bias in front of attention modules,
open a mask kept as a buffer, or give all patches one position; on leaving, all is as before.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def _modules(model: nn.Module, class_name: str) -> list[nn.Module]:
    found = [module for module in model.modules() if type(module).__name__ == class_name]
    if not found:
        raise LookupError(f"no {class_name} in {type(model).__name__}")
    return found


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    zeros = torch.zeros(mask.shape, dtype=dtype)
    return zeros.masked_fill_(~mask, torch.finfo(dtype).min)[None, None]


# --- masks and biases that only attention modules take ---------------------------------------


def _bloom(args: tuple[Any, ...], named: dict[str, Any], mask: Tensor, encoding: bool) -> Arguments:
    alibi = named["alibi"]
    named["attention_mask"] = _additive(mask, args[0].dtype)
    named["alibi"] = alibi if encoding else torch.zeros_like(alibi)
    return args, named


def _falcon(
    args: tuple[Any, ...], named: dict[str, Any], mask: Tensor, encoding: bool
) -> Arguments:
    alibi = named["alibi"]  # (batch, head, 1, tokens), not yet divided by sqrt(d_head)
    d_head = args[0].shape[-1] // alibi.shape[1]
    bias = alibi / math.sqrt(d_head) if encoding else torch.zeros_like(alibi)
    named["attention_mask"] = bias.masked_fill(~mask, torch.finfo(args[0].dtype).min)
    return args, named


def _mpt(args: tuple[Any, ...], named: dict[str, Any], mask: Tensor, encoding: bool) -> Arguments:
    bias = named["position_bias"]
    named["attention_mask"] = ~mask[None, None]  # MPT's masks say what is hidden
    named["position_bias"] = bias if encoding else torch.zeros_like(bias)
    return args, named


def _deberta(
    args: tuple[Any, ...], named: dict[str, Any], mask: Tensor, encoding: bool
) -> Arguments:
    offsets = named.get("relative_pos")
    if offsets is not None and not encoding:
        named["relative_pos"] = torch.zeros_like(offsets)
    return (args[0], mask[None, None], *args[2:]), named


STEERED: dict[str, Callable[..., Arguments]] = {
    "BloomAttention": _bloom,
    "FalconAttention": _falcon,
    "MptAttention": _mpt,
    "DebertaV2Attention": _deberta,
}


@contextmanager
def steer_attention(
    model: nn.Module, class_name: str, mask: Bool[Tensor, "tokens tokens"], encoding: bool
) -> Iterator[None]:
    """Give every attention module of a class this mask, and its bias or none."""
    change = STEERED[class_name]

    def hook(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> Arguments:
        return change(args, dict(named), mask, encoding)

    handles = [
        module.register_forward_pre_hook(hook, with_kwargs=True)
        for module in _modules(model, class_name)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def steer_encoder(model: nn.Module, mask: Bool[Tensor, "tokens tokens"]) -> Iterator[None]:
    """Give the encoder of an encoder-decoder this mask; the decoder goes on to see all of it."""
    encoder = model.get_submodule("encoder")
    dtype = next(encoder.parameters()).dtype

    def hook(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> Arguments:
        return args, {**named, "attention_mask": _additive(mask, dtype)}

    handle = encoder.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


# --- T5's bias -------------------------------------------------------------------------------


@contextmanager
def constant_bias(stack: nn.Module) -> Iterator[None]:
    """Give every pair of tokens the bias of offset 0; a constant cancels in the softmax."""

    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:  # noqa: ANN401
        return output[-1, -1].expand_as(output)

    tables = [m for name, m in stack.named_modules() if name.endswith("relative_attention_bias")]
    if not tables:
        raise LookupError(f"no relative_attention_bias in {type(stack).__name__}")
    handles = [table.register_forward_hook(hook) for table in tables]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


# --- state that is swapped and put back ------------------------------------------------------


@contextmanager
def open_buffers(model: nn.Module, class_name: str, name: str) -> Iterator[None]:
    """Let masks that modules keep as buffers show everything (GPT-Neo)."""
    modules = _modules(model, class_name)
    kept = [getattr(module, name) for module in modules]
    try:
        for module, buffer in zip(modules, kept, strict=True):
            setattr(module, name, torch.ones_like(buffer))
        yield
    finally:
        for module, buffer in zip(modules, kept, strict=True):
            setattr(module, name, buffer)


@contextmanager
def constant_patch_positions(model: nn.Module, n_special: int) -> Iterator[None]:
    """Give all patches the position of the first; special tokens keep theirs."""
    table = next(p for name, p in model.named_parameters() if name.endswith("position_embeddings"))
    kept = table.data
    same = kept.clone()
    same[:, n_special:] = kept[:, n_special : n_special + 1]
    try:
        table.data = same
        yield
    finally:
        table.data = kept
