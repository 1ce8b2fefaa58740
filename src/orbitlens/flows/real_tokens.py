"""Real tokens: what a model's own tokens are in front of a layer, and what its attention adds.

Enters: a model and a text. Leaves: `LayerTokens`: one context on its way through the attention of
one layer, to start a flow from and to compare it with.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens._types import Tokens
from orbitlens.errors import InputError
from orbitlens.families.architecture import Stack
from orbitlens.heads.head import Head
from orbitlens.heads.layers import AttentionLayer
from orbitlens.running.batches import batches_of, limits_for
from orbitlens.running.capture import LayerStates, capturing
from orbitlens.running.devices import input_device
from orbitlens.running.inputs import Batch, inputs_of, n_positions
from orbitlens.running.model import Model
from orbitlens.running.threads import threads_for


@dataclass(frozen=True, kw_only=True)
class LayerTokens:
    """One context of tokens in front of a layer, and what attention adds to them there."""

    layer: int
    before: Tokens  # the stream that enters the layer
    attention: Tokens  # what all heads and the output bias add
    heads: Float[Tensor, "head tokens d_model"] | None  # None: a norm acts on their sum

    def after(self, target: Head | AttentionLayer) -> tuple[Tokens, str]:
        """Return the stream after a head alone, or after all attention, and which it is.

        Raises:
            InputError: the target is of another layer, or its own part is not defined.
        """
        own = target.layer if isinstance(target, Head) else target.index
        if own != self.layer:
            raise InputError(
                f"these are the tokens of layer {self.layer}, and the flow is one of layer {own}. "
                "Give the tokens of the same layer."
            )
        if isinstance(target, AttentionLayer):
            return self.before + self.attention, f"the attention of layer {own}"
        if self.heads is None:
            raise InputError(
                "a norm acts on the sum of this layer's heads, so a head adds nothing by itself "
                "that could be measured. Simulate the whole layer on a text."
            )
        return self.before + self.heads[target.index], f"head {own}.{target.index} alone"


def layer_tokens(
    model: Model,
    text: Any,  # noqa: ANN401 - what `inputs_of` takes
    *,
    layer: int,
    stack: str | None = None,
    n_tokens: int = 64,
) -> LayerTokens:
    """Run a model on the first `n_tokens` tokens of a text, and return what one layer does.

    Args:
        model: the model.
        text: what `inputs_of` takes: a string, a path object, token ids, images.
        layer: which layer.
        stack: of which stack, where there are several.
        n_tokens: of the context, special tokens included; fewer where the text is shorter.

    Raises:
        InputError: the inputs do not fit the model, or it has an encoder and a decoder.
    """
    seen = context_states(model, text, n_tokens=n_tokens, layers={layer})
    return tokens_of_states(model.running.layer(layer, stack=stack), seen.states[layer])


@dataclass(frozen=True, kw_only=True)
class ContextStates:
    """One context on its way through some layers of a model."""

    fed: Batch  # the context itself
    states: Mapping[int, LayerStates]


def context_states(
    model: Model,
    text: Any,  # noqa: ANN401 - what `inputs_of` takes
    *,
    n_tokens: int = 64,
    layers: Container[int],
) -> ContextStates:
    """Run a model on the first `n_tokens` tokens of a text, and keep what some layers do.

    Raises:
        InputError: the inputs do not fit the model, or it has an encoder and a decoder.
    """
    opened = model.running
    if len(opened.architecture.stacks) > 1:
        raise InputError(
            f"{model.name} has an encoder and a decoder; flows start from real tokens of models "
            "with one stack. Leave the text out."
        )
    most = n_positions(opened.module.config)
    context = n_tokens if most is None else min(n_tokens, most)
    limits = limits_for(opened, context=context, batch=1, max_tokens=context)
    batch = next(iter(batches_of(opened, inputs_of(opened, text), limits)), None)
    if batch is None:
        raise InputError("the text is too short: it makes no context. Give a few words more.")
    kept: dict[int, LayerStates] = {}

    def sink(_stack: Stack, index: int, states: LayerStates) -> None:
        if index in layers:
            kept[index] = states

    device = input_device(opened.module)
    cut = {name: x[:1, :context] if x.ndim == 2 else x[:1] for name, x in batch.items()}
    fed = {name: x.to(device) for name, x in cut.items()}
    with threads_for(opened.n_parameters), opened.evaluating() as module:
        with capturing(module, opened.checkpoint, sink):
            module(**fed)
    return ContextStates(fed=cut, states=kept)


def tokens_of_states(layer: AttentionLayer, states: LayerStates) -> LayerTokens:
    """Return the first context of a layer's states, what each head adds apart."""
    heads = None
    if layer.output_gain is None:
        blocks = states.mixed[0].double().cpu().unflatten(-1, (layer.n_heads, -1))
        w_o = layer.w_o.double().cpu().unflatten(0, (layer.n_heads, -1))
        heads = torch.einsum("thr,hrd->htd", blocks, w_o)
    return LayerTokens(
        layer=layer.index,
        before=states.before[0].double().cpu(),
        attention=states.attention[0].double().cpu(),
        heads=heads,
    )
