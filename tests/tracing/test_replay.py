"""The flow of blocks: one Euler step a layer is the model; Runge-Kutta has its order."""

import math

import pytest
import torch

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.heads.attention import attention_output
from orbitlens.heads.layers import load_layer
from orbitlens.tracing.replay import (
    attention_step,
    euler,
    flow,
    iterate_block,
    noting_blocks,
    replay_blocks,
)
from tiny_models import CASES, build, float64, inputs_for

BY_NAME = {case.name: case for case in CASES}
NAMES = [
    "llama-grouped",
    "gpt2",
    "bert",
    "albert",
    "gpt_neox",
    "t5",
    "vit",
    "falcon-new",
    "gemma2",
    "bloom",
]


def noted(name, folder):
    case = BY_NAME[name]
    model = build(case)
    model.save_pretrained(folder)
    checkpoint = load_checkpoint(folder)
    with torch.no_grad(), float64(), noting_blocks(model, checkpoint) as blocks:
        model(**inputs_for(case, model))  # with a cache, where the model has one
    return blocks, checkpoint


@pytest.mark.parametrize("name", NAMES)
def test_one_euler_step_a_layer_is_the_model(name, tmp_path):
    blocks, _ = noted(name, tmp_path)
    with float64():
        for stack in blocks.values():
            states = replay_blocks(stack, n_steps=1, solver=euler)
            for found, real in zip(states, stack.states[1:], strict=False):
                assert torch.allclose(found, real, rtol=1e-9, atol=1e-9)
            assert len(states) == stack.stack.n_layers


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "bloom"])
def test_a_block_called_again_gives_the_same(name, tmp_path):
    blocks, _ = noted(name, tmp_path)
    field, x = blocks["decoder"].field(1), blocks["decoder"].states[1]
    with torch.no_grad(), float64():
        first, second = field(x), field(x)
    assert torch.equal(first, second)


def test_smaller_steps_are_another_flow(tmp_path):
    blocks, _ = noted("llama", tmp_path)
    with float64():
        states = replay_blocks(blocks["decoder"], n_steps=4)
    gap = (states[0] - blocks["decoder"].states[1]).norm() / states[0].norm()
    assert gap > 1e-3


def test_a_shared_block_can_be_iterated_beyond_the_models_depth(tmp_path):
    blocks, checkpoint = noted("albert", tmp_path)
    with float64():
        states = list(iterate_block(blocks["encoder"], 0, 7))
    assert len(states) == 7
    # Layers 0 and 1 are of one group in this model, so two iterations are two real layers.
    assert checkpoint.stack().tensors[0] == checkpoint.stack().tensors[1]
    assert torch.allclose(states[1], blocks["encoder"].states[2])


def test_runge_kutta_has_order_four_and_euler_order_one():
    start = torch.ones(1, 1, dtype=torch.float64)

    def error(solver, n):
        return abs(solver(lambda x: -x, start, n_steps=n).item() - math.exp(-1))

    assert 3.8 < math.log2(error(flow, 4) / error(flow, 8)) < 4.2
    assert 0.8 < math.log2(error(euler, 32) / error(euler, 64)) < 1.2


def test_attention_alone_adds_the_attention_output(tmp_path, generator):
    build(BY_NAME["gpt2"]).save_pretrained(tmp_path)
    layer = load_layer(load_checkpoint(tmp_path), 0)
    x = torch.randn(7, 24, generator=generator, dtype=torch.float64)
    assert torch.equal(attention_step(layer, x), x + attention_output(layer, layer.normalise(x)))
