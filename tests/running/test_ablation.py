"""A head that is cut adds nothing, the others stay as they are, and so do the weights."""

import pytest
import torch

from orbitlens.errors import InputError
from orbitlens.running.ablation import without_heads
from orbitlens.running.capture import capturing
from orbitlens.running.model import load
from tiny_models import CASES, build, float64, inputs_for

NAMES = {"llama", "gpt2", "falcon-multi-query", "bert", "albert", "t5", "vit", "gpt_neox", "mpt"}
CHOSEN = [case for case in CASES if case.name in NAMES]


def mixed_heads(case, model, cut=()):
    """Return what enters the output map of each layer, heads apart, and the model's output."""
    states = {}

    def sink(stack, layer, seen):
        n_heads = stack.layers[layer].n_heads
        states.setdefault(stack.name, {})[layer] = seen.mixed.unflatten(-1, (n_heads, -1))

    inputs = inputs_for(case, model.module)
    stack = model.architecture.stacks[-1].name
    with torch.no_grad(), float64(), without_heads(model, cut, stack=stack):
        with capturing(model.module, model.checkpoint, sink):
            output = model.module(**inputs)
    return states[stack], next(v for v in output.values() if isinstance(v, torch.Tensor))


@pytest.mark.parametrize("case", CHOSEN, ids=lambda case: case.name)
def test_only_the_given_head_is_cut_and_only_in_its_layer(case):
    model = load(build(case))
    plain, before = mixed_heads(case, model)
    cut, output = mixed_heads(case, model, [(0, 1)])
    _, after = mixed_heads(case, model)
    assert cut[0][..., 1, :].abs().max() == 0
    assert torch.equal(cut[0][..., 0, :], plain[0][..., 0, :])
    assert cut[1][..., 1, :].abs().max() > 0
    assert not torch.allclose(output, before)
    assert torch.equal(after, before)


def test_cutting_a_head_equals_zeroing_its_rows_of_the_output_map():
    case = next(case for case in CASES if case.name == "llama")
    module = build(case)
    model = load(module)
    _, cut = mixed_heads(case, model, [(1, 0), (1, 2)])
    weight = module.model.layers[1].self_attn.o_proj.weight
    n_heads = module.config.num_attention_heads
    with torch.no_grad():
        weight.unflatten(1, (n_heads, -1))[:, [0, 2]] = 0
    _, zeroed = mixed_heads(case, model)
    assert torch.allclose(cut, zeroed, atol=1e-12)


@pytest.mark.parametrize("place", [(9, 0), (0, 9), (-1, 0)])
def test_a_head_that_is_not_there_is_refused(place):
    case = next(case for case in CASES if case.name == "llama")
    with pytest.raises(InputError, match="there is no"), without_heads(load(build(case)), [place]):
        pass
