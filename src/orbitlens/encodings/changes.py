"""A running module under another rotation: layers unrotated or rotated, another base, other rows.

Enters: a `Model` and a `Change`. Leaves: a context within which its module computes as changed;
everything is put back behind it. What a family's code does not allow is refused with the reason.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from orbitlens.checkpoint.live import checkpoint_of_module
from orbitlens.encodings.rows import reordered_rows, row_orders
from orbitlens.errors import InputError
from orbitlens.families.architecture import Pairing, Stack
from orbitlens.orbit.attention import Given
from orbitlens.running.capture import layer_modules
from orbitlens.running.model import Model


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is tried on a running model; layers are those of its decoder."""

    name: str
    pairing: dict[int, Pairing] = field(default_factory=dict)  # layer -> that of its training
    unrotated: tuple[int, ...] = ()
    rotated: tuple[int, ...] = ()  # layers that the config has unrotated
    base: float | None = None


@contextmanager
def changed(model: Model, change: Change) -> Iterator[None]:
    """Change a model's module for as long as the context lasts.

    Raises:
        InputError: the change cannot be made to a model of this family.
    """
    module = model.module
    live = checkpoint_of_module(module, name=model.name)
    stack = live.architecture.stacks[0]
    with ExitStack() as kept:
        for layer, trained in change.pairing.items():
            spec = stack.layers[layer].rotary
            width = stack.d_head if spec is None else spec.d_rotary
            kept.enter_context(reordered_rows(live, row_orders(stack, layer, trained, width)))
        if change.unrotated:
            kept.enter_context(_unrotated(module, live, stack, change.unrotated))
        if change.rotated:
            kept.enter_context(_rotated(module, change.rotated))
        if change.base is not None:
            kept.enter_context(_with_base(module, stack, change.base))
        yield


@contextmanager
def _unrotated(module: Any, live: Any, stack: Stack, layers: tuple[int, ...]) -> Iterator[None]:  # noqa: ANN401
    """Hand chosen layers angles of zero."""
    blocks = layer_modules(module, live, stack)
    if len({block.block for block in blocks}) < len(blocks):
        raise InputError("layers share their weights; one of them cannot be changed by itself.")
    parts = dict(module.named_modules())
    seen: list[bool] = []

    def hook(part: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:  # noqa: ANN401
        new_args = tuple(_without_angles(arg, seen) for arg in args)
        if kwargs.get("position_embeddings") is not None:
            cos, sin = kwargs["position_embeddings"]
            turned = (torch.ones_like(cos), torch.zeros_like(sin))
            kwargs = {**kwargs, "position_embeddings": turned}
            seen.append(True)
        return new_args, kwargs

    handles = [
        parts[blocks[layer].block].register_forward_pre_hook(hook, with_kwargs=True)
        for layer in layers
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    if not seen:
        raise InputError(
            "layers of this family compute their angles inside, where they cannot be changed."
        )


def _without_angles(arg: Any, seen: list[bool]) -> Any:  # noqa: ANN401 - of a layer
    if isinstance(arg, Given) and arg.angles is not None:
        seen.append(True)
        return replace(arg, angles=None)
    return arg


@contextmanager
def _rotated(module: Any, layers: tuple[int, ...]) -> Iterator[None]:  # noqa: ANN401
    """Rotate layers that the config has unrotated, where its code keeps a switch for it."""
    config = module.config
    if getattr(config, "rotary_layers", "all") != "all":
        before = config.rotary_layers
        config.rotary_layers = sorted({*before, *layers})
        try:
            yield
        finally:
            config.rotary_layers = before
        return
    switches = [part for part in module.modules() if hasattr(part, "use_rope")]
    chosen = [part for part in switches if part.layer_idx in layers]
    if len(chosen) < len(layers):
        raise InputError("this family has no switch that would rotate a layer left as it is.")
    kept = [part.use_rope for part in chosen]
    try:
        for part in chosen:
            part.use_rope = True
        yield
    finally:
        for part, value in zip(chosen, kept, strict=True):
            part.use_rope = value


@contextmanager
def _with_base(module: Any, stack: Stack, base: float) -> Iterator[None]:  # noqa: ANN401
    """Compute angles from another base."""
    config = module.config
    if hasattr(config, "rotary_base"):  # the lab's models
        before, around = config.rotary_base, module.model.surroundings
        config.rotary_base = base
        around.forget()
        try:
            yield
        finally:
            config.rotary_base = before
            around.forget()
        return
    specs = [layer.rotary for layer in stack.layers if layer.rotary is not None]
    tables = [part for part in module.modules() if hasattr(part, "inv_freq")]
    if not specs or len(tables) != 1 or any(spec.kind != "default" for spec in specs):
        raise InputError("this model's angles come from no single table with one base.")
    table = tables[0]
    kept = table.inv_freq.clone()
    exponents = -kept.double().log() / math.log(specs[0].base)
    try:
        table.inv_freq.copy_(base**-exponents)
        yield
    finally:
        table.inv_freq.copy_(kept)
