"""Latent attention: weights laid out as heads of one width, and lengths that depend on tokens."""

import pytest
import torch

from orbitlens.families.architecture import LatentSpec
from orbitlens.heads.latent import (
    Latent,
    key_and_value_blocks,
    output_blocks,
    query_blocks,
)

SPEC = LatentSpec(q_rank=None, kv_rank=3, d_plain=2, d_rotary=2, d_value=1, epsilon=0.0, names={})


@pytest.fixture
def latent(generator):
    w = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    return Latent(w=w, b=torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64), epsilon=1e-6)


def test_typical_length_is_the_root_mean_square_over_isotropic_tokens(latent, generator):
    tokens = torch.randn(200_000, 5, generator=generator, dtype=torch.float64)
    measured = (tokens @ latent.w + latent.b).square().mean().sqrt().item()
    assert latent.typical == pytest.approx(measured, rel=0.01)


def test_a_latent_at_its_true_length_has_length_one(latent, generator):
    tokens = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    at_typical = (tokens @ latent.w + latent.b) / latent.typical
    exact = at_typical * latent.relative_scale(tokens)
    assert torch.allclose(exact.square().mean(dim=-1), torch.ones(7, dtype=torch.float64))


def test_heads_are_rotated_then_plain_then_zeros():
    stored = torch.arange(8.0)[:, None]  # two heads of [plain, plain, rotated, rotated]
    assert query_blocks(stored, SPEC)[0].tolist() == [2, 3, 0, 1, 6, 7, 4, 5]
    stored = torch.arange(1.0, 7.0)[:, None]  # two heads of [plain key, plain key, value]
    keys, values = key_and_value_blocks(stored, SPEC)
    assert keys[0].tolist() == [1, 2, 4, 5]
    assert values[0].tolist() == [3, 0, 0, 0, 6, 0, 0, 0]
    stored = torch.tensor([[7.0, 8.0]])  # one value a head
    assert output_blocks(stored, SPEC)[:, 0].tolist() == [7, 0, 0, 0, 8, 0, 0, 0]
