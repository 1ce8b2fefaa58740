"""Attention recomputed from heads equals the model's own, for every family, to rounding."""

import copy
import dataclasses

import pytest
import torch

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.families.architecture import NormKind, Pairing
from orbitlens.families.registry import FAMILIES
from orbitlens.heads.attention import attention_output, attention_pattern, head_outputs, t5_buckets
from orbitlens.heads.layers import AttentionLayer, load_layer
from tiny_models import CASES, build, observe

TOLERANCE = 1e-8
BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a function that builds a case once, saves it, and notes what its layers did."""
    known = {}

    def get(name):
        if name not in known:
            case = BY_NAME[name]
            folder = tmp_path_factory.mktemp(name)
            model = build(case)
            model.save_pretrained(folder)
            checkpoint = load_checkpoint(folder)
            seen = {s.name: observe(case, model, s) for s in checkpoint.architecture.stacks}
            known[name] = checkpoint, seen
        return known[name]

    return get


def worst_error(checkpoint, seen, change=None):
    """Return the largest deviation of patterns and outputs over all layers of all stacks."""
    worst = 0.0
    for stack in checkpoint.architecture.stacks:
        for index, observed in enumerate(seen[stack.name]):
            layer = load_layer(checkpoint, index, stack=stack.name)
            layer = change(layer) if change else layer
            tokens = observed.tokens
            if "norm" in stack.tensors[index]:
                tokens = layer.normalise(tokens)
            error = (attention_output(layer, tokens) - observed.output).abs().max()
            worst = max(worst, (error / observed.output.abs().max()).item())
            if observed.pattern is not None:
                difference = attention_pattern(layer, tokens) - observed.pattern
                worst = max(worst, difference.abs().max().item())
    return worst


@pytest.mark.parametrize("name", BY_NAME)
def test_patterns_and_outputs_equal_the_models_own(saved, name):
    checkpoint, seen = saved(name)
    assert worst_error(checkpoint, seen) < TOLERANCE


def test_heads_are_unfolded_once_where_a_layer_is_held_unfolded(saved, monkeypatch):
    checkpoint, _ = saved("llama-grouped")
    layer = load_layer(checkpoint, 0)
    made, unfold = [], AttentionLayer._unfold
    monkeypatch.setattr(AttentionLayer, "_unfold", lambda x, h: made.append(h) or unfold(x, h))
    tokens = torch.randn(5, layer.stack.d_model, dtype=torch.float64)
    with layer.unfolded():
        first = head_outputs(layer, tokens)
        with layer.unfolded():
            again = head_outputs(layer, tokens)
    assert made == list(range(layer.n_heads))
    assert torch.equal(first, again)
    layer.head(0)
    assert len(made) == layer.n_heads + 1  # nothing is kept beyond it


def test_every_family_of_the_table_is_covered(saved):
    tested = {saved(name)[0].architecture.family for name in BY_NAME}
    # "gemma3" is Gemma 3 with a vision tower around the text model; its own test is below. The
    # lab's own models, "orbit", are in tests/lab/test_reading.py.
    assert set(FAMILIES) - tested == {"gemma3", "orbit"}


def on_stack(**changes):
    return lambda layer: dataclasses.replace(
        layer, stack=dataclasses.replace(layer.stack, **changes)
    )


def on_spec(**changes):
    return lambda layer: dataclasses.replace(layer, spec=dataclasses.replace(layer.spec, **changes))


def on_rotary(**changes):
    def change(layer):
        rotary = dataclasses.replace(layer.spec.rotary, **changes)
        return on_spec(rotary=rotary)(layer)

    return change


def other_pairing(layer):
    now = layer.spec.rotary.pairing
    other = Pairing.NEIGHBOURS if now is Pairing.HALVES else Pairing.HALVES
    return on_rotary(pairing=other)(layer)


def transposed_output(layer):
    return dataclasses.replace(layer, w_o=layer.w_o.T)


def transposed_query(layer):
    return dataclasses.replace(layer, w_q=layer.w_q.T)


def keys_and_values_swapped(layer):
    return dataclasses.replace(layer, w_k=layer.w_v, w_v=layer.w_k)


def groups_interleaved(layer):
    """Hand query head h the key head h % n_kv instead of h // group."""
    d = layer.stack.d_head
    order = torch.arange(layer.n_heads).reshape(layer.spec.n_kv_heads, -1).T.flatten()
    columns = (order[:, None] * d + torch.arange(d)).flatten()
    return dataclasses.replace(layer, w_q=layer.w_q[:, columns], w_o=layer.w_o[columns])


MUTATIONS = [
    ("llama", other_pairing),
    ("gptj", other_pairing),
    ("gpt_neox", on_rotary(d_rotary=6)),
    ("phi", on_rotary(d_rotary=2)),
    ("llama-linear", on_rotary(kind="default")),
    ("llama-dynamic", on_rotary(kind="default")),
    ("llama-yarn", on_rotary(kind="default")),
    (
        "llama-yarn-options",
        on_rotary(parameters={"factor": 8.0, "original_max_position_embeddings": 16}),
    ),
    ("llama-llama3", on_rotary(kind="default")),
    ("llama-longrope-short", on_rotary(kind="default")),
    ("phi3-longrope-long", on_rotary(kind="default")),
    ("llama-proportional", on_rotary(kind="default")),
    ("gemma3", on_rotary(base=10000.0)),
    ("gpt2", transposed_output),
    ("gpt2", transposed_query),
    ("bert", transposed_output),
    ("vit", transposed_query),
    ("llama", keys_and_values_swapped),
    ("llama-grouped", groups_interleaved),
    ("falcon-new", groups_interleaved),
    ("gpt2-inverse-layer-scale", on_spec(scale=6**-0.5)),
    ("gpt_neo", on_spec(scale=6**-0.5)),
    ("gpt_neo", on_spec(window=None)),
    ("mistral", on_spec(window=None)),
    ("mistral", on_spec(window=4)),
    ("gemma2", on_stack(softcap=None)),
    ("gemma2", on_stack(causal=False)),
    ("bert", on_stack(causal=True)),
    ("bert-decoder", on_stack(causal=False)),
    ("bloom", on_stack(alibi_scale=2.0)),
    ("falcon-multi-head-alibi", on_stack(alibi_scale=1.0)),
    ("mpt-clip-6-heads", on_stack(qk_clip=None)),
    ("olmo", on_stack(qk_clip=None)),
    ("olmo2", on_stack(qk_norm=None)),
    ("qwen3", on_stack(qk_norm=None)),
    ("phi-qk-norm", on_stack(qk_norm=NormKind.RMS)),
    ("llama", lambda layer: dataclasses.replace(layer, norm_gain=None)),
    ("gpt2", lambda layer: dataclasses.replace(layer, norm_shift=None)),
    ("gemma", lambda layer: dataclasses.replace(layer, norm_gain=layer.norm_gain - 1)),
    ("qwen2", lambda layer: dataclasses.replace(layer, b_q=torch.zeros_like(layer.b_q))),
    ("qwen2", lambda layer: dataclasses.replace(layer, b_k=torch.zeros_like(layer.b_k))),
    ("opt", lambda layer: dataclasses.replace(layer, b_v=torch.zeros_like(layer.b_v))),
    ("opt", lambda layer: dataclasses.replace(layer, b_o=torch.zeros_like(layer.b_o))),
    ("t5", lambda layer: dataclasses.replace(layer, relative_bias=None)),
    ("t5", on_stack(t5_max_distance=128)),
    ("t5", on_spec(scale=5**-0.5)),
]


@pytest.mark.parametrize(("name", "change"), MUTATIONS)
def test_a_wrong_reading_does_not_pass(saved, name, change):
    checkpoint, seen = saved(name)
    assert worst_error(checkpoint, seen, change) > 1e-3


@pytest.mark.parametrize(
    "name", ["gpt2", "bloom", "gpt_neox", "falcon-new", "falcon-multi-query", "phi3", "mpt"]
)
def test_the_other_order_of_a_fused_tensor_does_not_pass(saved, name):
    checkpoint, seen = saved(name)
    stack = checkpoint.stack()
    if name == "falcon-multi-query":
        wrong_order = {"fused_order": "groups"}  # one group: queries, key, value: the same thing
        assert worst_error(with_stack(checkpoint, **wrong_order), seen) < TOLERANCE
        return
    wrong = "groups" if stack.fused_order == "blocks" else "blocks"
    assert worst_error(with_stack(checkpoint, fused_order=wrong), seen) > 1e-3


def with_stack(checkpoint, **changes):
    stacks = tuple(dataclasses.replace(s, **changes) for s in checkpoint.architecture.stacks)
    architecture = dataclasses.replace(checkpoint.architecture, stacks=stacks)
    return dataclasses.replace(checkpoint, architecture=architecture)


def test_a_sharded_bfloat16_checkpoint_reads_back_exactly(tmp_path):
    case = BY_NAME["llama-grouped"]
    model = build(case)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().double()
    copy.deepcopy(model).bfloat16().save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.source.tensors["model.norm.weight"].dtype == "BF16"
    seen = {"decoder": observe(case, model, checkpoint.stack())}
    assert worst_error(checkpoint, seen) < TOLERANCE


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float16])
def test_a_checkpoint_in_a_narrow_type_reads_back_exactly(tmp_path, dtype):
    case = BY_NAME["llama"]
    model = build(case)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype).double()
    model.save_pretrained(tmp_path)
    rewrite(tmp_path / "model.safetensors", lambda name, value: {name: value.to(dtype)})
    checkpoint = load_checkpoint(tmp_path)
    seen = {"decoder": observe(case, model, checkpoint.stack())}
    assert worst_error(checkpoint, seen) < TOLERANCE


@pytest.mark.parametrize("layout", ["tensor", "row", "block"])
def test_fp8_scales_are_applied(tmp_path, layout, generator):
    case = BY_NAME["llama"]
    model = build(case)
    model.save_pretrained(tmp_path)
    scaled = {}

    def squeeze(name, value):
        if "self_attn" not in name:
            return {name: value}
        rows, columns = value.shape
        shape = {"tensor": (1,), "row": (rows, 1), "block": (rows // 4, columns // 8)}[layout]
        scale = torch.rand(shape, generator=generator) + 0.5
        spread = (
            scale if layout != "block" else scale.repeat_interleave(4, 0).repeat_interleave(8, 1)
        )
        small = (value / spread).to(torch.float8_e4m3fn)
        scaled[name] = (small.float() * spread).double()
        suffix = "_scale_inv" if layout == "block" else "_scale"
        return {name: small, name + suffix: scale}

    rewrite(tmp_path / "model.safetensors", squeeze)
    for name, parameter in model.named_parameters():
        parameter.data = scaled.get(name, parameter.data)
    checkpoint = load_checkpoint(tmp_path)
    seen = {"decoder": observe(case, model, checkpoint.stack())}
    assert worst_error(checkpoint, seen) < TOLERANCE


def rewrite(file, change):
    from safetensors.torch import load_file, save_file

    tensors = {}
    for name, value in load_file(file).items():
        tensors |= change(name, value)
    save_file(tensors, file)


def test_gemma_3_is_found_inside_a_multimodal_checkpoint(tmp_path):
    import json

    case = BY_NAME["gemma3"]
    model = build(case)
    model.save_pretrained(tmp_path)
    rewrite(
        tmp_path / "model.safetensors",
        lambda name, value: {name.replace("model.", "model.language_model.", 1): value},
    )
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gemma3", "text_config": config})
    )
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.architecture.family == "gemma3"
    outer = dataclasses.replace(case, renamed={"language_model.": ""})
    seen = {"decoder": observe(outer, model, checkpoint.stack())}
    assert worst_error(checkpoint, seen) < TOLERANCE


def test_old_spellings_of_rotary_settings_mean_the_same(tmp_path, saved):
    import json

    case = BY_NAME["llama-linear"]
    build(case).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    config.pop("rope_parameters")
    config |= {"rope_theta": 50.0, "rope_scaling": {"type": "linear", "factor": 3.0}}
    file.write_text(json.dumps(config))
    _, seen = saved("llama-linear")
    assert worst_error(load_checkpoint(tmp_path), seen) < TOLERANCE


def test_debertas_position_terms_are_flagged_and_its_content_scores_exact(tmp_path, generator):
    from tiny_models import BERT, Case, float64

    case = Case(
        "deberta",
        "DebertaV2Model",
        {**BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    )
    model = build(case)
    model.save_pretrained(tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    assert any("c2p, p2c" in flag for flag in checkpoint.architecture.flags)
    layer = load_layer(checkpoint, 0)
    x = torch.randn(5, 24, generator=generator, dtype=torch.float64)
    attention = model.encoder.layer[0].attention.self
    attention.relative_attention = False
    with torch.no_grad(), float64():
        mask = torch.ones(1, 1, 5, 5, dtype=torch.bool)
        pattern = attention(x[None], mask, output_attentions=True)[1][0]
    assert (attention_pattern(layer, x) - pattern).abs().max() < TOLERANCE


@pytest.mark.parametrize("name", ["llama-grouped", "gpt2", "gpt_neox", "gemma2"])
def test_heads_and_bias_sum_to_the_output(saved, name, generator):
    checkpoint, _ = saved(name)
    layer = load_layer(checkpoint, 1)
    x = torch.randn(6, 24, generator=generator, dtype=torch.float64)
    total = head_outputs(layer, x).sum(dim=0) + layer.b_o
    assert torch.equal(total, attention_output(layer, x))
    assert torch.allclose(
        attention_pattern(layer, x).sum(dim=-1), torch.ones(1, dtype=torch.float64)
    )


@pytest.mark.parametrize("causal", [True, False])
def test_t5_buckets_equal_transformers_own(causal):
    from transformers.models.t5.modeling_t5 import T5Attention

    offsets = torch.arange(-300, 301)
    theirs = T5Attention._relative_position_bucket(
        offsets, bidirectional=not causal, num_buckets=32, max_distance=128
    )
    ours = t5_buckets(offsets, n_buckets=32, max_distance=128, causal=causal)
    assert torch.equal(ours, theirs)


def test_layernorm_weights_do_not_depend_on_a_direction_that_tokens_never_have(saved):
    checkpoint, _ = saved("gpt2")
    layer = load_layer(checkpoint, 0)
    head = layer.head(0)
    assert head.w_q.sum(dim=0).abs().max() < 1e-12
    assert head.w_v.sum(dim=0).abs().max() < 1e-12


def test_a_norm_over_all_heads_folds_the_weights_once_a_layer(saved, monkeypatch):
    layer = load_layer(saved("olmo2")[0], 0)
    counted = []
    fold = AttentionLayer._folded

    def counting(self, weight, bias):
        counted.append(weight)
        return fold(self, weight, bias)

    monkeypatch.setattr(AttentionLayer, "_folded", counting)
    n, kv = layer.spec.n_heads, layer.spec.n_kv_heads
    assert len(list(layer)) == n
    assert len(counted) == 3 * n + n + kv  # q, k, v of every head, and once all q and all k
