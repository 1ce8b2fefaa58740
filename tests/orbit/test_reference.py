"""The lab's model with the weights of GPT-2, Llama, BLOOM and T5 is that model."""

import pytest
import torch
import transformers

from orbit_models import token_ids
from orbitlens.orbit import OrbitConfig, OrbitForCausalLM, OrbitModel
from orbitlens.orbit.position import t5_bias
from tiny_models import float64

SIZES = {"vocab_size": 40, "hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 3}


def spread(model):
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        is_gain = parameter.ndim == 1 and name.endswith("weight")
        parameter.data = 1.0 + 0.3 * noise if is_gain else 0.3 * noise
    return model.double().eval()


def copy(target, **sources):
    """Give modules of `target` weights and biases, by path; all of them, or the test is void."""
    given = {}
    for path, (weight, bias) in sources.items():
        given[f"{path}.weight"] = weight
        if bias is not None:
            given[f"{path}.bias"] = bias
    target.load_state_dict({name: value.clone() for name, value in given.items()})


def gpt2():
    config = transformers.GPT2Config(n_embd=24, n_head=4, n_layer=3, vocab_size=40, n_positions=32)
    return spread(transformers.GPT2LMHeadModel(config))


def orbit_of_gpt2(source, **switches):
    config = OrbitConfig(
        **SIZES, **{"max_position_embeddings": 32, "position": "learned", "bias": True, **switches}
    )
    model = OrbitForCausalLM(config).double().eval()
    body = source.transformer
    parts = {
        "model.embed_tokens": (body.wte.weight, None),
        "model.norm": (body.ln_f.weight, body.ln_f.bias),
        "lm_head": (source.lm_head.weight, None),
    }
    if config.position == "learned":
        parts["model.embed_positions"] = (body.wpe.weight, None)
    for number, block in enumerate(body.h):
        place = f"model.layers.{number}"
        parts |= {
            f"{place}.attn_norm": (block.ln_1.weight, block.ln_1.bias),
            f"{place}.self_attn.qkv_proj": (block.attn.c_attn.weight.T, block.attn.c_attn.bias),
            f"{place}.self_attn.o_proj": (block.attn.c_proj.weight.T, block.attn.c_proj.bias),
            f"{place}.mlp_norm": (block.ln_2.weight, block.ln_2.bias),
            f"{place}.mlp.up_proj": (block.mlp.c_fc.weight.T, block.mlp.c_fc.bias),
            f"{place}.mlp.down_proj": (block.mlp.c_proj.weight.T, block.mlp.c_proj.bias),
        }
    copy(model, **parts)
    return model


def test_learned_positions_with_gpt2s_weights_are_gpt2():
    source = gpt2()
    ids = token_ids()
    with torch.no_grad(), float64():
        expected = source(ids).logits
        found = orbit_of_gpt2(source)(ids).logits
        without = orbit_of_gpt2(source, position="none")(ids).logits
        full = orbit_of_gpt2(source, mask="full")(ids).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert (without - expected).abs().max() > 0.1
    assert (full - expected).abs().max() > 0.1


@pytest.mark.parametrize("share", [1.0, 0.67])
def test_rotary_with_llamas_weights_is_llama(share):
    rope = {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": share}
    sizes = {**SIZES, "intermediate_size": 32, "max_position_embeddings": 64}
    with float64():
        source = transformers.GPTNeoXForCausalLM if share < 1 else transformers.LlamaForCausalLM
        config = source.config_class(**sizes, rope_parameters=rope)
        model = spread(source(config))
    if share < 1:  # Llama turns whole heads; GPT-NeoX turns the first part of them
        check_partial_rotary(model, share)
        return
    orbit = orbit_of_llama(model, sizes)
    ids = token_ids()
    with torch.no_grad(), float64():
        expected = model(ids).logits
        found = orbit(ids).logits
        other_base = orbit_of_llama(model, sizes, rotary_base=60.0)(ids).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert (other_base - expected).abs().max() > 1e-3


def test_rotary_with_a_qk_norm_and_qwen3s_weights_is_qwen3():
    sizes = {**SIZES, "intermediate_size": 32, "max_position_embeddings": 64}
    rope = {"rope_type": "default", "rope_theta": 50.0}
    with float64():
        config = transformers.Qwen3Config(
            **sizes, num_key_value_heads=4, head_dim=6, rope_parameters=rope
        )
        model = spread(transformers.Qwen3ForCausalLM(config))
    ids = token_ids()
    with torch.no_grad(), float64():
        expected = model(ids).logits
        found = orbit_of_llama(model, sizes, qk_norm=True)(ids).logits
        without = orbit_of_llama(model, sizes)(ids).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert (without - expected).abs().max() > 1e-3


def orbit_of_llama(source, sizes, **switches):
    config = OrbitConfig(
        **sizes,
        **{
            "position": "rotary",
            "rotary_base": 50.0,
            "norm_kind": "rms",
            "layer_norm_eps": source.config.rms_norm_eps,
            "activation": "swiglu",
            **switches,
        },
    )
    orbit = OrbitForCausalLM(config).double().eval()
    body = source.model
    parts = {
        "model.embed_tokens": (body.embed_tokens.weight, None),
        "model.norm": (body.norm.weight, None),
        "lm_head": (source.lm_head.weight, None),
    }
    for number, layer in enumerate(body.layers):
        place, attention = f"model.layers.{number}", layer.self_attn
        fused = torch.cat(
            [p.weight for p in (attention.q_proj, attention.k_proj, attention.v_proj)]
        )
        parts |= {
            f"{place}.attn_norm": (layer.input_layernorm.weight, None),
            f"{place}.self_attn.qkv_proj": (fused, None),
            f"{place}.self_attn.o_proj": (attention.o_proj.weight, None),
            f"{place}.mlp_norm": (layer.post_attention_layernorm.weight, None),
            f"{place}.mlp.gate_proj": (layer.mlp.gate_proj.weight, None),
            f"{place}.mlp.up_proj": (layer.mlp.up_proj.weight, None),
            f"{place}.mlp.down_proj": (layer.mlp.down_proj.weight, None),
        }
        for name in ("q_norm", "k_norm") if config.qk_norm else ():
            parts[f"{place}.self_attn.{name}"] = (getattr(attention, name).weight, None)
    copy(orbit, **parts)
    return orbit


def check_partial_rotary(source, share):
    """One attention layer of GPT-NeoX, which turns the first part of each head."""
    attention = source.gpt_neox.layers[0].attention
    config = OrbitConfig(
        **SIZES,
        position="rotary",
        rotary_base=50.0,
        rotary_fraction=share,
        norm="none",
        mlp=False,
        bias=True,
    )
    config.num_hidden_layers = 1
    model = OrbitModel(config).double().eval()
    fused = attention.query_key_value
    by_head = fused.weight.unflatten(0, (4, 3, 6)).transpose(0, 1).flatten(0, 2)
    bias = fused.bias.unflatten(0, (4, 3, 6)).transpose(0, 1).flatten()
    attn = model.layers[0].self_attn
    copy(attn, qkv_proj=(by_head, bias), o_proj=(attention.dense.weight, attention.dense.bias))
    x = torch.randn(2, 11, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    with torch.no_grad(), float64():
        found = model(inputs_embeds=x).last_hidden_state - x
        mask = torch.full((11, 11), torch.finfo(torch.float64).min).triu(1)[None, None]
        angles = source.gpt_neox.rotary_emb(x, torch.arange(11)[None])
        expected = attention(x, attention_mask=mask, position_embeddings=angles)[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("n_heads", [4, 6])
def test_alibi_with_blooms_weights_is_bloom(n_heads):
    config = transformers.BloomConfig(hidden_size=24, n_head=n_heads, n_layer=3, vocab_size=40)
    source = spread(transformers.BloomForCausalLM(config))
    ids = token_ids()
    with torch.no_grad(), float64():
        embedded = source.transformer.word_embeddings_layernorm(
            source.transformer.word_embeddings(ids)
        )
        expected = source.transformer(ids).last_hidden_state
        found = orbit_of_bloom(source, n_heads)(inputs_embeds=embedded).last_hidden_state
        without = orbit_of_bloom(source, n_heads, position="none")(inputs_embeds=embedded)
    # BLOOM's GELU has sqrt(2/pi) to eight digits.
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)
    assert (without.last_hidden_state - expected).abs().max() > 1e-2


def orbit_of_bloom(source, n_heads, **switches):
    sizes = {**SIZES, "num_attention_heads": n_heads}
    config = OrbitConfig(**sizes, **{"position": "alibi", "bias": True, **switches})
    model = OrbitModel(config).double().eval()
    parts = {
        "embed_tokens": (source.transformer.word_embeddings.weight, None),
        "norm": (source.transformer.ln_f.weight, source.transformer.ln_f.bias),
    }
    shape = (n_heads, 3, 24 // n_heads)
    for number, block in enumerate(source.transformer.h):
        place, attention, mlp = f"layers.{number}", block.self_attention, block.mlp
        fused = attention.query_key_value
        weight = fused.weight.unflatten(0, shape).transpose(0, 1).flatten(0, 2)
        bias = fused.bias.unflatten(0, shape).transpose(0, 1).flatten()
        parts |= {
            f"{place}.attn_norm": (block.input_layernorm.weight, block.input_layernorm.bias),
            f"{place}.self_attn.qkv_proj": (weight, bias),
            f"{place}.self_attn.o_proj": (attention.dense.weight, attention.dense.bias),
            f"{place}.mlp_norm": (
                block.post_attention_layernorm.weight,
                block.post_attention_layernorm.bias,
            ),
            f"{place}.mlp.up_proj": (mlp.dense_h_to_4h.weight, mlp.dense_h_to_4h.bias),
            f"{place}.mlp.down_proj": (mlp.dense_4h_to_h.weight, mlp.dense_4h_to_h.bias),
        }
    copy(model, **parts)
    return model


@pytest.mark.parametrize("causal", [True, False])
def test_t5_bias_is_t5s_own(causal):
    config = transformers.T5Config(
        d_model=24, d_kv=6, num_heads=4, relative_attention_num_buckets=8, is_decoder=causal
    )
    config.relative_attention_max_distance = 13
    from transformers.models.t5.modeling_t5 import T5Attention

    attention = spread(T5Attention(config, has_relative_attention_bias=True, layer_idx=0))
    ids = torch.arange(40)[None]
    with torch.no_grad():
        expected = attention.compute_bias(40, 40)
        table = attention.relative_attention_bias.weight
        found = t5_bias(ids, ids, table, max_distance=13, causal=causal)
        other = t5_bias(ids, ids, table, max_distance=20, causal=causal)
    visible = torch.ones(40, 40).tril().bool() if causal else torch.ones(40, 40).bool()
    assert torch.equal(found[..., visible], expected[..., visible])
    assert not torch.equal(other[..., visible], expected[..., visible])
