"""Stacks that are built and run, to hold a forecast against.

Enters: a `Blueprint` and a seed. Leaves: an untrained model of the lab, and what it does to tokens
and gradients of a context drawn at random. This is what a forecast saves: here weights are made.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.forecasting.blueprint import Blueprint
from orbitlens.orbit.config import OrbitConfig
from orbitlens.orbit.stack import OrbitModel
from orbitlens.theory.clouds import mean_cosine

KNOWN = ("gelu", "swiglu")  # activations that the lab's models have


@dataclass(frozen=True, kw_only=True)
class BuiltCourse:
    """What one untrained model does."""

    cosines: tuple[float, ...]  # C in front of each layer, and behind the last
    gradient: float  # in front of the first layer, beside that behind the last


def built_stack(plan: Blueprint, seed: int) -> OrbitModel:
    """Return an untrained stack of the lab, in double precision.

    Raises:
        InputError: the lab has no such model.
    """
    if plan.activation not in KNOWN or plan.shares_embedding or plan.embedding_norm:
        raise InputError(
            "models of the lab are what is built beside a forecast, and these have no "
            f"{plan.activation if plan.activation not in KNOWN else 'norm of embeddings'}. Give "
            f"sizes and switches, with an activation of {' or '.join(KNOWN)}."
        )
    config = OrbitConfig(
        vocab_size=plan.vocabulary,
        hidden_size=plan.width,
        num_hidden_layers=plan.layers,
        num_attention_heads=plan.heads,
        intermediate_size=plan.d_inner or None,
        mlp=plan.d_inner > 0,
        initializer_range=plan.init,
        norm=plan.norm,
        norm_kind="rms",
        layer_norm_eps=plan.epsilon,
        position=plan.position,
        rotary_base=plan.rotary_base,
        mask=plan.mask,
        activation=plan.activation,
        qk_norm=plan.qk_norm,
        refinement=plan.refinement,
        max_position_embeddings=plan.context,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = OrbitModel(config).double()
    _narrow(model, plan)
    return model


@torch.no_grad()
def _narrow(model: OrbitModel, plan: Blueprint) -> None:
    """Scale what is written to the stream: behind a norm of the output its gain, else the maps."""
    blocks: Iterable[Any] = model.layers
    for block in blocks:
        branches = []
        if plan.refinement == "none":  # definite heads have no output map
            branches.append((block.self_attn.o_proj, block.attn_out_norm))
        if block.mlp is not None:
            branches.append((block.mlp.down_proj, block.mlp_out_norm))
        for written, norm in branches:
            if plan.norm == "peri":
                norm.weight *= plan.residual_scale
            else:
                written.weight *= plan.out_std / plan.init


def built_course(plan: Blueprint, seed: int) -> BuiltCourse:
    """Build, run forward and back, and return what happened."""
    states, out, generator = _run(plan, seed)
    for state in states:
        state.retain_grad()
    weights = torch.randn(out.shape, generator=generator, dtype=out.dtype)
    (out * weights).sum().backward()
    first, last = states[0].grad, states[-1].grad
    assert first is not None and last is not None
    return BuiltCourse(cosines=_cosines(states), gradient=float(first.norm() / last.norm()))


@torch.no_grad()
def built_cosines(plan: Blueprint, seed: int) -> tuple[float, ...]:
    """Build, run forward alone, and return C in front of each layer and behind the last."""
    return _cosines(_run(plan, seed)[0])


def _run(plan: Blueprint, seed: int) -> tuple[list[Tensor], Tensor, torch.Generator]:
    """Return the states of a context in front of each layer and behind the last, and the output."""
    model, states = built_stack(plan, seed), []
    for block in model.layers:
        block.register_forward_pre_hook(lambda module, args: states.append(args[0]))
    model.layers[-1].register_forward_hook(lambda module, args, out: states.append(out[0]))
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(plan.vocabulary, (1, plan.context), generator=generator)
    return states, model(input_ids=ids).last_hidden_state, generator


def _cosines(states: list[Tensor]) -> tuple[float, ...]:
    return tuple(mean_cosine(state.detach()[0]) for state in states)
