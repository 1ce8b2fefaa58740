"""Captured states are the model's own, for every family, and capturing changes nothing."""

import pytest
import torch

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.families.architecture import NormKind
from orbitlens.heads.head import normalised
from orbitlens.heads.layers import load_layer
from orbitlens.running.capture import capturing, is_post_norm
from orbitlens.tracing.heads import head_contributions
from tiny_models import CASES, build, float64, inputs_for

BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a function: a case's name to (checkpoint, states by stack and layer, its output)."""
    known = {}

    def get(name):
        if name not in known:
            case = BY_NAME[name]
            folder = tmp_path_factory.mktemp(name)
            model = build(case)
            model.save_pretrained(folder)
            checkpoint = load_checkpoint(folder)
            known[name] = checkpoint, *_observed(case, model, checkpoint)
        return known[name]

    return get


def _observed(case, model, checkpoint):
    states = {}

    def sink(stack, layer, seen):
        states[stack.name, layer] = seen

    inputs = inputs_for(case, model)
    with torch.no_grad(), float64():
        plain = model(**inputs, output_hidden_states=True)
        with capturing(model, checkpoint, sink):
            hooked = model(**inputs, output_hidden_states=True)
        after = model(**inputs, output_hidden_states=True)
    return states, plain, hooked, after


def hidden_states(output, stack):
    if getattr(output, "hidden_states", None) is not None:
        return output.hidden_states
    return getattr(output, f"{stack.name}_hidden_states")


def first_tensor(output):
    return next(v for v in output.values() if isinstance(v, torch.Tensor))


@pytest.mark.parametrize("name", BY_NAME)
def test_states_are_the_models_own_hidden_states(run, name):
    checkpoint, states, plain, _, _ = run(name)
    for stack in checkpoint.architecture.stacks:
        theirs = hidden_states(plain, stack)
        for layer, spec in enumerate(stack.layers):
            assert torch.equal(states[stack.name, layer].before, theirs[spec.number])
            if spec.number + 2 < len(theirs):  # a norm follows the last layer
                assert torch.equal(states[stack.name, layer].after, theirs[spec.number + 1])
    assert len(states) == sum(stack.n_layers for stack in checkpoint.architecture.stacks)


@pytest.mark.parametrize("name", BY_NAME)
def test_hooks_change_no_output_and_leave_nothing_behind(run, name):
    _, _, plain, hooked, after = run(name)
    assert torch.equal(first_tensor(plain), first_tensor(hooked))
    assert torch.equal(first_tensor(plain), first_tensor(after))


@pytest.mark.parametrize("name", BY_NAME)
def test_heads_sum_to_the_attention_output(run, name):
    checkpoint, states, *_ = run(name)
    for (stack, index), seen in states.items():
        layer = load_layer(checkpoint, index, stack=stack)
        for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
            parts = head_contributions(layer, seen.mixed.to(dtype))
            assert parts.dtype is dtype
            total = parts.sum(dim=0) + layer.b_o.to(dtype)
            error = (total - seen.projected).abs().max() / seen.projected.abs().max()
            assert error < tolerance


@pytest.mark.parametrize("name", ["llama-grouped", "bert", "t5"])
def test_a_sum_without_one_head_is_not_the_attention_output(run, name):
    checkpoint, states, *_ = run(name)
    (stack, index), seen = next(iter(states.items()))
    layer = load_layer(checkpoint, index, stack=stack)
    total = head_contributions(layer, seen.mixed)[1:].sum(dim=0) + layer.b_o
    assert (total - seen.projected).abs().max() > 1e-3 * seen.projected.abs().max()


def affine_residual(x, y):
    """Return how far each coordinate of y is from an affine function of the same one of x."""
    x, y = (t.flatten(0, -2) - t.flatten(0, -2).mean(dim=0) for t in (x, y))
    slope = (x * y).sum(dim=0) / x.square().sum(dim=0)
    return ((y - slope * x).norm() / y.norm()).item()


POST_NORM = ["bert", "roberta", "electra", "distilbert", "albert", "opt-post-norm"]


@pytest.mark.parametrize("name", [*POST_NORM, "deberta-v2-content", "xlm-roberta"])
def test_norms_on_the_stream_are_fed_by_attention_and_by_the_mlp(run, name):
    checkpoint, states, *_ = run(name)
    stack = checkpoint.stack()
    assert is_post_norm(stack)
    for seen in states.values():
        moved = seen.before + seen.attention
        kind, epsilon = NormKind.LAYER, checkpoint.config.get("layer_norm_eps", 1e-5)
        assert affine_residual(normalised(moved, kind, epsilon), seen.normed) < 1e-4
        assert affine_residual(normalised(seen.unnormed, kind, epsilon), seen.after) < 1e-4
        assert affine_residual(normalised(seen.before, kind, epsilon), seen.normed) > 1e-2


@pytest.mark.parametrize("name", ["llama", "gpt_neox", "gemma2", "t5"])
def test_other_families_have_no_norm_on_the_stream(run, name):
    checkpoint, states, *_ = run(name)
    assert not any(is_post_norm(stack) for stack in checkpoint.architecture.stacks)
    assert all(seen.normed is None and seen.unnormed is None for seen in states.values())


def test_after_of_the_last_layer_is_in_front_of_the_last_norm(run):
    checkpoint, states, plain, *_ = run("llama")
    last = states["decoder", checkpoint.stack().n_layers - 1].after
    assert not torch.allclose(last, plain.hidden_states[-1])
    checkpoint, states, plain, *_ = run("bert")
    assert torch.equal(states["encoder", 2].after, plain.hidden_states[-1])
