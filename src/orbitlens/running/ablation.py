"""A model that runs without some of its heads.

Enters: a `Model` and heads by layer and number. Leaves: the same model, in which these heads add
nothing while the context lasts. Heads lie side by side in front of attention's output map; those
that are cut are set to zero there (zero ablation), so that the others, the map and its bias stay as
they are. Weights are not touched.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jaxtyping import Float
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.families.architecture import Stack
from orbitlens.running.capture import layer_modules
from orbitlens.running.model import Model

Hook = Callable[[object, tuple[Tensor, ...]], tuple[Tensor, ...]]


@contextmanager
def without_heads(
    model: Model, heads: Iterable[tuple[int, int]], *, stack: str | None = None
) -> Iterator[None]:
    """Within this context `model.module` runs without the given heads, as (layer, head) pairs.

    Args:
        model: what `load` returned.
        heads: which heads are cut. None at all leaves the model as it is.
        stack: "encoder" or "decoder", for models that have both.

    Raises:
        InputError: there is no such layer or head.
    """
    running = model.running
    tower = running.checkpoint.stack(stack)
    cut = _by_layer(tower, heads)
    modules = dict(running.module.named_modules())
    names = [layer.output for layer in layer_modules(running.module, running.checkpoint, tower)]
    handles: list[Any] = []
    try:
        for name in dict.fromkeys(names[layer] for layer in cut):
            calls = [layer for layer, output in enumerate(names) if output == name]
            hook = _cutting([cut.get(layer, ()) for layer in calls], tower.layers[calls[0]].n_heads)
            handles.append(modules[name].register_forward_pre_hook(hook))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _by_layer(stack: Stack, heads: Iterable[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    cut: dict[int, tuple[int, ...]] = {}
    for layer, head in heads:
        if not 0 <= layer < stack.n_layers:
            raise InputError(f"there is no layer {layer}; layers are 0 to {stack.n_layers - 1}.")
        n_heads = stack.layers[layer].n_heads
        if not 0 <= head < n_heads:
            raise InputError(
                f"there is no head {head}; layer {layer} has heads 0 to {n_heads - 1}."
            )
        cut[layer] = (*cut.get(layer, ()), head)
    return cut


def _cutting(heads_by_call: list[tuple[int, ...]], n_heads: int) -> Hook:
    """Return a hook that sets heads to zero; a shared module is called once a layer, in order."""
    turn = itertools.cycle(heads_by_call)

    def hook(module: object, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (_zeroed(args[0], next(turn), n_heads), *args[1:])

    return hook


def _zeroed(
    mixed: Float[Tensor, "*batch heads_width"], heads: Sequence[int], n_heads: int
) -> Float[Tensor, "*batch heads_width"]:
    """Return heads that lie side by side, with some of them set to zero."""
    by_head = mixed.clone().unflatten(-1, (n_heads, -1))
    by_head[..., list(heads), :] = 0
    return by_head.flatten(-2)
