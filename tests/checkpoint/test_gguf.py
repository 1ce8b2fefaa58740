"""GGUF files: every type, every architecture against Hugging Face weights, and broken files.

Files are written here from weights in Hugging Face layout the way llama.cpp's converter does it
(`to_gguf`). Where transformers can read GGUF itself it is the judge of that writing: the model it
makes of the file is saved, read as a folder, and compared with the file read directly.
"""

import functools
import hashlib
import math
import struct
import subprocess
import sys
from dataclasses import dataclass, field, replace

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitlens.checkpoint.build import build_architecture
from orbitlens.checkpoint.gguf_config import config_of_gguf
from orbitlens.checkpoint.gguf_file import GgufSource
from orbitlens.checkpoint.gguf_header import LARGEST_HEADER
from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.checkpoint.stored_file import DiskFile
from orbitlens.errors import CheckpointError, UnknownFamilyError
from orbitlens.families.architecture import Pairing
from orbitlens.families.gguf import share_of
from orbitlens.families.registry import GGUF_ARCHITECTURES
from orbitlens.heads.attention import attention_output, attention_pattern
from orbitlens.heads.layers import load_layer, position_table

N_TOKENS = 9
THETA = 50.0  # a small base: every plane turns visibly within a few tokens


# --- writing files ---------------------------------------------------------------------------


def write_gguf(path, architecture, metadata, tensors, kinds=None):
    """Write a GGUF file; keys without a dot at their start are the architecture's own."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        name = key.removeprefix(".") if key.startswith(".") else f"{architecture}.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    for name, value in tensors.items():
        kind = (kinds or {}).get(name)
        writer.add_tensor(name, value, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def small_file(path, **metadata):
    """Write the smallest file that is a model: one Llama layer."""
    given_keys = {
        "block_count": 1,
        "context_length": 16,
        "embedding_length": 8,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": 4,
        ".tokenizer.ggml.tokens": ["a", "b", "c"],
        ".tokenizer.ggml.scores": [0.0, 1.0, 2.0],
    }
    shapes = {"attn_q": (8, 8), "attn_k": (4, 8), "attn_v": (4, 8), "attn_output": (8, 8)}
    random = np.random.default_rng(0)
    tensors = {f"blk.0.{n}.weight": random.normal(size=s) for n, s in shapes.items()}
    tensors["blk.0.attn_norm.weight"] = np.ones(8)
    tensors = {name: value.astype(np.float32) for name, value in tensors.items()}
    return write_gguf(path, "llama", given_keys | metadata, tensors)


@pytest.fixture(scope="module")
def small_bytes(tmp_path_factory):
    return small_file(tmp_path_factory.mktemp("small") / "small.gguf").read_bytes()


# --- types -----------------------------------------------------------------------------------

PLAIN = [Kind.F32, Kind.F16, Kind.BF16, Kind.F64]
QUANTISED = sorted(gguf.quants._type_traits, key=lambda kind: kind.value)
# Where in a block a float16 scale lies; random bytes there could be an infinity or a NaN.
HALF_SCALES = {
    Kind.Q2_K: (80, 82), Kind.Q3_K: (108,), Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2),
    Kind.Q6_K: (208,), Kind.TQ1_0: (52,), Kind.TQ2_0: (64,), Kind.IQ2_XXS: (0,),
    Kind.IQ2_XS: (0,), Kind.IQ2_S: (0,), Kind.IQ3_XXS: (0,), Kind.IQ3_S: (0,), Kind.IQ1_S: (0,),
    Kind.IQ4_NL: (0,), Kind.IQ4_XS: (0,), Kind.MXFP4: (), Kind.NVFP4: (), Kind.IQ1_M: (),
}  # fmt: skip


def stored_rows(kind, n_rows, n_blocks, random):
    """Return rows of blocks: quantised numbers where gguf can quantise, else random bytes."""
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    try:
        values = random.normal(size=(n_rows, n_blocks * block)).astype(np.float32)
        return gguf.quants.quantize(values, kind)
    except NotImplementedError:
        blocks = random.integers(0, 256, size=(n_rows, n_blocks, block_bytes), dtype=np.uint8)
        for place in HALF_SCALES[kind]:
            scale = random.normal(size=(n_rows, n_blocks, 1)).astype("<f2")
            blocks[..., place : place + 2] = scale.view(np.uint8)
        if kind is Kind.IQ1_M:  # its scale is spread over the top four bits of four places
            blocks[..., 55] = blocks[..., 55] & 0x0F | 0x30
        return blocks.reshape(n_rows, -1)


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_every_type_is_dequantised_as_gguf_does_it(kind, tmp_path):
    raw = stored_rows(kind, n_rows=5, n_blocks=3, random=np.random.default_rng(kind.value))
    path = write_gguf(tmp_path / "t.gguf", "llama", {}, {"x": raw}, {"x": kind})
    source = GgufSource(DiskFile(path))
    expected = gguf.quants.dequantize(raw, kind)
    assert source.tensors["x"].shape == expected.shape
    assert source.tensors["x"].dtype == kind.name
    assert source.tensors["x"].n_bytes == raw.nbytes
    value = source.read("x")
    assert value.dtype == torch.float32
    assert np.isfinite(expected).all()
    assert np.ptp(expected) > 0
    np.testing.assert_array_equal(value.numpy(), expected)


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.name)
def test_plain_floats_come_back_as_they_are(kind, tmp_path):
    values = np.random.default_rng(0).integers(-127, 128, size=(3, 4, 5)) / 64.0
    raw = {
        Kind.F64: lambda: values,
        Kind.F32: lambda: values.astype(np.float32),
        Kind.F16: lambda: values.astype(np.float16),
        Kind.BF16: lambda: gguf.quants.quantize(values.astype(np.float32), Kind.BF16),
    }[kind]()
    source = GgufSource(
        DiskFile(write_gguf(tmp_path / "t.gguf", "llama", {}, {"x": raw}, {"x": kind}))
    )
    value = source.read("x")
    assert value.dtype == (torch.float64 if kind is Kind.F64 else torch.float32)
    np.testing.assert_array_equal(value.numpy(), values)


def test_types_that_gguf_cannot_dequantise_are_named(tmp_path):
    tensors = {"x": np.arange(6, dtype=np.int32), "y": np.ones(3, dtype=np.float32)}
    source = GgufSource(DiskFile(write_gguf(tmp_path / "t.gguf", "llama", {}, tensors)))
    with pytest.raises(CheckpointError, match=r"tensor 'x' is stored as I32.*Q8_0"):
        source.read("x")
    assert source.read("y").tolist() == [1.0, 1.0, 1.0]


def test_a_weight_is_multiplied_by_the_factor_beside_it(tmp_path):
    tensors = {"a.weight": np.ones((2, 3), np.float32), "a.scale": np.array([2.5], np.float32)}
    tensors |= {"b.weight": np.ones(3, np.float32), "b.scale": np.ones(3, np.float32)}
    source = GgufSource(DiskFile(write_gguf(tmp_path / "t.gguf", "llama", {}, tensors)))
    assert source.read("a.weight").unique().tolist() == [2.5]
    assert source.read("a.scale").tolist() == [2.5]
    with pytest.raises(CheckpointError, match=r"'b\.scale' .* expected one number"):
        source.read("b.weight")


def test_shapes_names_and_settings_equal_what_gguf_itself_reads(tmp_path):
    path = small_file(tmp_path / "small.gguf", **{"some.list": [1, 2, 3], "some.flag": True})
    source, reader = GgufSource(DiskFile(path)), gguf.GGUFReader(path)
    assert list(source.tensors) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        assert source.tensors[tensor.name].shape == tuple(reversed(tensor.shape.tolist()))
        np.testing.assert_array_equal(source.read(tensor.name).numpy(), tensor.data)
    kept = {key: value for key, value in source.metadata.items() if value is not None}
    assert set(reader.fields) - set(kept) == {
        "GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "tokenizer.ggml.tokens",
    }  # fmt: skip
    for key, value in kept.items():
        expected = reader.fields[key].contents()
        inexact = isinstance(expected, float)  # a float32, as the decimal it stands for
        assert np.float32(value) == expected if inexact else value == expected


def test_the_header_hash_covers_everything_before_the_data(tmp_path):
    path = small_file(tmp_path / "small.gguf")
    start = gguf.GGUFReader(path).data_offset
    expected = hashlib.sha256(path.read_bytes()[:start]).hexdigest()
    assert GgufSource(DiskFile(path)).header_sha256 == {"small.gguf": expected}


# --- architectures ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One tiny model, and what the converter writes of it beside the common keys."""

    name: str
    architecture: str
    model: str  # class in transformers
    config: dict
    metadata: dict = field(default_factory=dict)
    permuted: bool = False  # q and k rows reordered so that neighbours turn together
    groups: int | None = None  # fused weights in so many groups of (queries, key, value)
    fuse: bool = False  # q, k and v joined in one tensor
    loader: bool = False  # transformers reads this architecture from GGUF
    stacks: tuple[str, ...] = ("only",)
    config_class: str | None = None
    atol: float = 1e-9


def rope(kind="default", **parameters):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": THETA, **parameters}}


SMALL = {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 40}
LLAMA = {**SMALL, "intermediate_size": 32, "max_position_embeddings": 64}
GPT2 = {"n_embd": 24, "n_head": 4, "n_layer": 2, "vocab_size": 40, "n_positions": 32}
T5 = {
    "d_model": 24, "d_kv": 5, "d_ff": 32, "num_heads": 4, "num_layers": 2, "num_decoder_layers": 2,
    "vocab_size": 40, "relative_attention_num_buckets": 8, "decoder_start_token_id": 0,
    "feed_forward_proj": "gated-gelu",
}  # fmt: skip
FREQ = {"rope.freq_base": THETA}
HYBRID = {
    "shortconv.l_cache": 3,
    "attention.layer_norm_rms_epsilon": 1e-5,
    ".tokenizer.ggml.tokens": [f"token {i}" for i in range(40)],
}
LLAMA3 = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 24,
}  # fmt: skip
LONG = {"short_factor": [1.0, 1.5, 2.0], "long_factor": [2.0, 4.0, 8.0]}

CASES = [
    # What transformers reads from GGUF itself.
    Case(
        "llama-grouped",
        "llama",
        "LlamaForCausalLM",
        {**LLAMA, "num_key_value_heads": 2, **rope()},
        {**FREQ, "rope.dimension_count": 6},
        permuted=True,
        loader=True,
    ),
    Case(
        "qwen2-bias",
        "qwen2",
        "Qwen2ForCausalLM",
        {**LLAMA, "num_key_value_heads": 2, **rope()},
        FREQ,
        loader=True,
    ),
    Case(
        "qwen3-default-width",
        "qwen3",
        "Qwen3ForCausalLM",
        {**LLAMA, "num_key_value_heads": 2, "head_dim": 128, **rope()},
        {**FREQ, "attention.key_length": 128, "attention.value_length": 128},
        loader=True,
    ),
    Case(
        "gemma2",
        "gemma2",
        "Gemma2ForCausalLM",
        {**LLAMA, "num_key_value_heads": 2, "head_dim": 256, "sliding_window": 4, **rope()},
        {
            **FREQ,
            "attention.key_length": 256,
            "attention.value_length": 256,
            "attention.sliding_window": 4,
            "attn_logit_softcapping": 50.0,
        },
        loader=True,
    ),
    Case(
        "gemma3",
        "gemma3",
        "Gemma3ForCausalLM",
        {
            **LLAMA,
            "num_hidden_layers": 6,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "sliding_window": 4,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": THETA},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
        {
            **FREQ,
            "attention.key_length": 256,
            "attention.value_length": 256,
            "attention.sliding_window": 4,
        },
        loader=True,
        config_class="Gemma3TextConfig",
    ),
    Case(
        "gpt2",
        "gpt2",
        "GPT2LMHeadModel",
        {**GPT2, "n_positions": 1024},
        {".tokenizer.ggml.tokens": [f"token {i}" for i in range(40)]},
        loader=True,
    ),
    Case(
        "bloom-6-heads",
        "bloom",
        "BloomForCausalLM",
        {"hidden_size": 24, "n_head": 6, "n_layer": 2, "vocab_size": 40},
        groups=6,
        loader=True,
    ),
    Case("falcon-multi-query", "falcon", "FalconForCausalLM", SMALL, groups=1, loader=True),
    Case(
        "phi3",
        "phi3",
        "Phi3ForCausalLM",
        {**LLAMA, "num_key_value_heads": 2, "pad_token_id": 0, **rope()},
        {
            **FREQ,
            "rope.dimension_count": 6,
            "attention.sliding_window": 0,
            ".tokenizer.ggml.padding_token_id": 0,
        },
        loader=True,
    ),
    Case(
        "stablelm-bias",
        "stablelm",
        "StableLmForCausalLM",
        {**LLAMA, "num_attention_heads": 3, "num_key_value_heads": 3, "use_qkv_bias": True},
        {"rope.dimension_count": 2, "use_parallel_residual": False},
        loader=True,
    ),
    Case(
        "t5",
        "t5",
        "T5ForConditionalGeneration",
        T5,
        {
            "attention.key_length": 5,
            "attention.value_length": 5,
            "attention.relative_buckets_count": 8,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "decoder_start_token_id": 0,
        },
        loader=True,
        stacks=("encoder", "decoder"),
    ),
    # What it does not, or not in this form: compared with the weights the file was written from.
    Case(
        "llama-wide-bias-llama3",
        "llama",
        "LlamaForCausalLM",
        {**LLAMA, "head_dim": 16, "attention_bias": True, **rope("llama3", **LLAMA3)},
        {
            **FREQ,
            "rope.dimension_count": 16,
            "attention.key_length": 16,
            "attention.value_length": 16,
        },
        permuted=True,
        atol=1e-5,  # the converter rounds the scaled frequencies to float32
    ),
    Case(
        "llama-linear",
        "llama",
        "LlamaForCausalLM",
        {**LLAMA, **rope("linear", factor=3.0)},
        {**FREQ, "rope.scaling.type": "linear", "rope.scaling.factor": 3.0},
        permuted=True,
    ),
    Case(
        "llama-old-linear",
        "llama",
        "LlamaForCausalLM",
        {**LLAMA, **rope("linear", factor=3.0)},
        {**FREQ, "rope.scale_linear": 3.0},
        permuted=True,
    ),
    Case(
        "llama-fused",
        "llama",
        "LlamaForCausalLM",
        {**LLAMA, "num_key_value_heads": 2, **rope()},
        FREQ,
        permuted=True,
        fuse=True,
    ),
    Case(
        "qwen2-yarn",
        "qwen2",
        "Qwen2ForCausalLM",
        {
            **LLAMA,
            "num_key_value_heads": 2,
            **rope(
                "yarn",
                factor=4.0,
                original_max_position_embeddings=16,
                beta_fast=4.0,
                beta_slow=0.5,
                attention_factor=1.25,
            ),
        },
        {
            **FREQ,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 16,
            "rope.scaling.yarn_beta_fast": 4.0,
            "rope.scaling.yarn_beta_slow": 0.5,
            "rope.scaling.yarn_attn_factor": 1.25,
        },
    ),
    Case(
        "qwen3",
        "qwen3",
        "Qwen3ForCausalLM",
        {**LLAMA, "num_key_value_heads": 2, "head_dim": 8, **rope()},
        {**FREQ, "attention.key_length": 8, "attention.value_length": 8},
    ),
    Case(
        "gemma",
        "gemma",
        "GemmaForCausalLM",
        {**LLAMA, "num_key_value_heads": 1, "head_dim": 8},
        {"attention.key_length": 8, "attention.value_length": 8},
    ),
    Case(
        "gemma2-27b-scale",
        "gemma2",
        "Gemma2ForCausalLM",
        {
            **LLAMA,
            "num_hidden_layers": 46,
            "num_key_value_heads": 2,
            "head_dim": 4,
            "query_pre_attn_scalar": 6,
            "attn_logit_softcapping": 1.5,
            "sliding_window": 4,
            **rope(),
        },
        {
            **FREQ,
            "attention.key_length": 4,
            "attention.value_length": 4,
            "attention.sliding_window": 4,
            "attn_logit_softcapping": 1.5,
        },
    ),
    Case(
        "gemma3-linear",
        "gemma3",
        "Gemma3ForCausalLM",
        {
            **LLAMA,
            "num_hidden_layers": 6,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "sliding_window": 4,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 90.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
            },
        },
        {
            "attention.key_length": 8,
            "attention.value_length": 8,
            "attention.sliding_window": 4,
            "rope.freq_base": 90.0,
            "rope.freq_base_swa": 20.0,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 2.0,
        },
        config_class="Gemma3TextConfig",
    ),
    Case(
        "gptneox",
        "gptneox",
        "GPTNeoXForCausalLM",
        {**LLAMA, **rope(partial_rotary_factor=0.67)},
        {**FREQ, "rope.dimension_count": 4, "use_parallel_residual": True},
        groups=4,
    ),
    Case("gptj", "gptj", "GPTJForCausalLM", {**GPT2, "rotary_dim": 4}, {"rope.dimension_count": 4}),
    Case(
        "falcon-new",
        "falcon",
        "FalconForCausalLM",
        {**SMALL, "new_decoder_architecture": True, "num_kv_heads": 2, **rope()},
        FREQ,
        groups=2,
    ),
    Case(
        "mpt-clip",
        "mpt",
        "MptForCausalLM",
        {
            "d_model": 24,
            "n_heads": 6,
            "n_layers": 2,
            "vocab_size": 40,
            "max_seq_len": 32,
            "attn_config": {"clip_qkv": 0.75, "alibi_bias_max": 6},
        },
        {"attention.clamp_kqv": 0.75, "attention.max_alibi_bias": 6.0},
    ),
    Case(
        "phi2",
        "phi2",
        "PhiForCausalLM",
        {**LLAMA, **rope(partial_rotary_factor=0.67)},
        {**FREQ, "rope.dimension_count": 4},
    ),
    Case(
        "phi2-fused",
        "phi2",
        "PhiForCausalLM",
        {**LLAMA, **rope(partial_rotary_factor=0.67)},
        {**FREQ, "rope.dimension_count": 4},
        fuse=True,
    ),
    Case(
        "phi3-longrope-window",
        "phi3",
        "Phi3ForCausalLM",
        {
            **LLAMA,
            "pad_token_id": 0,
            "sliding_window": 5,
            "max_position_embeddings": 256,
            "original_max_position_embeddings": 4,
            **rope("longrope", **LONG),
        },
        {
            **FREQ,
            "rope.dimension_count": 6,
            "rope.scaling.original_context_length": 4,
            "rope.scaling.attn_factor": 2.0,  # sqrt(1 + log(256 / 4) / log(4))
            "attention.sliding_window": 5,
        },
    ),
    Case(
        "olmo-clip",
        "olmo",
        "OlmoForCausalLM",
        {**LLAMA, "clip_qkv": 0.75, **rope()},
        {**FREQ, "attention.clamp_kqv": 0.75, "attention.layer_norm_epsilon": 1e-5},
        permuted=True,
    ),
    Case(
        "olmo2",
        "olmo2",
        "Olmo2ForCausalLM",
        {**LLAMA, "num_key_value_heads": 2, **rope()},
        FREQ,
    ),
    Case(
        "stablelm-qk-norm",
        "stablelm",
        "StableLmForCausalLM",
        {
            **LLAMA,
            "qk_layernorm": True,
            "num_key_value_heads": 2,
            "use_parallel_residual": True,
            **rope(partial_rotary_factor=0.67),
        },
        {**FREQ, "rope.dimension_count": 4, "use_parallel_residual": True},
    ),
    Case(
        "lfm2",
        "lfm2",
        "Lfm2ForCausalLM",
        {
            **LLAMA,
            "num_key_value_heads": 2,
            "full_attn_idxs": [1],
            "block_auto_adjust_ff_dim": False,
            **rope(),
        },
        {**FREQ, **HYBRID, "attention.head_count_kv": [0, 2]},
        loader=True,
    ),
    Case(
        "lfm2moe",
        "lfm2moe",
        "Lfm2MoeForCausalLM",
        {**LLAMA, "num_key_value_heads": 2, "layer_types": ["full_attention", "conv"], **rope()},
        {**FREQ, **HYBRID, "attention.head_count_kv": [2, 0]},
    ),
    Case("bert", "bert", "BertModel", {**LLAMA, "type_vocab_size": 2}, {"attention.causal": False}),
    Case("roberta", "bert", "RobertaModel", {**LLAMA, "type_vocab_size": 2, "pad_token_id": 1}),
]
BY_NAME = {case.name: case for case in CASES}


def build(case):
    """Return a model in float32 whose weights are spread and lie on a grid.

    On the grid, Gemma's gain + 1 is exact in float32, so that files can be compared exactly.
    """
    import transformers

    model_class = getattr(transformers, case.model)
    config_class = getattr(transformers, case.config_class or model_class.config_class.__name__)
    model = model_class(config_class(**case.config)).float().eval()
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        noise = 0.3 * torch.randn(parameter.shape, generator=generator)
        is_gain = parameter.ndim == 1 and name.endswith("weight")
        parameter.data = ((1.0 + noise if is_gain else noise) * 1024).round() / 1024
    return model


def to_gguf(case, model, path):
    """Write a model as llama.cpp's converter does."""
    tensors = {
        name: np.ascontiguousarray(value.numpy())
        for hf_name, tensor in model.state_dict().items()
        for name, value in converted(case, model.config, hf_name, tensor)
    }
    for name in tensors:
        if "shortconv.conv" in name:
            tensors[name] = tensors[name].squeeze(1)
    if case.fuse:
        fuse(tensors, model.config.num_hidden_layers)
    if "qk_layernorm" in case.config:
        stack_head_norms(tensors, model.config)
    tensors |= rotary_factors(case, model.config)
    return write_gguf(
        path, case.architecture, common_metadata(model.config) | case.metadata, tensors
    )


def common_metadata(config):
    get = {**config.to_dict(), **config.attribute_map}
    heads = config.num_attention_heads
    n_kv = get.get("num_key_value_heads") or get.get("num_kv_heads") or heads
    if get.get("multi_query") and not get.get("new_decoder_architecture"):
        n_kv = 1
    metadata = {
        "block_count": config.num_hidden_layers,
        "context_length": getattr(config, "max_position_embeddings", 64),
        "embedding_length": config.hidden_size,
        "feed_forward_length": get.get("intermediate_size")
        or get.get("d_ff")
        or 4 * config.hidden_size,
        "attention.head_count": heads,
        "attention.head_count_kv": n_kv,
        "vocab_size": config.vocab_size,
    }
    rms = getattr(config, "rms_norm_eps", None)
    plain = next((e for e in map(get.get, ("layer_norm_eps", "layer_norm_epsilon")) if e), None)
    if rms is not None:
        metadata["attention.layer_norm_rms_epsilon"] = rms
    if isinstance(plain, float):
        metadata["attention.layer_norm_epsilon"] = plain
    return metadata


def converted(case, config, hf_name, tensor):
    """Yield what becomes of one tensor: its name in GGUF, and its value as stored."""
    names = name_map(case.architecture, config.num_hidden_layers)
    plain = hf_name
    for prefix in (
        ("bert.", "roberta.", "transformer.") if case.architecture in ("bloom", "bert") else ()
    ):
        plain = plain.removeprefix(prefix)
    name = names.get_name(plain, try_suffixes=(".weight", ".bias"))
    if ".norms." in hf_name:  # StableLM's norms of single heads, stacked later
        yield hf_name, tensor
    if name is None:
        return
    n_kv = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    if case.permuted and ".attn_q." in name:
        tensor = neighbours(tensor, config.num_attention_heads)
    if case.permuted and ".attn_k." in name:
        tensor = neighbours(tensor, n_kv)
    if case.groups and ".attn_qkv." in name:
        tensor = blocks(tensor, config.num_attention_heads, case.groups)
    if case.architecture == "gpt2" and "c_" in hf_name and tensor.ndim == 2:
        tensor = tensor.T
    if case.architecture.startswith("gemma") and hf_name.endswith("norm.weight"):
        tensor = tensor + 1
    if case.name == "roberta" and name == "position_embd.weight":
        tensor = tensor[config.pad_token_id + 1 :]
    yield name, tensor


@functools.cache
def name_map(architecture, n_layers):
    number = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == architecture)
    return gguf.get_tensor_name_map(number, n_layers)


def neighbours(weight, n_heads):
    """Reorder each head's rows: what was at k and k + d/2 comes to 2k and 2k + 1."""
    d_head = weight.shape[0] // n_heads
    order = torch.arange(d_head).reshape(2, d_head // 2).T.flatten()
    return weight.unflatten(0, (n_heads, d_head))[:, order].flatten(0, 1)


def blocks(fused, n_heads, n_groups):
    """Reorder groups of (queries, key, value) to all queries, all keys, all values."""
    per_group = n_heads // n_groups
    grouped = fused.unflatten(0, (n_groups, per_group + 2, -1))
    parts = (
        grouped[:, :per_group],
        grouped[:, per_group : per_group + 1],
        grouped[:, per_group + 1 :],
    )
    return torch.cat([part.flatten(0, 2) for part in parts])


def fuse(tensors, n_layers):
    for layer in range(n_layers):
        for end in ("weight", "bias"):
            names = [f"blk.{layer}.attn_{role}.{end}" for role in "qkv"]
            if names[0] in tensors:
                parts = [tensors.pop(name) for name in names]
                tensors[f"blk.{layer}.attn_qkv.{end}"] = np.concatenate(parts)


def stack_head_norms(tensors, config):
    for layer in range(config.num_hidden_layers):
        for role, count in (("q", config.num_attention_heads), ("k", config.num_key_value_heads)):
            place = f"model.layers.{layer}.self_attn.{role}_layernorm.norms"
            rows = [tensors.pop(f"{place}.{head}.weight") for head in range(count)]
            tensors[f"blk.{layer}.attn_{role}_norm.weight"] = np.stack(rows)


def rotary_factors(case, config):
    parameters = case.config.get("rope_parameters", {})
    if parameters.get("rope_type") == "longrope":
        names = {"rope_factors_long": "long_factor", "rope_factors_short": "short_factor"}
        return {f"{n}.weight": np.array(parameters[k], np.float32) for n, k in names.items()}
    if parameters.get("rope_type") != "llama3":
        return {}
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = THETA ** -(torch.arange(0, config.head_dim, 2) / config.head_dim)
    return {"rope_freqs.weight": (plain / scaled).numpy()}


def loaded_by_transformers(case, path):
    """Return the model that transformers makes of a GGUF file."""
    import transformers

    model_class = getattr(transformers, case.model)
    loaded = model_class.from_pretrained(path.parent, gguf_file=path.name)
    # A model read from GGUF refuses to be saved; one with the same config and weights does not.
    loaded.config.__dict__.pop("quantization_config", None)
    plain = model_class(loaded.config)
    plain.load_state_dict(loaded.state_dict())
    return plain


def same_attention(case, from_file, from_folder):
    """Return whether both checkpoints attend alike, in every layer and at every position."""
    worst = 0.0
    for name in case.stacks:
        stack = None if name == "only" else name
        layers = from_folder.stack(stack).n_layers
        assert from_file.stack(stack).n_layers == layers
        for index in range(layers):
            one, two = (load_layer(c, index, stack=stack) for c in (from_file, from_folder))
            generator = torch.Generator().manual_seed(index)
            x = torch.randn(N_TOKENS, one.stack.d_model, generator=generator, dtype=torch.float64)
            x, y = one.normalise(x), two.normalise(x)
            pairs = [(attention_pattern(one, x), attention_pattern(two, y))]
            pairs.append((attention_output(one, x), attention_output(two, y)))
            if two.output_gain is not None:
                pairs.append((one.output_gain, two.output_gain))
            assert one.spec.window == two.spec.window
            assert one.stack.parallel == two.stack.parallel
            worst = max(worst, *((a - b).abs().max().item() for a, b in pairs))
    return worst < case.atol


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return a function from a case's name to its GGUF file and its folder, each made once."""
    made = {}

    def get(name):
        if name not in made:
            case, folder = BY_NAME[name], tmp_path_factory.mktemp(name)
            model = build(case)
            path = to_gguf(case, model, folder / "model.gguf")
            if case.loader:
                model = loaded_by_transformers(case, path)
            model.save_pretrained(folder / "hf")
            made[name] = path, folder / "hf"
        return made[name]

    return get


@pytest.mark.parametrize("name", BY_NAME)
def test_attention_from_a_gguf_file_is_that_of_the_hugging_face_model(name, written):
    path, folder = written(name)
    assert same_attention(BY_NAME[name], load_checkpoint(path), load_checkpoint(folder))


def changed(checkpoint, **overrides):
    """Return a checkpoint read as if the file were stored in another way."""
    config = {**checkpoint.config, "_gguf": {**checkpoint.config["_gguf"], **overrides}}
    architecture = build_architecture(config, checkpoint.source, checkpoint.path)
    return replace(checkpoint, architecture=architecture, config=config)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("llama-grouped", "pairing", "halves"),
        ("llama-wide-bias-llama3", "pairing", "halves"),
        ("llama-wide-bias-llama3", "frequency_divisors", None),
        ("olmo-clip", "pairing", "halves"),
        ("gptj", "pairing", "halves"),
        ("qwen2-bias", "pairing", "neighbours"),
        ("gptneox", "pairing", "neighbours"),
        ("falcon-new", "pairing", "neighbours"),
        ("stablelm-bias", "norm_gain_offset", 1.0),
        ("gemma2", "norm_gain_offset", 1.0),
        ("gemma3", "norm_gain_offset", 1.0),
        ("bloom-6-heads", "fused_order", "groups"),
        ("falcon-new", "fused_order", "groups"),
        ("gptneox", "fused_order", "groups"),
        ("phi3", "fused_order", "groups"),
    ],
)
def test_reading_the_storage_wrongly_would_show(name, key, value, written):
    path, folder = written(name)
    wrong = changed(load_checkpoint(path), **{key: value})
    assert not same_attention(BY_NAME[name], wrong, load_checkpoint(folder))


@pytest.mark.parametrize("name", ["gpt2", "bert", "roberta"])
def test_the_table_of_positions_is_that_of_the_hugging_face_model(name, written):
    tables = [position_table(load_checkpoint(path)) for path in written(name)]
    assert torch.equal(*tables)


def test_every_architecture_of_the_table_has_a_case():
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    assert set(GGUF_ARCHITECTURES) - {case.architecture for case in CASES} == {"t5encoder"}
    judged = {case.architecture for case in CASES if case.loader}
    assert set(GGUF_ARCHITECTURES) & set(GGUF_SUPPORTED_ARCHITECTURES) == judged


def test_an_encoder_alone_is_one_stack(written, tmp_path):
    whole = GgufSource(DiskFile(written("t5")[0]))
    keys = {f".{k}": v for k, v in whole.metadata.items() if not k.startswith("general.")}
    keys = {k.replace(".t5.", ".t5encoder."): v for k, v in keys.items()}
    tensors = {n: whole.read(n).numpy() for n in whole.tensors if n.startswith("enc.")}
    path = write_gguf(tmp_path / "encoder.gguf", "t5encoder", keys, tensors)
    alone, both = load_checkpoint(path), load_checkpoint(written("t5")[0])
    assert [stack.name for stack in alone.architecture.stacks] == ["encoder"]
    assert same_attention(replace(BY_NAME["t5"], stacks=("encoder",)), alone, both)


def test_quantised_weights_are_close_and_flagged(tmp_path):
    config = {**LLAMA, "hidden_size": 64, **rope()}
    case = Case("wide", "llama", "LlamaForCausalLM", config, FREQ, permuted=True)
    exact = load_checkpoint(to_gguf(case, build(case), tmp_path / "exact.gguf"))
    tensors = {name: exact.read(name).numpy() for name in exact.source.tensors}
    kinds = {name: Kind.Q8_0 for name, value in tensors.items() if value.ndim == 2}
    tensors |= {name: gguf.quants.quantize(tensors[name], kind) for name, kind in kinds.items()}
    keys = {f".{k}": v for k, v in exact.source.metadata.items() if k != "general.architecture"}
    path = write_gguf(tmp_path / "q8.gguf", "llama", keys, tensors, kinds)
    rounded = load_checkpoint(path)
    for role in ("w_q", "w_k", "w_v", "w_o"):
        one, two = (getattr(load_layer(checkpoint, 1), role) for checkpoint in (exact, rounded))
        assert 1e-4 < (one - two).norm() / one.norm() < 1e-2
    assert any("quantised (Q8_0)" in flag for flag in rounded.architecture.flags)
    assert not exact.architecture.flags


# --- metadata --------------------------------------------------------------------------------


def config_of(path, **metadata):
    return config_of_gguf(GgufSource(DiskFile(small_file(path / "small.gguf", **metadata))))


def test_a_plain_llama_gives_the_config_hugging_face_would_have(tmp_path):
    config = config_of(tmp_path)
    storage = config.pop("_gguf")
    assert config == {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "hidden_size": 8,
        "head_dim": 4,
        "max_position_embeddings": 16,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 1.0,
        },
    }
    assert storage["pairing"] == Pairing.NEIGHBOURS
    assert storage["norm_gain_offset"] == 0.0
    assert storage["names"]["layer"] == "blk.{layer}"
    assert {"fused_order", "frequency_divisors", "causal"}.isdisjoint(storage)


def test_a_model_named_mistral_is_flagged_for_its_unknown_window(tmp_path):
    (flag,) = config_of(tmp_path, **{".general.name": "Mistral 7B v0.1"})["_gguf"]["flags"]
    assert "sliding window" in flag


def test_attention_that_sees_both_ways_is_told_from_causal(tmp_path):
    for causal in (True, False):
        path = small_file(tmp_path / "small.gguf", **{"attention.causal": causal})
        assert load_checkpoint(path).stack().causal is causal


@given(st.integers(1, 512).flatmap(lambda d: st.tuples(st.integers(1, d), st.just(d))))
def test_the_rotated_share_gives_back_the_rotated_width(widths):
    n_turned, d_head = widths
    assert int(share_of(n_turned, d_head) * d_head) == n_turned


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"block_count": 0}, "'llama.block_count' is 0; expected a positive"),
        ({"block_count": 1000}, "announce 1000 layers, and there are 5 tensors"),
        ({"block_count": "two"}, "'llama.block_count' is two; expected a whole number"),
        ({"block_count": True}, "'llama.block_count' is True; expected a whole number"),
        ({"attention.head_count": [2, 2]}, r"is \[2, 2\]; expected a whole number"),
        ({"attention.head_count": 3}, "3 heads with keys of width None .* model of width 8"),
        ({"attention.key_length": 4, "attention.value_length": 2}, "width 4 and values of width 2"),
        ({"rope.freq_base": "high"}, "'llama.rope.freq_base' is high; expected a number"),
        ({"attention.causal": 1}, "'llama.attention.causal' is 1; expected true or false"),
        ({".general.alignment": 24}, "general.alignment is 24, expected a power of two"),
        ({".split.count": 3, ".split.no": 1}, "part 2 of 3 of a split model.*--merge"),
    ],
)
def test_a_wrong_setting_is_named_with_its_key(metadata, message, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        config_of(tmp_path, **metadata)


@pytest.mark.parametrize("rope_type", ["longrope", "of another kind"])
def test_a_rotary_encoding_that_is_not_known_is_refused(rope_type, tmp_path):
    keys = {"rope.scaling.type": rope_type, "rope.scaling.factor": 2.0}
    path = small_file(tmp_path / "small.gguf", **keys)
    with pytest.raises(CheckpointError, match="rope"):
        load_checkpoint(path)


@pytest.mark.parametrize("factors", [[1.0, 2.0, 3.0], [1.0, 0.0], [1.0, math.inf], [1.0, math.nan]])
def test_rotary_factors_must_fit_and_be_positive(factors, tmp_path):
    tensors = {"rope_freqs.weight": np.array(factors, np.float32)}
    keys = {"block_count": 1, "embedding_length": 8, "attention.head_count": 2}
    path = write_gguf(tmp_path / "f.gguf", "llama", keys, tensors)
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight"):
        config_of_gguf(GgufSource(DiskFile(path)))


def test_an_unknown_architecture_lists_the_known_ones(tmp_path):
    tensors = {"blk.0.attn_q.weight": np.ones((2, 3), np.float32)}
    path = write_gguf(tmp_path / "m.gguf", "mamba2", {}, tensors)
    with pytest.raises(UnknownFamilyError) as caught:
        load_checkpoint(path)
    for part in ("'mamba2'", "gemma3, gpt2", "blk.0.attn_q.weight [2, 3]", "add-a-family.md"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("architecture", "metadata", "what"),
    [
        ("olmo2", {"attention.sliding_window": 4096}, "OLMo 3"),
        ("mpt", {"attention.max_alibi_bias": 0.0}, "learned positions"),
    ],
)
def test_a_variant_that_no_row_describes_is_refused(architecture, metadata, what, tmp_path):
    keys = {"block_count": 1, "embedding_length": 8, "attention.head_count": 2} | metadata
    path = write_gguf(tmp_path / "v.gguf", architecture, keys, {"x": np.ones(2, np.float32)})
    with pytest.raises(UnknownFamilyError, match=what):
        load_checkpoint(path)


# --- broken files ----------------------------------------------------------------------------


def use(path):
    """Do all that can be done with a file: open it, read every tensor, take a layer apart."""
    checkpoint = load_checkpoint(path)
    for name in checkpoint.source.tensors:
        checkpoint.read(name)
    return load_layer(checkpoint, 0)


def write_bytes(path, data):
    path.write_bytes(data)
    return path


def test_a_file_cut_short_at_any_byte_is_refused(small_bytes, tmp_path):
    path = write_bytes(tmp_path / "cut.gguf", small_bytes)
    places = [
        (s.offset, s.offset + s.info.n_bytes) for s in GgufSource(DiskFile(path))._stored.values()
    ]
    starts, ends = zip(*places, strict=True)
    for length in [*range(min(starts)), *range(min(starts), max(ends), 41), max(ends) - 1]:
        path.write_bytes(small_bytes[:length])
        with pytest.raises(CheckpointError, match=r"cut\.gguf: .*(not a|cut short)"):
            GgufSource(DiskFile(path))
    use(write_bytes(path, small_bytes[: max(ends)]))


def test_a_file_cut_short_while_in_use_is_refused(small_bytes, tmp_path):
    path = write_bytes(tmp_path / "small.gguf", small_bytes)
    source = GgufSource(DiskFile(path))
    path.write_bytes(small_bytes[:-100])
    with pytest.raises(CheckpointError, match="cut short after it was opened"):
        [source.read(name) for name in source.tensors]
    path.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        source.read("blk.0.attn_q.weight")


def patched(data, place, layout, *values):
    new = struct.pack(layout, *values)
    return data[:place] + new + data[place + len(new) :]


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (b"", "not a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1", "not a GGUF file: it starts with b'vers'"),
        (b"GGUF" + struct.pack("<I", 1), "has version 1; versions 2 and 3 are read"),
        (b"GGUF" + struct.pack("<I", 77), "has version 77"),
        (b"GGUF" + struct.pack(">I", 3), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1), f"announces {1 << 60} tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 1 << 60), f"and {1 << 60} metadata keys"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 60), f"a name of {1 << 60} bytes"),
    ],
)
def test_a_header_that_asks_for_the_absurd_is_refused(start, message, tmp_path):
    path = write_bytes(tmp_path / "absurd.gguf", start)
    with pytest.raises(CheckpointError, match=message):
        GgufSource(DiskFile(path))


def one_key(kind, *layout_and_values):
    head = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", kind)
    return head + b"".join(struct.pack(layout, value) for layout, value in layout_and_values)


@pytest.mark.parametrize(
    "data",
    [
        one_key(8, ("<Q", 1 << 62)),
        one_key(9, ("<I", 8), ("<Q", 1 << 62)),
        one_key(9, ("<I", 6), ("<Q", 1 << 62)),
        one_key(9, ("<I", 9), ("<Q", 1)),  # an array of arrays could nest without end
        one_key(9, ("<I", 4), ("<Q", 3)),
        one_key(99),
        one_key(8, ("<Q", 1)) + b"\xff",
    ],
)
def test_absurd_metadata_is_refused_at_once(data, tmp_path):
    with pytest.raises(CheckpointError, match="not a whole GGUF file"):
        GgufSource(DiskFile(write_bytes(tmp_path / "absurd.gguf", data)))


def test_a_header_without_end_is_refused(tmp_path):
    path = write_bytes(tmp_path / "long.gguf", one_key(8, ("<Q", LARGEST_HEADER)))
    with path.open("r+b") as file:
        file.truncate(2 * LARGEST_HEADER)  # sparse: takes no room
    with pytest.raises(CheckpointError, match=f"byte {LARGEST_HEADER} is inside its header"):
        GgufSource(DiskFile(path))


def described(name, dims, kind, offset, n_tensors=1):
    head = b"GGUF" + struct.pack("<IQQ", 3, n_tensors, 0)
    tensor = struct.pack("<Q", len(name)) + name + struct.pack("<I", len(dims))
    tensor += struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, offset)
    return head + tensor * n_tensors + bytes(4096)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (described(b"x", [4], 99, 0), "type number 99.*gguf package does not know"),
        (described(b"x", [4, 0], 0, 0), r"'x' of type F32 has shape \[0, 4\]"),
        (described(b"x", [31], 8, 0), r"'x' of type Q8_0 has shape \[31\]"),
        (described(b"x", [1] * 5, 0, 0), "5 dimensions, at most 4"),
        (described(b"x", [1 << 40, 1 << 40], 0, 0), "cut short: tensor 'x' ends at byte"),
        (described(b"x", [4], 0, (1 << 64) - 1), "cut short: tensor 'x' ends at byte"),
        (described(b"x", [4], 0, 0, n_tensors=2), "two tensors are called 'x'"),
    ],
)
def test_a_tensor_that_cannot_be_is_named(data, message, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        GgufSource(DiskFile(write_bytes(tmp_path / "t.gguf", data)))


def test_scalars_of_no_dimension_are_read(tmp_path):
    path = write_bytes(tmp_path / "t.gguf", described(b"x", [], 0, 0))
    assert GgufSource(DiskFile(path)).read("x").shape == ()


def test_two_metadata_keys_of_one_name_are_refused(tmp_path):
    pair = struct.pack("<Q", 1) + b"k" + struct.pack("<IB", 0, 5)
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + pair * 2
    with pytest.raises(CheckpointError, match="'k' appears twice"):
        GgufSource(DiskFile(write_bytes(tmp_path / "twice.gguf", data)))


def test_a_missing_file_or_a_folder_is_refused(tmp_path):
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(CheckpointError, match="cannot be read"):
            GgufSource(DiskFile(path))


EXTREMES = [0, 1, 7, 255, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 63, (1 << 64) - 1]
DAMAGE = st.one_of(
    st.tuples(st.integers(0, 1 << 12), st.binary(min_size=1, max_size=3)),
    st.tuples(st.integers(0, 1 << 12), st.sampled_from([struct.pack("<Q", n) for n in EXTREMES])),
    st.tuples(st.integers(0, 1 << 12), st.sampled_from([struct.pack("<I", n) for n in range(13)])),
)


@settings(max_examples=400, deadline=None)
@given(damage=st.lists(DAMAGE, min_size=1, max_size=4))
def test_a_damaged_file_works_or_is_refused_and_nothing_else(damage, small_bytes, scratch):
    data = bytearray(small_bytes)
    for place, new in damage:
        place %= len(data)
        data[place : place + len(new)] = new
    scratch.write_bytes(data)
    try:
        use(scratch)
    except CheckpointError as error:
        assert str(scratch) in str(error)


VALUES = st.one_of(
    st.integers(-3, 70), st.sampled_from(EXTREMES), st.booleans(), st.text(max_size=5),
    st.floats(width=32), st.lists(st.integers(0, 9), max_size=3),
)  # fmt: skip
KEYS = [
    "block_count", "embedding_length", "context_length", "decoder_block_count",
    "use_parallel_residual", "attn_logit_softcapping", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "attention.sliding_window", "attention.max_alibi_bias", "attention.clamp_kqv",
    "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon", "attention.causal",
    "rope.dimension_count", "rope.freq_base", "rope.freq_base_swa", "rope.scaling.type",
    "rope.scaling.factor", "rope.scaling.original_context_length",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    architecture=st.sampled_from(sorted(GGUF_ARCHITECTURES)),
    metadata=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6),
)
def test_any_metadata_give_a_config_or_are_refused(architecture, metadata, small_source):
    sound = {"block_count": 1, "embedding_length": 8, "attention.head_count": 2}
    sound |= {"attention.head_count_kv": 1, "attention.max_alibi_bias": 8.0}
    merged = {f"{architecture}.{key}": value for key, value in (sound | metadata).items()}
    small_source.metadata = {"general.architecture": architecture, **merged}
    try:
        build_architecture(config_of_gguf(small_source), small_source, "small.gguf")
    except CheckpointError as error:
        assert "small.gguf" in str(error)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("scratch") / "damaged.gguf"


@pytest.fixture(scope="module")
def small_source(tmp_path_factory):
    return GgufSource(DiskFile(small_file(tmp_path_factory.mktemp("settings") / "small.gguf")))


# --- cost ------------------------------------------------------------------------------------

READ_ALL = """
import resource, sys
from pathlib import Path
import torch
from orbitlens.checkpoint.gguf_file import GgufSource
from orbitlens.checkpoint.stored_file import DiskFile

torch.set_num_threads(1)
source = GgufSource(DiskFile(Path(sys.argv[1])))
source.read("x")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
total = sum(source.read(name).numel() for name in source.tensors)
print(total, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss counts in other units elsewhere")
def test_memory_holds_one_tensor_at_a_time(tmp_path):
    n_tensors, width = 16, 2048
    writer = gguf.GGUFWriter(tmp_path / "large.gguf", "llama")
    writer.add_tensor("x", np.ones((4, 4), np.float32))
    for i in range(n_tensors):
        writer.add_tensor_info(f"t{i}", (width, width), np.dtype("f2"), 2 * width**2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with (tmp_path / "large.gguf").open("r+b") as file:
        file.truncate(1 << 16 | n_tensors * 2 * width**2)  # sparse: takes no room
    command = [sys.executable, "-c", READ_ALL, str(tmp_path / "large.gguf")]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    n_read, grown = map(int, out.split())
    assert n_read == n_tensors * width**2 + 16
    assert grown < 2.5 * 4 * width**2  # one result and a few chunks; all of them would be 16
