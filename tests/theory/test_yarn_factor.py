"""The factor that YaRN and LongRoPE put on scores is part of a head's score map."""

import pytest
import torch

from orbitlens.families.architecture import Pairing, RotarySpec
from orbitlens.heads.head import make_head
from orbitlens.theory.maps import HeadMaps
from orbitlens.theory.positional import maps_at_offset, rotary_effect
from orbitlens.theory.rates import head_rates


def head_with(kind, generator, **parameters):
    factors = [torch.randn(12, 4, generator=generator, dtype=torch.float64) for _ in range(3)]
    w_o = torch.randn(4, 12, generator=generator, dtype=torch.float64)
    spec = RotarySpec(
        base=100.0,
        d_rotary=4,
        d_head=4,
        pairing=Pairing.HALVES,
        kind=kind,
        parameters={"original_max_position_embeddings": 16, **parameters},
        max_positions=64,
    )
    return make_head(*factors, w_o, rotary=spec)


@pytest.mark.parametrize(("kind", "factor"), [("yarn", 1.3), ("default", 1.0)])
def test_rates_at_offset_zero_carry_the_squared_attention_factor(kind, factor):
    plain = head_with("default", torch.Generator().manual_seed(1))
    scaled = head_with(kind, torch.Generator().manual_seed(1), factor=4.0, attention_factor=factor)
    expected = factor**2 * head_rates(plain).largest
    assert head_rates(scaled).largest == pytest.approx(expected, rel=1e-12)
    assert torch.allclose(HeadMaps.of(scaled).left, maps_at_offset(scaled, 0).left)
    assert rotary_effect(scaled, 1).size_survival == pytest.approx(1.0)
