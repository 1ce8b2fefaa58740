"""Families: a new one is one object, and a model that does not fit its layout is refused."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from orbitlens.checkpoint.bounds import DEEPEST_SHARED
from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.errors import CheckpointError
from orbitlens.families.architecture import NormKind, Position
from orbitlens.families.family import Family
from orbitlens.families.layout import Layout
from orbitlens.families.registry import FAMILIES, family_of
from orbitlens.heads.attention import attention_output
from orbitlens.heads.layers import load_layer
from orbitlens.scanning.api import scan
from small_llama import refused, run, small_weights, write_config, write_small_llama
from tiny_models import CASES, build

BY_NAME = {case.name: case for case in CASES}


@pytest.fixture
def tokens(generator):
    return torch.randn(6, 8, generator=generator, dtype=torch.float64)


def fused_and_renamed(weights):
    """Return the weights as "mymodel" of docs/add-a-family.md keeps them."""
    renamed = {}
    for layer in (0, 1):
        place = f"model.layers.{layer}"
        for part in ("weight", "bias"):
            three = [weights[f"{place}.self_attn.{role}_proj.{part}"] for role in "qkv"]
            renamed[f"{place}.attn.qkv.{part}"] = torch.cat(three)
            renamed[f"{place}.attn.out.{part}"] = weights[f"{place}.self_attn.o_proj.{part}"]
            norm = f"{place}.input_layernorm.{part}"
            renamed[norm] = weights[norm]
    return renamed


# --- adding a family -------------------------------------------------------------------------


def test_one_layout_is_all_a_new_family_needs(tmp_path, monkeypatch, tokens):
    """The layout of docs/add-a-family.md reads a renamed Llama, and reads it as Llama is read."""
    original = load_checkpoint(write_small_llama(tmp_path / "llama"))
    folder = write_small_llama(
        tmp_path / "mine", fused_and_renamed(small_weights()), model_type="mymodel"
    )
    refused("scan", folder, says=["'mymodel'", "model.layers.0.attn.qkv.weight", "one file"])
    layout = Layout(qkv=("attn.qkv",), fused_order="blocks", o="attn.out")
    monkeypatch.setitem(FAMILIES, "mymodel", Family(model_type="mymodel", stacks=(layout,)))
    mine = load_checkpoint(folder)
    assert mine.architecture.family == "mymodel"
    for index in (0, 1):
        expected = load_layer(original, index)
        found = load_layer(mine, index)
        output = attention_output(found, found.normalise(tokens))
        assert torch.equal(output, attention_output(expected, expected.normalise(tokens)))
    assert run("scan", folder).code == 0


def test_a_layout_that_says_the_wrong_thing_reads_another_model(tmp_path, monkeypatch, tokens):
    """The control: the comparison above sees a wrong entry."""
    folder = write_small_llama(
        tmp_path, fused_and_renamed(small_weights()), model_type="mymodel", num_key_value_heads=1
    )
    layout = Layout(qkv=("attn.qkv",), fused_order="blocks", o="attn.out")
    outputs = []
    for changes in ({}, {"norm_kind": NormKind.LAYER}, {"causal": False}, {"rotary_share": 0.5}):
        family = Family(model_type="mymodel", stacks=(replace(layout, **changes),))
        monkeypatch.setitem(FAMILIES, "mymodel", family)
        layer = load_layer(load_checkpoint(folder), 0)
        outputs.append(attention_output(layer, layer.normalise(tokens)))
    for other in outputs[1:]:
        assert (outputs[0] - other).abs().max() > 1e-3


def test_a_new_family_may_have_entries_that_depend_on_config_and_layer(tmp_path, monkeypatch):
    layout = Layout(
        position=lambda c: Position.NONE if c.flag("no_positions") else Position.ROTARY,
        window=lambda c, layer: c.optional_size("sight") if layer else None,
        flags=("made up",),
    )
    monkeypatch.setitem(FAMILIES, "mymodel", Family(model_type="mymodel", stacks=(layout,)))
    folder = write_small_llama(tmp_path, model_type="mymodel", no_positions=True, sight=5)
    checkpoint = load_checkpoint(folder)
    stack = checkpoint.stack()
    assert stack.position is Position.NONE
    assert [layer.window for layer in stack.layers] == [None, 5]
    assert "made up" in scan(checkpoint).flags


def test_layers_without_attention_are_skipped_and_the_others_keep_their_numbers(
    tmp_path, monkeypatch, tokens
):
    original = load_checkpoint(write_small_llama(tmp_path / "llama"))
    layout = Layout(
        attention_layers=(1,), window=lambda c, layer: 3 + layer, flags=("one skipped",)
    )
    monkeypatch.setitem(FAMILIES, "mymodel", Family(model_type="mymodel", stacks=(layout,)))
    weights = {name: value for name, value in small_weights().items() if "layers.0" not in name}
    hybrid = load_checkpoint(write_small_llama(tmp_path / "mine", weights, model_type="mymodel"))
    stack = hybrid.stack()
    assert [(spec.number, spec.window) for spec in stack.layers] == [(1, 4)]
    assert "one skipped" in hybrid.architecture.flags
    ours, theirs = load_layer(hybrid, 0), load_layer(original, 1)
    assert torch.equal(ours.w_q, theirs.w_q)
    assert torch.equal(ours.norm_gain, theirs.norm_gain)


def test_a_model_without_any_attention_is_refused(tmp_path, monkeypatch):
    family = Family(model_type="mymodel", stacks=(Layout(attention_layers=()),))
    monkeypatch.setitem(FAMILIES, "mymodel", family)
    folder = write_small_llama(tmp_path, model_type="mymodel")
    refused("scan", folder, says=["none of this model's 2 layers has attention"])


def test_defaults_of_a_layout_are_llamas():
    assert FAMILIES["llama"].stacks == (Layout(),)


# --- what does not fit -----------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_with_nothing_but_its_family_is_refused_by_name(tmp_path, family):
    folder = write_small_llama(tmp_path)
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder)
    message = str(caught.value)
    assert "the config has no" in message or "there is none" in message
    assert "unexpected form" not in message


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"llama", "gemma3", "gemma3_text"}))
def test_a_llama_that_calls_itself_something_else_is_read_or_refused(tmp_path, family):
    folder = write_small_llama(tmp_path, model_type=family)
    outcome = run("scan", folder)
    assert outcome.code in {0, 2}
    assert "Traceback" not in outcome.err


def test_a_known_family_without_its_tensors_shows_what_is_there(tmp_path):
    folder = write_small_llama(tmp_path, model_type="gpt2")
    says = ["'gpt2'", "'h.0.attn.c_proj'", "there is none", "Attention-like tensors found (16)"]
    refused("scan", folder, says=says)


@pytest.mark.parametrize("role", ["q_proj", "k_proj", "v_proj", "o_proj"])
def test_a_missing_projection_is_named(tmp_path, role):
    weights = small_weights()
    del weights[f"model.layers.1.self_attn.{role}.weight"]
    folder = write_small_llama(tmp_path, weights)
    refused("scan", folder, says=[f"'model.layers.1.self_attn.{role}.weight'", "is missing"])


def test_a_missing_norm_is_named_and_a_missing_bias_is_none(tmp_path):
    weights = small_weights()
    norm = weights.pop("model.layers.0.input_layernorm.weight")
    refused("scan", write_small_llama(tmp_path, weights), says=["input_layernorm.weight"])
    weights["model.layers.0.input_layernorm.weight"] = norm
    weights = {name: value for name, value in weights.items() if not name.endswith("bias")}
    layer = load_layer(load_checkpoint(write_small_llama(tmp_path, weights)), 0)
    assert layer.b_q.abs().max() == 0
    assert layer.norm_shift is None


# --- damaged models of other families --------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Return a function that writes a tiny model of a case, some of its tensors changed."""
    known = {}

    def get(name, **changes):
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            build(BY_NAME[name]).save_pretrained(folder)
            known[name] = folder, load_file(folder / "model.safetensors")
        folder, tensors = known[name]
        changed = {key: value for key, value in tensors.items() if changes.get(key, 0) is not None}
        changed |= {key: value for key, value in changes.items() if value is not None}
        save_file(changed, folder / "model.safetensors")
        return folder

    return get


SHAPES = [
    ("gpt2", "transformer.h.1.attn.c_attn.weight", (72, 24), "[24, 72]"),
    ("gpt2", "transformer.h.1.attn.c_attn.bias", (24,), "[72]"),
    ("bloom", "transformer.h.0.self_attention.query_key_value.weight", (24, 72), "[72, 24]"),
    ("qwen3", "model.layers.0.self_attn.q_norm.weight", (7,), "[8] or [32] or [4, 8]"),
    ("qwen3", "model.layers.0.self_attn.k_norm.weight", (1, 8), "[8] or [16] or [2, 8]"),
    ("olmo2", "model.layers.2.self_attn.q_norm.weight", (23,), "[6] or [24] or [4, 6]"),
    ("olmo2", "model.layers.2.post_attention_layernorm.weight", (1,), "[24]"),
    ("stablelm-qk-norm", "model.layers.0.self_attn.q_layernorm.norms.3.weight", (5,), "[6]"),
    ("gpt2", "transformer.wpe.weight", (24,), "one row a position"),
]
BIAS = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
SHAPES += [
    ("t5", BIAS, (4, 8), "4 columns"),
    ("t5", BIAS, (8,), "4 columns"),
    ("t5", BIAS, (3, 4), "4 buckets or more"),
]


@pytest.mark.parametrize(("name", "tensor", "shape", "expected"), SHAPES)
def test_tensors_of_the_wrong_shape_are_named(tiny, name, tensor, shape, expected):
    folder = tiny(name, **{tensor: torch.ones(shape)})
    refused("scan", folder, says=[repr(tensor), str(list(shape)), expected, "not of the same"])


def test_t5_buckets_beyond_the_largest_distance_are_refused(tiny):
    folder = tiny("t5", **{BIAS: torch.ones(40, 4)})
    refused("scan", folder, says=["relative_attention_max_distance", "9", "40 buckets"])


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("gpt2", "transformer.h.0.attn.c_attn.bias"),
        ("qwen3", "model.layers.0.self_attn.k_norm.weight"),
        ("olmo2", "model.layers.2.post_attention_layernorm.weight"),
        ("stablelm-qk-norm", "model.layers.0.self_attn.q_layernorm.norms.3.weight"),
        ("t5", BIAS),
    ],
)
def test_not_a_number_is_found_wherever_a_family_keeps_it(tiny, name, tensor):
    damaged = load_file(tiny(name) / "model.safetensors")[tensor]
    damaged.view(-1)[0] = float("nan")
    refused("scan", tiny(name, **{tensor: damaged}), says=[repr(tensor), "NaN or infinity"])


def test_an_encoder_saved_alone_is_read_and_the_rest_flagged(tiny):
    names = load_file(tiny("t5") / "model.safetensors")
    decoder = {name: None for name in names if name.startswith("decoder.")}
    checkpoint = load_checkpoint(tiny("t5", **decoder))
    assert [stack.name for stack in checkpoint.architecture.stacks] == ["encoder"]
    assert "no decoder in these files" in scan(checkpoint).flags


def test_layers_up_to_the_limit_are_read_where_they_are_shared(tiny):
    folder = tiny("albert")
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": DEEPEST_SHARED, "num_hidden_groups": 1}
    (folder / "config.json").write_text(json.dumps(config))
    assert load_checkpoint(folder).stack().n_layers == DEEPEST_SHARED
    config["num_hidden_layers"] += 1
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="129 layers share 1 set of weights"):
        load_checkpoint(folder)


def test_the_registry_lists_each_family_and_each_stack_once():
    for name, family in FAMILIES.items():
        assert family.model_type == name
        stacks = [layout.stack for layout in family.stacks]
        assert len(stacks) == len(set(stacks)), name
        assert set(stacks) <= {"encoder", "decoder"}
        assert set(family.other_feeds) <= set(stacks)
    stored = [name for family in FAMILIES.values() for name in family.gguf]
    assert len(stored) == len(set(stored))


def test_a_family_and_its_config_may_be_a_text_model_inside_another(tmp_path):
    folder = write_small_llama(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    inner = {**config, "model_type": "ignored"}
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "text_config": inner}))
    assert load_checkpoint(folder).architecture.family == "llama"
    write_config(folder, text_config="not an object")
    assert load_checkpoint(folder).architecture.family == "llama"


def test_every_class_of_a_tiny_model_names_its_family(tmp_path):
    for case in CASES:
        model_type = build(case).config.model_type
        assert family_of({"architectures": [case.model]}).model_type == model_type


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("GPTNeoXForCausalLM", "gpt_neox"),
        ("GPTNeoForCausalLM", "gpt_neo"),
        ("Gemma3ForConditionalGeneration", "gemma3"),
        ("T5EncoderModel", "t5"),
        ("OrbitForCausalLM", "orbit"),
        ("XLMRobertaForMaskedLM", "xlm-roberta"),
    ],
)
def test_classes_with_like_names_are_told_apart(name, family):
    assert family_of({"architectures": [name]}).model_type == family


def test_importing_all_families_imports_neither_torch_nor_transformers():
    code = (
        "import sys, orbitlens.families.registry; print({'torch', 'transformers'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
