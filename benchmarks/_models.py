"""Random models in Hugging Face layout, of the shapes that are timed."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class LlamaShape:
    """The sizes of a Llama model; without MLP and vocabulary, its attention alone."""

    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    n_layers: int
    d_mlp: int = 0
    n_vocabulary: int = 0

    @property
    def attention_bytes(self) -> int:
        """Size of one layer's attention weights, in bfloat16."""
        width = 2 * (self.n_heads + self.n_kv_heads) * self.d_head
        return 2 * self.d_model * width


def write_llama(folder: Path, shape: LlamaShape, *, n_shards: int) -> Path:
    """Write random bfloat16 weights, one shard in memory at a time, and return the folder."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    sizes = _tensor_sizes(shape)
    names, shard_of = list(sizes), {}
    for shard in range(n_shards):
        file = f"model-{shard + 1:05d}-of-{n_shards:05d}.safetensors"
        here = names[shard * len(names) // n_shards : (shard + 1) * len(names) // n_shards]
        tensors = {name: _random(sizes[name], shape.d_model, generator) for name in here}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        shard_of |= dict.fromkeys(here, file)
    index = {"metadata": {}, "weight_map": shard_of}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(_config(shape)))
    return folder


def _tensor_sizes(shape: LlamaShape) -> dict[str, tuple[int, ...]]:
    d, q, kv = shape.d_model, shape.n_heads * shape.d_head, shape.n_kv_heads * shape.d_head
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (q, d),
        "self_attn.k_proj": (kv, d),
        "self_attn.v_proj": (kv, d),
        "self_attn.o_proj": (d, q),
        "input_layernorm": (d,),
    }
    if shape.d_mlp:
        layer |= {"mlp.gate_proj": (shape.d_mlp, d), "mlp.up_proj": (shape.d_mlp, d)}
        layer |= {"mlp.down_proj": (d, shape.d_mlp), "post_attention_layernorm": (d,)}
    sizes = {
        f"model.layers.{i}.{name}.weight": size
        for i in range(shape.n_layers)
        for name, size in layer.items()
    }
    if shape.n_vocabulary:
        sizes |= {"model.embed_tokens.weight": (shape.n_vocabulary, d), "model.norm.weight": (d,)}
    return sizes


def _random(size: tuple[int, ...], d_model: int, generator: torch.Generator) -> Tensor:
    noise = torch.randn(size, generator=generator)
    return (1 + 0.1 * noise if len(size) == 1 else noise / d_model**0.5).bfloat16()


def _config(shape: LlamaShape) -> dict[str, object]:
    return {
        "model_type": "llama",
        "hidden_size": shape.d_model,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.d_head,
        "intermediate_size": shape.d_mlp,
        "vocab_size": shape.n_vocabulary,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 2048,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }
