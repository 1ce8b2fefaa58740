"""Tiny Orbit models with visible spread in all their weights, in float64: shared by lab tests."""

import torch

from orbitlens.orbit import OrbitConfig, OrbitForCausalLM, OrbitForImageClassification

SMALL = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "max_position_embeddings": 32,
    "rotary_base": 50.0,
}


def tiny(*, seed=0, **switches):
    """Return a model of tokens, or of images where `image_size` is given."""
    config = OrbitConfig(**{**SMALL, **switches})
    kind = OrbitForCausalLM if config.image_size is None else OrbitForImageClassification
    torch.manual_seed(seed)
    model = kind(config).double().eval()
    generator = torch.Generator().manual_seed(seed + 1)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        is_gain = "norm" in name and name.endswith("weight")
        parameter.data = 1.0 + 0.3 * noise if is_gain else 0.3 * noise
    return model


def token_ids(n_tokens=11, *, batch=2, seed=7):
    return torch.randint(0, 40, (batch, n_tokens), generator=torch.Generator().manual_seed(seed))
