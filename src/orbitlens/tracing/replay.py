"""The flow of a model's own layers, beside what the model does.

Enters: layers (weights, or blocks of a running model) and real states. Leaves: states along the
flow. A layer is one Euler step of size 1; the flow takes many small steps of the same field:

    attention alone    x' = A(norm(x)),         from the weights, by `orbitlens.heads.attention`
    a whole block      x' = block(x) - x,       by the model's own modules, MLP and norms included

With one Euler step a layer the second *is* the model, which is how it is tested.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens._types import Tokens
from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.families.architecture import Stack
from orbitlens.heads.attention import attention_output
from orbitlens.heads.layers import AttentionLayer
from orbitlens.running.capture import layer_modules

Field = Callable[[Tensor], Tensor]


def attention_step(layer: AttentionLayer, x: Tokens) -> Tokens:
    """Return the tokens after attention alone: x + A(norm(x))."""
    return x + attention_drift(layer, x)


def attention_drift(layer: AttentionLayer, x: Tokens) -> Tokens:
    """Return A(norm(x)); behind a norm on the output, at the output's typical length."""
    out = attention_output(layer, layer.normalise(x))
    return out if layer.output_gain is None else out * layer.output_gain


def flow(field: Field, start: Tensor, *, time: float = 1.0, n_steps: int = 8) -> Tensor:
    """Return the state after `time`, by the classical Runge-Kutta method of order 4."""
    x, h = start, time / n_steps
    for _ in range(n_steps):
        k1 = field(x)
        k2 = field(x + h / 2 * k1)
        k3 = field(x + h / 2 * k2)
        k4 = field(x + h * k3)
        x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return x


def euler(field: Field, start: Tensor, *, time: float = 1.0, n_steps: int = 1) -> Tensor:
    """Return the state after `time` by Euler's method; with one step of size 1, a layer."""
    x, h = start, time / n_steps
    for _ in range(n_steps):
        x = x + h * field(x)
    return x


class Blocks:
    """The blocks of one stack as fields, with everything else they were called with kept."""

    def __init__(self, stack: Stack) -> None:
        """Wait for a run of the model."""
        self.stack = stack
        self.states: list[Float[Tensor, "batch tokens d_model"]] = []
        self._calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def note(self, block: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ANN401
        """Keep one call of one block (a forward pre-hook)."""
        named = dict(kwargs)
        x = args[0] if args else named.pop("hidden_states")
        # A block that is called again must not find its own first call in the cache.
        rest = tuple(None if _is_cache(value) else value for value in args[1:])
        named = {name: None if _is_cache(value) else value for name, value in named.items()}
        self.states.append(x)
        self._calls.append((block, rest, named))

    def field(self, layer: int) -> Field:
        """Return x -> block(x) - x of a layer."""
        block, args, kwargs = self._calls[layer]

        def drift(x: Tensor) -> Tensor:
            out = block(x, *args, **kwargs)
            return (out[0] if isinstance(out, tuple) else out) - x

        return drift


def _is_cache(value: object) -> bool:
    return hasattr(value, "get_seq_length")


@contextmanager
def noting_blocks(model: Any, checkpoint: Checkpoint) -> Iterator[dict[str, Blocks]]:  # noqa: ANN401
    """Within this context a run of `model` fills the `Blocks` of every stack."""
    modules = dict(model.named_modules())
    blocks = {stack.name: Blocks(stack) for stack in checkpoint.architecture.stacks}
    handles = []
    try:
        for stack in checkpoint.architecture.stacks:
            for name in dict.fromkeys(m.block for m in layer_modules(model, checkpoint, stack)):
                hook = blocks[stack.name].note
                handles.append(modules[name].register_forward_pre_hook(hook, with_kwargs=True))
        yield blocks
    finally:
        for handle in handles:
            handle.remove()


def replay_blocks(
    blocks: Blocks, *, n_steps: int, solver: Callable[..., Tensor] = flow
) -> list[Float[Tensor, "batch tokens d_model"]]:
    """Return the states after each layer when every layer's field acts for one unit of time."""
    x = blocks.states[0]
    states = []
    with torch.no_grad():
        for layer in range(len(blocks.states)):
            x = solver(blocks.field(layer), x, n_steps=n_steps)
            states.append(x)
    return states


def iterate_block(
    blocks: Blocks, layer: int, n_layers: int
) -> Iterator[Float[Tensor, "batch tokens d_model"]]:
    """Yield the states when one block is applied again and again: ALBERT beyond its own depth."""
    x = blocks.states[0]
    field = blocks.field(layer)
    with torch.no_grad():
        for _ in range(n_layers):
            x = x + field(x)
            yield x
