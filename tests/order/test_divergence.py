"""Divergences, intervals and shares, against exact answers."""

import math

import pytest
import torch

from orbitlens.order.divergence import bootstrap_mean, js_bits, shapley


def test_js_of_known_distributions_is_exact():
    p, q = torch.tensor([0.5, 0.5]), torch.tensor([0.25, 0.75])
    m = (p + q) / 2
    exact = sum(float((x * (x / m).log2()).sum()) for x in (p, q)) / 2
    assert js_bits(p.log(), q.log()).item() == pytest.approx(exact, rel=1e-6)
    assert js_bits(p.log(), p.log() + 3.0).item() == 0.0  # logits are defined up to a constant


def test_its_square_root_is_a_metric(generator):
    a, b, c = torch.randn(3, 500, 6, generator=generator)
    d = [js_bits(x, y).sqrt() for x, y in ((a, b), (b, c), (a, c))]
    assert (d[2] <= d[0] + d[1] + 1e-12).all()
    assert (js_bits(a, b) <= 1.0).all()


def test_shares_sum_to_the_whole_and_a_mechanism_without_effect_gets_none():
    found = shapley(both=0.8, encoding_only=0.5, mask_only=0.1, neither=0.01)
    assert found.encoding + found.mask == pytest.approx(1.0)
    assert found.encoding_bits + found.mask_bits == pytest.approx(0.79)
    dummy = shapley(both=0.5, encoding_only=0.5, mask_only=0.0, neither=0.0)
    assert (dummy.encoding, dummy.mask) == (1.0, 0.0)


def test_bootstrap_intervals_cover_the_mean_as_often_as_they_say():
    generator = torch.Generator().manual_seed(3)
    hits = 0
    for _ in range(200):
        sample = torch.randn(40, generator=generator, dtype=torch.float64).exp()
        found = bootstrap_mean(sample, generator)
        hits += found.low <= math.exp(0.5) <= found.high
    assert 170 <= hits <= 199  # 95 % of 200 is 190; the percentile bootstrap covers a little less
