"""A tiny model made on the spot, so that the tool can be tried with nothing at hand.

Its weights are random but for one thing: each head's value map is turned towards its score map, or
away from it, by an amount that is known. The scan has to find it.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from orbitlens.checkpoint.zoo import zoo_names

N_LAYERS, N_HEADS, D_MODEL, D_HEAD, N_VOCABULARY = 6, 8, 64, 8, 64


def demo_models(made: Path) -> list[str]:
    """Return the models a demo reports on: the zoo's, or the one just made where it is empty."""
    return list(zoo_names()) or [str(made)]


def planted_alignment(layer: int, head: int) -> float:
    """Return how far a head is turned: from -0.9 (opposed) to 0.9 (aligned)."""
    ramp = (layer + 0.5) / N_LAYERS + (head + 0.5) / N_HEADS - 1.0
    return 0.9 * ramp


def write_demo_model(folder: Path, *, seed: int = 0) -> Path:
    """Write the model, in Hugging Face layout, into `folder`, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {"model.embed_tokens.weight": torch.randn(N_VOCABULARY, D_MODEL, generator=generator)}
    for layer in range(N_LAYERS):
        tensors |= _layer_tensors(layer, generator)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_config(), indent=2))
    return folder


def _layer_tensors(layer: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    heads = [_head(planted_alignment(layer, h), generator) for h in range(N_HEADS)]
    name = f"model.layers.{layer}"
    stacked = {
        key: torch.cat([head[key] for head in heads], dim=1 if key == "o_proj" else 0)
        for key in ("q_proj", "k_proj", "v_proj", "o_proj")
    }
    tensors = {f"{name}.self_attn.{key}.weight": value for key, value in stacked.items()}
    tensors[f"{name}.input_layernorm.weight"] = torch.ones(D_MODEL)
    return tensors


def _head(alignment: float, generator: torch.Generator) -> dict[str, torch.Tensor]:
    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) / D_MODEL**0.5

    query, key = noise(D_HEAD, D_MODEL), noise(D_HEAD, D_MODEL)
    share, rest = abs(alignment), (1 - alignment**2) ** 0.5
    sign = 1.0 if alignment > 0 else -1.0
    return {
        "q_proj": query,
        "k_proj": key,
        "v_proj": share * key + rest * noise(D_HEAD, D_MODEL),
        "o_proj": sign * (share * query.T + rest * noise(D_MODEL, D_HEAD)),
    }


def _config() -> dict[str, object]:
    return {
        "model_type": "llama",
        "hidden_size": D_MODEL,
        "num_hidden_layers": N_LAYERS,
        "num_attention_heads": N_HEADS,
        "num_key_value_heads": N_HEADS,
        "head_dim": D_HEAD,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 512,
        "vocab_size": N_VOCABULARY,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }
