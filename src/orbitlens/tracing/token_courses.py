"""Tokens one by one: where the direction of each goes, in one context of a running model.

Enters: a running model and a batch. Leaves: the states of its first context at every depth, and a
`TokenTrace` for each token.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.families.architecture import Stack
from orbitlens.running.capture import LayerStates, capturing, few_logits
from orbitlens.running.devices import input_device
from orbitlens.running.inputs import Batch
from orbitlens.running.model import Model
from orbitlens.running.token_names import names_of_tokens
from orbitlens.tracing.collector import on_device, out_of_memory_explained, with_decoder_inputs
from orbitlens.tracing.directions import as_norm_sees, unit_directions
from orbitlens.tracing.massive import length_ratios
from orbitlens.tracing.trace_result import TokenTrace

States = Float[Tensor, "depth tokens d_model"]


def context_states(model: Model, batch: Batch, stack: Stack) -> tuple[States, list[int]]:
    """Return the first context of a batch in front of a stack and behind each of its layers.

    With them the numbers of the layers. Padding is not left out.
    """
    depths: list[Tensor] = []
    numbers: list[int] = []

    def sink(where: Stack, layer: int, states: LayerStates) -> None:
        if where.name != stack.name:
            return
        if not depths:
            depths.append(states.before[0].double())
        depths.append(states.after[0].double())
        numbers.append(layer)

    first = {name: x[:1] for name, x in batch.items()}
    full = with_decoder_inputs(model.module, first)
    with (
        model.evaluating() as module,
        out_of_memory_explained(),
        capturing(module, model.checkpoint, sink),
    ):
        module(**on_device(full, input_device(module)), **few_logits(module))
    return torch.stack(depths).cpu(), numbers


def token_traces(model: Model, batch: Batch) -> tuple[TokenTrace, ...]:
    """Return what becomes of each token of the first context, stack by stack."""
    names = names_of_tokens(model, batch)
    traces: list[TokenTrace] = []
    for stack in model.architecture.stacks:
        states, _ = context_states(model, batch, stack)
        cosines = mean_cosines(as_norm_sees(states, stack.norm))
        lengths = length_ratios(states)
        traces += [
            TokenTrace(
                stack=stack.name,
                position=k,
                name=names[k] if k < len(names) else f"token {k}",
                cosines=tuple(cosines[:, k].tolist()),
                lengths=tuple(lengths[:, k].tolist()),
            )
            for k in range(states.shape[1])
        ]
    return tuple(traces)


def mean_cosines(x: States) -> Float[Tensor, "depth tokens"]:
    """Return each token's mean cosine with the other tokens of its context."""
    y = unit_directions(x)
    with_all = (y * y.sum(dim=-2, keepdim=True)).sum(dim=-1)
    return (with_all - y.square().sum(dim=-1)) / (x.shape[-2] - 1)
