"""Running sums equal the slow way, in any portions."""

import pytest
import torch

from orbitlens.theory.clouds import mean_cosine, mean_squared_distance
from orbitlens.tracing.streams import CovarianceSums, SpreadSums, StateSums, split_padding


@pytest.fixture
def tokens(generator):
    """Contexts with a large common offset, so that cancellation would show."""
    x = torch.randn(6, 9, 5, generator=generator, dtype=torch.float64)
    return 3 * x + 50 * torch.randn(6, 1, 5, generator=generator, dtype=torch.float64)


def slow_covariance(contexts):
    total, freedom = 0, 0
    for context in contexts:
        for token in context:
            gap = token - context.mean(dim=0)
            total = total + torch.outer(gap, gap)
        freedom += len(context) - 1
    return total / freedom


def state_sums(batches):
    sums = StateSums()
    for batch in batches:
        sums.add(batch)
    return sums


def test_covariance_equals_the_slow_loop(tokens):
    sums = state_sums([tokens])
    assert torch.allclose(sums.covariance.value, slow_covariance(tokens), rtol=1e-12)


def test_pair_distance_is_twice_the_trace_and_the_mean_over_contexts(tokens):
    sums = state_sums([tokens])
    slow = sum(mean_squared_distance(x) for x in tokens) / len(tokens)
    assert sums.spread.mean_squared_distance == pytest.approx(slow, rel=1e-12)
    assert 2 * sums.covariance.value.trace().item() == pytest.approx(slow, rel=1e-12)


def test_cosines_are_the_mean_over_contexts(tokens):
    sums = state_sums([tokens])
    for found, centred in ((sums.cosines, False), (sums.centred_cosines, True)):
        slow = sum(mean_cosine(x, centred=centred) for x in tokens) / len(tokens)
        assert found / sums.n_pairs == pytest.approx(slow, rel=1e-10)


def test_second_moment_is_of_all_tokens(tokens):
    flat = tokens.flatten(0, 1)
    sums = state_sums([tokens])
    assert torch.allclose(sums.second_moment, flat.T @ flat / len(flat), rtol=1e-12)
    assert torch.allclose(sums.mean, flat.mean(dim=0))
    assert sums.norms / sums.n_tokens == pytest.approx(flat.norm(dim=-1).mean().item())
    assert sums.largest_norm == pytest.approx(flat.norm(dim=-1).max().item())


def test_portions_and_order_do_not_matter(tokens):
    whole = state_sums([tokens])
    parts = state_sums([tokens[4:], tokens[:1], tokens[1:4]])
    merged = state_sums([tokens[:2]]).merged(state_sums([tokens[2:]]))
    for other in (parts, merged):
        assert torch.allclose(whole.covariance.value, other.covariance.value, rtol=1e-12)
        assert torch.allclose(whole.second_moment, other.second_moment, rtol=1e-12)
        assert other.n_tokens == whole.n_tokens
        assert other.cosines == pytest.approx(whole.cosines)


def test_padding_is_left_out(tokens):
    kept = torch.ones(6, 9, dtype=torch.bool)
    kept[2, 5:] = False
    spoiled = tokens.clone()
    spoiled[2, 5:] = 1e9
    sums = state_sums(split_padding(spoiled, kept))
    contexts = [tokens[k, : 5 if k == 2 else 9] for k in range(6)]
    assert torch.allclose(sums.covariance.value, slow_covariance(contexts), rtol=1e-12)
    assert sums.n_tokens == 5 * 9 + 5


def test_padding_that_is_not_left_out_shows(tokens):
    spoiled = tokens.clone()
    spoiled[2, 5:] = 1e9
    assert state_sums([spoiled]).spread.mean_squared_distance > 1e12


def test_equal_tokens_have_no_spread_and_cosine_one():
    sums = state_sums([torch.ones(2, 4, 3, dtype=torch.float64)])
    assert sums.spread.mean_squared_distance == 0
    assert sums.cosines / sums.n_pairs == pytest.approx(1.0)


def test_nothing_added_has_no_covariance():
    with pytest.raises(ValueError, match="no pair"):
        _ = CovarianceSums().value
    assert SpreadSums().mean_squared_distance == 0.0


def test_float32_sums_of_many_batches_keep_their_digits(generator):
    batches = [torch.randn(4, 32, 8, generator=generator) + 100 for _ in range(40)]
    exact = state_sums([b.double() for b in batches]).covariance.value
    rough = state_sums(batches).covariance.value
    assert ((rough - exact).norm() / exact.norm()).item() < 1e-5
