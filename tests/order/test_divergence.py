"""Divergences, intervals and shares, against exact answers."""

import math

import pytest
import torch

from orbitlens.order import divergence
from orbitlens.order.divergence import bootstrap_mean, js_bits, split_order


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


def test_one_prediction_beside_many_is_made_a_distribution_once(generator, monkeypatch):
    before, after = torch.randn(3, 1, 40, generator=generator), torch.randn(3, 5, 40)
    slow = js_bits(before.expand_as(after), after)
    made = []
    of = divergence._Shares.of
    monkeypatch.setattr(divergence._Shares, "of", lambda x: made.append(len(x)) or of(x))
    assert torch.allclose(js_bits(before, after), slow, rtol=1e-12)
    assert sum(made) == 3 + 15


def test_js_of_extreme_logits_is_a_number(generator):
    sharp = torch.tensor([[0.0, -800.0, -2000.0], [-2000.0, 0.0, -2000.0]])
    assert js_bits(sharp[:1], sharp[1:]).tolist() == [1.0]
    near = torch.randn(7, 30, generator=generator, dtype=torch.float64)
    moved = near + 1e-4 * torch.randn(7, 30, generator=generator, dtype=torch.float64)
    p, q = near.softmax(-1), moved.softmax(-1)
    middle = (p + q) / 2
    # To second order JS is sum (p - q)^2 / (8 m ln 2): no digits are lost to cancellation.
    expected = ((p - q).square() / middle).sum(-1) / (8 * math.log(2))
    assert torch.allclose(js_bits(near, moved), expected, rtol=1e-5)


def split(both, encoding_only, mask_only, neither, *, n_samples=4):
    """Return effects and shares where every sample has the same values."""
    names = ("both", "encoding_only", "mask_only", "neither")
    cells = [
        torch.full((n_samples,), x, dtype=torch.float64) if isinstance(x, float) else x
        for x in (both, encoding_only, mask_only, neither)
    ]
    generator = torch.Generator().manual_seed(0)
    return split_order(**dict(zip(names, cells, strict=True)), generator=generator)


def test_shares_sum_to_the_whole_and_a_mechanism_without_effect_gets_none():
    effects, shares = split(0.8, 0.5, 0.1, 0.01)
    assert shares.encoding + shares.mask == pytest.approx(1.0)
    assert shares.encoding_bits + shares.mask_bits == pytest.approx(0.79)
    assert effects.interaction.mean == pytest.approx(0.8 - 0.5 - 0.1 + 0.01)
    _, dummy = split(0.5, 0.5, 0.0, 0.0)
    assert (dummy.encoding, dummy.mask) == (1.0, 0.0)
    assert dummy.encoding_interval == (1.0, 1.0)


def test_mechanisms_that_undo_each_other_have_an_interaction_and_no_shares():
    """(0.6 + 0.5 - 0.2) / 2 = 0.45 of 0.5 is a share; (0.7 + 0.5 - 0.1) / 2 of 0.5 is 110 %."""
    assert split(0.5, 0.6, 0.2, 0.0)[1].encoding == pytest.approx(0.9)
    effects, shares = split(0.5, 0.7, 0.1, 0.0)
    assert shares is None
    assert effects.interaction.mean == pytest.approx(-0.3)
    assert split(0.0, 0.0, 0.0, 0.0)[1] is None  # nothing to share


def test_the_interval_of_a_share_covers_it_as_often_as_it_says():
    """Cells of one sample move together: resampling them apart would give far wider intervals."""
    generator = torch.Generator().manual_seed(5)
    hits, widths, trials = 0, [], 150
    for _ in range(trials):
        size = torch.randn(40, generator=generator, dtype=torch.float64).exp()
        noise = 0.05 * torch.randn(3, 40, generator=generator, dtype=torch.float64)
        both, first, second = size * (torch.tensor([[1.0], [0.7], [0.1]]) + noise)
        names = ("both", "encoding_only", "mask_only", "neither")
        cells = dict(zip(names, (both, first, second, torch.zeros_like(both)), strict=True))
        _, shares = split_order(**cells, generator=generator)
        low, high = shares.encoding_interval
        hits += low <= 0.8 <= high  # (0.7 + 1 - 0.1) / 2
        widths.append(high - low)
    assert 0.85 * trials <= hits < trials
    assert max(widths) < 0.1


def test_bootstrap_intervals_cover_the_mean_as_often_as_they_say():
    generator = torch.Generator().manual_seed(3)
    hits = 0
    for _ in range(200):
        sample = torch.randn(40, generator=generator, dtype=torch.float64).exp()
        found = bootstrap_mean(sample, generator)
        hits += found.low <= math.exp(0.5) <= found.high
    assert 170 <= hits <= 199  # 95 % of 200 is 190; the percentile bootstrap covers a little less
