"""A running module under another rotation: layers unrotated or rotated, another base, other rows.

Enters: a `Model` and a `Change`. Leaves: a context within which its module computes as changed;
everything is put back behind it. Where the switches are, a `Family` says; what its code does not
allow is refused with the reason.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from orbitlens.checkpoint.live import checkpoint_of_module
from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.encodings.rows import reordered_rows, row_orders
from orbitlens.errors import InputError
from orbitlens.families.architecture import Pairing, Position, Stack
from orbitlens.families.family import RotationSwitches
from orbitlens.families.registry import FAMILIES
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
    switches = FAMILIES[live.architecture.family].rotation
    with ExitStack() as kept:
        for layer, trained in change.pairing.items():
            spec = stack.layers[layer].rotary
            width = stack.d_head if spec is None else spec.d_rotary
            kept.enter_context(reordered_rows(live, row_orders(stack, layer, trained, width)))
        if change.unrotated or change.rotated:
            kept.enter_context(_rotating(module, live, switches, change))
        if change.base is not None:
            kept.enter_context(_with_base(module, stack, switches, change.base))
        yield


# --- which layers are rotated ----------------------------------------------------------------


@contextmanager
def _rotating(
    module: Any,  # noqa: ANN401 - a model of transformers
    live: Checkpoint,
    switches: RotationSwitches,
    change: Change,
) -> Iterator[None]:
    """Rotate some layers and leave others as they are, by the switches that the family has."""
    stack = live.architecture.stacks[0]
    if switches.layers is not None and stack.position is Position.ROTARY:
        now = {k for k, layer in enumerate(stack.layers) if layer.rotary is not None}
        chosen = sorted((now | {*change.rotated}) - {*change.unrotated})
        with _setting(module, switches.layers, chosen):
            yield
        return
    with ExitStack() as kept:
        if switches.attention is not None:
            for value, layers in ((True, change.rotated), (False, change.unrotated)):
                kept.enter_context(_switched(module, switches.attention, layers, value))
        elif change.rotated:
            raise InputError("this family has no switch that would rotate a layer left as it is.")
        else:
            kept.enter_context(_without_angles(module, live, change.unrotated))
        yield


@contextmanager
def _setting(module: Any, name: str, value: Any) -> Iterator[None]:  # noqa: ANN401
    """Change a setting of a config that its model reads at every run."""
    before = getattr(module.config, name)
    setattr(module.config, name, value)
    try:
        yield
    finally:
        setattr(module.config, name, before)


@contextmanager
def _switched(module: Any, name: str, layers: tuple[int, ...], value: bool) -> Iterator[None]:  # noqa: ANN401
    """Set the switch of some layers' attention."""
    chosen = [part for part in module.modules() if hasattr(part, name) and part.layer_idx in layers]
    before = [getattr(part, name) for part in chosen]
    try:
        for part in chosen:
            setattr(part, name, value)
        yield
    finally:
        for part, old in zip(chosen, before, strict=True):
            setattr(part, name, old)


@contextmanager
def _without_angles(module: Any, live: Checkpoint, layers: tuple[int, ...]) -> Iterator[None]:  # noqa: ANN401
    """Hand chosen layers angles of zero, or tokens that are all at place 0."""
    blocks = layer_modules(module, live, live.architecture.stacks[0])
    if len({block.block for block in blocks}) < len(blocks):
        raise InputError("layers share their weights; one of them cannot be changed by itself.")
    parts = dict(module.named_modules())
    seen: list[bool] = []

    def hook(part: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:  # noqa: ANN401
        for name, still in (("position_embeddings", _still), ("position_ids", torch.zeros_like)):
            if kwargs.get(name) is not None:
                seen.append(True)
                return args, {**kwargs, name: still(kwargs[name])}
        return args, kwargs

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


def _still(turns: Any) -> Any:  # noqa: ANN401 - cosines and sines, or complex numbers
    """Return turns by nothing, in the form that a layer takes."""
    if isinstance(turns, Tensor):
        return torch.ones_like(turns)
    cos, sin = turns
    return torch.ones_like(cos), torch.zeros_like(sin)


# --- the base --------------------------------------------------------------------------------


@contextmanager
def _with_base(
    module: Any,  # noqa: ANN401 - a model of transformers
    stack: Stack,
    switches: RotationSwitches,
    base: float,
) -> Iterator[None]:
    """Compute angles from another base."""
    if switches.base is not None:
        forget = attrgetter(f"{switches.kept}.forget")(module)
        with _setting(module, switches.base, base):
            forget()
            try:
                yield
            finally:
                forget()
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
