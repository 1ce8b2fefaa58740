"""Switches for what a model's arguments do not reach, each for the time of one call.

Enters: a model. Leaves: context managers that put a mask or a bias in front of attention modules,
open a mask kept as a buffer, or give all patches one position; on leaving, all is as before.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from orbitlens.families.feed import Arguments, Feed, additive


def _modules(model: nn.Module, class_name: str) -> list[nn.Module]:
    modules = [module for module in model.modules() if type(module).__name__ == class_name]
    if not modules:
        raise LookupError(f"no {class_name} in {type(model).__name__}")
    return modules


# --- masks and biases that only attention modules take ---------------------------------------


@contextmanager
def steer_attention(
    model: nn.Module, feed: Feed, mask: Bool[Tensor, "tokens tokens"], encoding: bool
) -> Iterator[None]:
    """Give the attention modules that the feed names this mask, and their bias or none."""
    change, class_name = feed.steer, feed.attention
    if change is None or class_name is None:
        yield
        return

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
        return args, {**named, "attention_mask": additive(mask, dtype)}

    handle = encoder.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


# --- what a head predicts from ---------------------------------------------------------------


@contextmanager
def one_position(model: nn.Module, position: int) -> Iterator[None]:
    """Hand a prediction head the last states of one position: its logits are all that is read."""
    base = getattr(model, "base_model", model)
    if base is model or not isinstance(base, nn.Module):
        yield
        return

    def hook(module: nn.Module, args: Any, output: Any) -> Any:  # noqa: ANN401
        output.last_hidden_state = output.last_hidden_state[:, position, None]
        return output

    handle = base.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def some_states(model: Any, places: Sequence[tuple[int, int]]) -> Iterator[None]:  # noqa: ANN401
    """Hand a prediction head some last states alone, each (row, position) as its own input."""
    rows, positions = torch.tensor(places).T

    def hook(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (args[0][rows, positions][:, None], *args[1:])

    handle = model.get_output_embeddings().register_forward_pre_hook(hook)
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
    """Let masks that modules keep as buffers show everything."""
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
