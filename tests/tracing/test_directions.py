"""Directions: mean cosine, its change, and the parts of that change."""

import math

import pytest
import torch

from orbitlens.tracing.directions import CosineSums, PathSums, centre, directions, log_spread
from orbitlens.tracing.massive import MASSIVE, MassiveSums


def tokens(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slow_cosine(batch):
    total, n = 0.0, 0
    for context in batch:
        for i in range(len(context)):
            for j in range(len(context)):
                if i != j:
                    total += float(torch.cosine_similarity(context[i], context[j], dim=0))
                    n += 1
    return total / n


def path(x, parts):
    sums = PathSums(len(parts))
    sums.add(x, parts)
    return sums


def test_the_mean_cosine_is_that_of_all_pairs_pooled_over_contexts():
    sums = CosineSums()
    first, second = tokens(3, 5, 7), tokens(2, 4, 7, seed=1)
    sums.add(first)
    sums.add(second)
    n = [3 * 5 * 4, 2 * 4 * 3]
    slow = (slow_cosine(first) * n[0] + slow_cosine(second) * n[1]) / sum(n)
    assert sums.value == pytest.approx(slow, abs=1e-13)
    assert sums.log_spread == pytest.approx(math.log(1 - slow), abs=1e-12)


def test_half_the_mean_squared_distance_of_directions_is_one_minus_c():
    x = tokens(1, 6, 5)
    y = directions(x)[0]
    pairs = [(y[i] - y[j]).square().sum().item() for i in range(6) for j in range(6) if i != j]
    sums = CosineSums()
    sums.add(x)
    assert sum(pairs) / len(pairs) / 2 == pytest.approx(1 - sums.value, abs=1e-13)


@pytest.mark.parametrize("size", [0.01, 1.0, 10.0, 100.0])
def test_parts_sum_to_the_whole_whatever_the_size_of_the_step(size):
    x, parts = tokens(2, 12, 16), size * tokens(5, 2, 12, 16, seed=1)
    sums = path(x, parts)
    assert sum(sums.shares) == pytest.approx(sums.change, abs=1e-10)


def test_batches_add_up_to_the_whole_text():
    x, parts = tokens(4, 6, 8), tokens(3, 4, 6, 8, seed=1)
    whole, halves = path(x, parts), PathSums(3)
    halves.add(x[:2], parts[:, :2])
    halves.add(x[2:], parts[:, 2:])
    assert halves.shares == pytest.approx(whole.shares, abs=1e-13)
    assert halves.change == pytest.approx(whole.change, abs=1e-13)


def test_a_small_step_has_the_first_order_change_of_autograd():
    x, parts = tokens(1, 7, 9), 1e-5 * tokens(2, 1, 7, 9, seed=1)
    moved = x.clone().requires_grad_()
    y = moved / moved.norm(dim=-1, keepdim=True)
    cosine = (y.sum(dim=1).square().sum() - 7) / 42
    (slope,) = torch.autograd.grad(torch.log1p(-cosine), moved)
    wanted = [(slope * part).sum().item() for part in parts]
    assert path(x, parts).shares == pytest.approx(wanted, rel=1e-3)


def test_a_part_that_only_lengthens_tokens_has_no_share():
    x = tokens(2, 6, 8)
    parts = torch.stack([0.7 * x, tokens(2, 6, 8, seed=3)])
    lone = path(x, 0.7 * x[None])
    assert lone.shares[0] == pytest.approx(0.0, abs=1e-12)
    assert lone.change == pytest.approx(0.0, abs=1e-12)
    assert path(x, parts).shares[1] != pytest.approx(0.0, abs=1e-3)


def test_a_shared_vector_gathers_and_its_opposite_spreads():
    x = tokens(1, 20, 30) + 1.0
    shared = x.mean(dim=1, keepdim=True).expand_as(x)
    gathers, spreads = path(x, shared[None]), path(x, -0.5 * shared[None])
    assert gathers.change < 0 < spreads.change
    assert gathers.effects_alone[0] == pytest.approx(gathers.change, abs=1e-12)


def test_turning_all_tokens_together_changes_nothing():
    x, parts = tokens(2, 6, 8), tokens(3, 2, 6, 8, seed=1)
    turn = torch.linalg.qr(tokens(8, 8, seed=5)).Q
    assert path(x @ turn, parts @ turn).shares == pytest.approx(path(x, parts).shares, abs=1e-12)


def test_equiangular_tokens_follow_the_closed_form():
    """Adding v times the mean keeps all pairs at one cosine: C' by hand."""
    n, d, v, c = 6, 6, 0.8, 0.3
    gram = torch.full((n, d), c, dtype=torch.float64) + (1 - c) * torch.eye(n, dtype=torch.float64)
    x = torch.linalg.cholesky(gram)[None]
    moved = path(x, v * x.mean(dim=1, keepdim=True).expand_as(x)[None])
    mean = (1 + (n - 1) * c) / n  # x_i . mean, and |mean|^2 too
    inner = c + 2 * v * mean + v**2 * mean
    length = 1 + 2 * v * mean + v**2 * mean
    assert moved.before.value == pytest.approx(c, abs=1e-12)
    assert moved.after.value == pytest.approx(inner / length, abs=1e-12)


def test_centring_takes_the_mean_coordinate_away():
    x = tokens(2, 3, 5)
    assert centre(x + 4.2).sub(centre(x)).abs().max() < 1e-14


def test_a_token_of_length_zero_has_no_direction_and_breaks_nothing():
    x = tokens(1, 4, 3)
    x[0, 2] = 0
    sums = CosineSums()
    sums.add(x)
    assert math.isfinite(sums.log_spread)
    assert log_spread(1.0) == -math.inf


def test_massive_tokens_are_found_by_position_and_none_elsewhere():
    x = tokens(4, 16, 8)
    plain, planted = MassiveSums(), MassiveSums()
    plain.add(x)
    x[:, 0] *= 100 * MASSIVE
    planted.add(x)
    assert plain.tokens == ()
    (token,) = planted.tokens
    assert (token.position, token.share) == (0, 1.0)
    assert token.ratio > MASSIVE
