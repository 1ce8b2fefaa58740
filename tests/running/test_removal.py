"""What is cut does nothing, everything else stays, and afterwards all is as before."""

import pytest
import torch

from orbitlens.errors import InputError
from orbitlens.running.ablation import without_heads
from orbitlens.running.model import load
from orbitlens.running.removal import FINAL, norms_of, parse_cut, without_parts
from tiny_models import CASES, build, float64, inputs_for

BY_NAME = {case.name: case for case in CASES}
# Where the weights are whose zeros do the same as a cut: attention's output map, the MLP's.
ZEROED = {
    "llama": ("model.layers.1.self_attn.o_proj", "model.layers.1.mlp.down_proj"),
    "gpt2": ("transformer.h.1.attn.c_proj", "transformer.h.1.mlp.c_proj"),
    "bert": ("encoder.layer.1.attention.output.dense", "encoder.layer.1.output.dense"),
    "gpt_neox": ("gpt_neox.layers.1.attention.dense", "gpt_neox.layers.1.mlp.dense_4h_to_h"),
}


def output(case, model, cuts=()):
    inputs = inputs_for(case, model.module)
    chosen = [parse_cut(cut) for cut in cuts]
    with torch.no_grad(), float64(), without_parts(model, chosen):
        found = model.module(**inputs)
    return next(v for v in found.values() if isinstance(v, torch.Tensor))


def named(module, path):
    found = [m for name, m in module.named_modules() if name.endswith(path)]
    assert len(found) == 1, path
    return found[0]


def zero(module, path):
    part = named(module, path)
    with torch.no_grad():
        part.weight.zero_()
        if part.bias is not None:
            part.bias.zero_()


@pytest.mark.parametrize("name", ZEROED)
@pytest.mark.parametrize("part", ["attention", "mlp"])
def test_a_cut_equals_zeros_in_the_weights_that_write(name, part):
    case = BY_NAME[name]
    model = load(build(case))
    before, cut = output(case, model), output(case, model, [f"{part} 1"])
    assert torch.equal(output(case, model), before)  # all is put back
    zero(model.module, ZEROED[name][part == "mlp"])
    assert torch.allclose(cut, output(case, model), atol=1e-12)
    assert not torch.allclose(cut, before, atol=1e-6)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox"])
def test_a_block_that_is_cut_hands_on_what_entered_it(name):
    case = BY_NAME[name]
    model = load(build(case))
    cut = output(case, model, ["block 1"])
    for path in ZEROED[name]:
        zero(model.module, path)
    assert torch.allclose(cut, output(case, model), atol=1e-12)


def test_a_head_is_cut_as_ablation_cuts_it():
    case = BY_NAME["llama"]
    model = load(build(case))
    with torch.no_grad(), float64(), without_heads(model, [(1, 2)]):
        expected = model.module(**inputs_for(case, model.module)).logits
    assert torch.equal(output(case, model, ["head 1.2"]), expected)


def test_a_norm_that_is_cut_divides_all_tokens_by_one_length():
    case = BY_NAME["gpt2"]
    model = load(build(case))
    seen = {}
    norm = model.module.transformer.h[1].ln_1
    handle = norm.register_forward_pre_hook(lambda module, args: seen.update(x=args[0]))
    plain = output(case, model)
    handle.remove()
    x = seen["x"] - seen["x"].mean(-1, keepdim=True)
    length = x.norm(dim=-1).mean(-1)[..., None, None]
    expected = norm.weight * x / length * x.shape[-1] ** 0.5 + norm.bias
    handle = norm.register_forward_hook(lambda module, args, out: expected)
    by_hand = output(case, model)
    handle.remove()
    cut = output(case, model, ["norm 1 ln_1"])
    assert torch.allclose(cut, by_hand, atol=1e-5)  # but for the norm's epsilon
    assert not torch.allclose(cut, plain, atol=1e-3)


def test_every_norm_on_the_stream_has_a_name():
    llama, bert = (norms_of(load(build(BY_NAME[name]))) for name in ("llama", "bert"))
    assert llama[0] == ("input_layernorm", "post_attention_layernorm") and FINAL in llama
    assert bert[2] == ("attention.output.LayerNorm", "output.LayerNorm") and FINAL not in bert


@pytest.mark.parametrize(
    "cut", ["", "head 1", "block", "head 1.2.3", "norm 0", "block -1", "norm 0 a;b", "x" * 999]
)
def test_what_names_no_cut_is_refused(cut):
    with pytest.raises(InputError, match="names nothing that can be cut"):
        parse_cut(cut)


@pytest.mark.parametrize("cut", ["block 9", "head 0.9", "norm 0 nothing"])
def test_what_is_not_there_is_refused(cut):
    case = BY_NAME["llama"]
    with pytest.raises(InputError, match="there is no"):
        output(case, load(build(case)), [cut])
