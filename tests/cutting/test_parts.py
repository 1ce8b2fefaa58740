"""A model without parts, against the same model with these parts really gone or set to zero."""

import copy

import pytest
import torch
import transformers

import orbitlens as ol
from orbitlens.cutting.parts import Trunk, parts_of
from orbitlens.errors import InputError
from orbitlens.running.removal import Part, PartKind

SIZES = {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 40}
LLAMA = {**SIZES, "num_key_value_heads": 2, "intermediate_size": 32, "max_position_embeddings": 64}
IDS = torch.randint(5, 40, (2, 9), generator=torch.Generator().manual_seed(0))
# name -> module, its list of layers, and within a layer the output maps of attention and MLP
KINDS = {
    "llama": (
        lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)),
        "model.layers",
        "self_attn.o_proj",
        "mlp.down_proj",
    ),
    "gpt2": (
        lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_embd=24, n_head=4, n_layer=3, vocab_size=40, n_positions=32)
        ),
        "transformer.h",
        "attn.c_proj",
        "mlp.c_proj",
    ),
    "pythia": (  # attention and MLP side by side
        lambda: transformers.GPTNeoXForCausalLM(
            transformers.GPTNeoXConfig(
                **SIZES,
                intermediate_size=32,
                rope_parameters={
                    "rope_type": "default",
                    "rope_theta": 50.0,
                    "partial_rotary_factor": 0.67,
                },
            )
        ),
        "gpt_neox.layers",
        "attention.dense",
        "mlp.dense_4h_to_h",
    ),
    "gemma2": (  # norms behind both blocks
        lambda: transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**LLAMA, head_dim=6)),
        "model.layers",
        "self_attn.o_proj",
        "mlp.down_proj",
    ),
    "bert": (  # post-norm
        lambda: transformers.BertForMaskedLM(
            transformers.BertConfig(**SIZES, intermediate_size=32)
        ),
        "bert.encoder.layer",
        "attention.output.dense",
        "output.dense",
    ),
}


@pytest.fixture(params=KINDS)
def kind(request):
    make, *names = KINDS[request.param]
    torch.manual_seed(0)
    module = make().double().eval()
    for parameter in module.parameters():  # away from zero biases and unit gains
        parameter.data += 0.2 * torch.randn_like(parameter)
    return module, *names


def logits_without(module, part):
    trunk = Trunk(ol.load(module))
    batch = {"input_ids": IDS}
    with trunk.ready():
        whole, states = trunk.states(batch)
        return trunk.without(batch, part, states).logits, whole.logits


def reference(module, change):
    changed = copy.deepcopy(module)
    change(changed)
    with torch.no_grad():
        return changed(input_ids=IDS).logits


def zero_map(name):
    def change(module):
        weights = module.get_submodule(name)
        weights.weight.data.zero_()
        if getattr(weights, "bias", None) is not None:
            weights.bias.data.zero_()

    return change


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_layer_that_is_out_is_a_layer_that_is_gone(kind, layer):
    module, layers, *_ = kind

    def gone(changed):
        del changed.get_submodule(layers)[layer]

    cut, whole = logits_without(module, Part(kind=PartKind.LAYER, layer=layer))
    assert torch.allclose(cut, reference(module, gone), atol=1e-10)
    assert (cut - whole).abs().max() > 1e-3


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("block", [PartKind.ATTENTION, PartKind.MLP])
def test_a_block_that_is_out_has_an_output_map_of_zero(kind, block, layer):
    module, layers, attention, mlp = kind
    name = attention if block is PartKind.ATTENTION else mlp
    cut, whole = logits_without(module, Part(kind=block, layer=layer))
    expected = reference(module, zero_map(f"{layers}.{layer}.{name}"))
    assert torch.allclose(cut, expected, atol=1e-10)
    assert (cut - whole).abs().max() > 1e-3


def test_a_head_that_is_out_has_zeros_in_the_output_map(kind):
    module, layers, attention, _ = kind

    def change(changed):
        weights = changed.get_submodule(f"{layers}.1.{attention}")
        rows = weights.weight.data
        (rows if type(weights).__name__ == "Conv1D" else rows.T)[12:18] = 0

    cut, whole = logits_without(module, Part(kind=PartKind.HEAD, layer=1, head=2))
    assert torch.allclose(cut, reference(module, change), atol=1e-10)
    assert (cut - whole).abs().max() > 1e-3


def test_several_layers_are_out_together_with_a_part(kind):
    module, layers, attention, _ = kind

    def change(changed):
        zero_map(f"{layers}.2.{attention}")(changed)
        del changed.get_submodule(layers)[0]

    trunk = Trunk(ol.load(module))
    with trunk.ready():
        trunk.states({"input_ids": IDS})
        _, states = trunk.states({"input_ids": IDS}, frozenset({0}))
        part = Part(kind=PartKind.ATTENTION, layer=2)
        cut = trunk.without({"input_ids": IDS}, part, states, frozenset({0})).logits
    assert torch.allclose(cut, reference(module, change), atol=1e-10)


def test_the_module_is_as_before_afterwards(kind):
    module = kind[0].train()
    before = [sorted(vars(part)) for part in module.modules()]
    logits_without(module, Part(kind=PartKind.MLP, layer=1))
    assert [sorted(vars(part)) for part in module.modules()] == before
    assert all(part.training for part in module.modules())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def test_shared_layers_are_taken_out_one_call_at_a_time():
    torch.manual_seed(0)
    config = {**SIZES, "intermediate_size": 32, "embedding_size": 8, "num_hidden_layers": 4}
    module = transformers.AlbertForMaskedLM(transformers.AlbertConfig(**config)).double().eval()
    shorter = copy.deepcopy(module)
    shorter.albert.encoder.config.num_hidden_layers = 3
    with torch.no_grad():
        expected = shorter(input_ids=IDS).logits
    for layer in range(4):
        cut, _ = logits_without(module, Part(kind=PartKind.LAYER, layer=layer))
        assert torch.allclose(cut, expected, atol=1e-12)
    first, whole = logits_without(module, Part(kind=PartKind.HEAD, layer=0, head=1))
    last, _ = logits_without(module, Part(kind=PartKind.HEAD, layer=3, head=1))
    assert (first - last).abs().max() > 1e-6
    assert (last - whole).abs().max() > 1e-6


def test_blocks_before_the_cut_are_not_computed():
    torch.manual_seed(0)
    module = KINDS["llama"][0]().eval()
    calls = []
    for number, layer in enumerate(module.model.layers):
        layer.mlp.register_forward_hook(lambda *_, number=number: calls.append(number))
    trunk = Trunk(ol.load(module))
    with trunk.ready():
        _, states = trunk.states({"input_ids": IDS})
        calls.clear()
        trunk.without({"input_ids": IDS}, Part(kind=PartKind.LAYER, layer=1), states)
    assert calls == [2]


def test_parts_are_listed_kind_by_kind():
    stack = ol.load("orbit-nano-rotary").architecture.stacks[0]
    names = [str(part) for part in parts_of(stack, (PartKind.MLP, PartKind.HEAD))]
    assert names[:5] == ["MLP 0", "MLP 1", "MLP 2", "MLP 3", "head 0.0"]
    assert len(names) == 4 + 16


def test_two_towers_are_refused():
    torch.manual_seed(0)
    sizes = {"d_model": 24, "d_kv": 6, "num_heads": 4, "num_layers": 2, "vocab_size": 40}
    module = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, d_ff=32))
    with pytest.raises(InputError, match="an encoder and a decoder"):
        Trunk(ol.load(module))
