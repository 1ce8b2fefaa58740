"""Metrics against closed forms and against slow sums over all pairs."""

import itertools
import math

import pytest
import torch

from orbitlens.errors import InputError
from orbitlens.measure import metrics


@pytest.fixture
def cloud(generator):
    return torch.randn(9, 4, generator=generator, dtype=torch.float64) + 0.5


def pairs(x):
    return itertools.permutations(range(len(x)), 2)


def test_means_over_pairs_equal_slow_sums(cloud):
    n = len(cloud)
    squares = [(cloud[i] - cloud[j]).square().sum().item() for i, j in pairs(cloud)]
    assert metrics.mean_squared_distance(cloud) == pytest.approx(sum(squares) / len(squares))
    for centred in (False, True):
        y = cloud - cloud.mean(dim=0) if centred else cloud
        cosines = [torch.cosine_similarity(y[i], y[j], dim=0).item() for i, j in pairs(y)]
        expected = sum(cosines) / len(cosines)
        assert metrics.mean_cosine(cloud, centred=centred) == pytest.approx(expected)
    expected = sum(squares) / (2 * (n - 1) * cloud.square().sum().item())
    assert metrics.dispersion(cloud) == pytest.approx(expected)
    energy = sum(math.exp(2 * (cloud[i] @ cloud[j]).item()) for i in range(n) for j in range(n))
    assert metrics.interaction_energy(cloud, 2.0) == pytest.approx(energy / (4 * n * n))


def test_equal_tokens_have_no_spread():
    x = torch.ones(5, 3, dtype=torch.float64)
    assert metrics.mean_squared_distance(x) == 0.0
    assert metrics.rank_one_distance(x) == 0.0
    assert metrics.mean_cosine(x) == pytest.approx(1.0)
    assert metrics.effective_rank(x) == pytest.approx(1.0)
    assert metrics.dispersion(x) == 0.0


def test_orthogonal_tokens_have_full_rank_and_no_cosine():
    x = 3 * torch.eye(4, dtype=torch.float64)
    assert metrics.effective_rank(x) == pytest.approx(4.0)
    assert metrics.mean_cosine(x) == pytest.approx(0.0, abs=1e-12)
    assert metrics.mean_squared_distance(x) == pytest.approx(18.0)
    assert (metrics.largest_norm(x), metrics.mean_norm(x)) == (3.0, 3.0)


def test_metrics_over_time_have_one_value_a_moment(cloud):
    found = metrics.over_time(torch.stack([cloud, 2 * cloud]))
    assert found["largest_norm"][1] == pytest.approx(2 * found["largest_norm"][0])
    assert found["mean_cosine"][1] == pytest.approx(found["mean_cosine"][0])


def test_a_single_token_has_no_pairs():
    with pytest.raises(InputError, match="at least 2"):
        metrics.mean_squared_distance(torch.ones(1, 3, dtype=torch.float64))
    with pytest.raises(InputError, match="positive beta"):
        metrics.interaction_energy(torch.ones(2, 3, dtype=torch.float64), 0.0)
