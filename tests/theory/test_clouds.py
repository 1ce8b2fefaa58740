"""Metrics against closed forms and against slow sums over all pairs."""

import itertools
import math

import pytest
import torch

from orbitlens.errors import InputError
from orbitlens.theory import clouds as metrics
from slow_flow import normal, seeded

ON_PAIRS = [metrics.mean_squared_distance, metrics.mean_cosine, metrics.dispersion]


@pytest.fixture
def cloud(generator):
    return torch.randn(9, 4, generator=generator, dtype=torch.float64) + 0.5


def pairs(x):
    return itertools.permutations(range(len(x)), 2)


# --- slow references -------------------------------------------------------------------------


def test_the_mean_squared_distance_is_the_mean_over_pairs(cloud):
    squares = [(cloud[i] - cloud[j]).square().sum().item() for i, j in pairs(cloud)]
    assert metrics.mean_squared_distance(cloud) == pytest.approx(sum(squares) / len(squares))


@pytest.mark.parametrize("centred", [False, True])
def test_the_mean_cosine_is_the_mean_over_pairs(cloud, centred):
    y = cloud - cloud.mean(dim=0) if centred else cloud
    cosines = [torch.cosine_similarity(y[i], y[j], dim=0).item() for i, j in pairs(y)]
    expected = sum(cosines) / len(cosines)
    assert metrics.mean_cosine(cloud, centred=centred) == pytest.approx(expected)


def test_the_dispersion_is_its_definition(cloud):
    squares = sum((cloud[i] - cloud[j]).square().sum().item() for i, j in pairs(cloud))
    expected = squares / (2 * (len(cloud) - 1) * cloud.square().sum().item())
    assert metrics.dispersion(cloud) == pytest.approx(expected)


@pytest.mark.parametrize("beta", [0.3, 2.0])
def test_the_energy_is_the_sum_over_all_pairs_the_token_itself_included(cloud, beta):
    n = len(cloud)
    total = sum(math.exp(beta * (cloud[i] @ cloud[j]).item()) for i in range(n) for j in range(n))
    assert metrics.interaction_energy(cloud, beta) == pytest.approx(total / (2 * beta * n * n))


def test_the_energy_goes_in_blocks_of_tokens():
    x = normal(seeded(1), 2100, 2) / 2
    expected = torch.exp(x @ x.T).sum().item() / (2 * 2100**2)
    assert metrics.interaction_energy(x, 1.0) == pytest.approx(expected)


def test_the_effective_rank_is_the_exponential_of_an_entropy(cloud):
    eigenvalues = torch.linalg.eigvalsh(cloud.T @ cloud)
    p = eigenvalues.sqrt() / eigenvalues.sqrt().sum()
    expected = math.exp(-sum(q * math.log(q) for q in p.tolist()))
    assert metrics.effective_rank(cloud) == pytest.approx(expected)


def test_the_distance_to_rank_one_is_its_definition(cloud):
    mean = cloud.sum(dim=0) / len(cloud)
    left = sum((row - mean).square().sum().item() for row in cloud)
    total = sum(row.square().sum().item() for row in cloud)
    assert metrics.rank_one_distance(cloud) == pytest.approx(math.sqrt(left / total))


# --- closed forms ----------------------------------------------------------------------------


def test_equal_tokens_have_no_spread():
    x = torch.tensor([[1.0, -2.0, 2.0]], dtype=torch.float64).expand(5, 3)
    assert metrics.mean_squared_distance(x) == 0.0
    assert metrics.rank_one_distance(x) == 0.0
    assert metrics.dispersion(x) == 0.0
    assert metrics.mean_cosine(x) == pytest.approx(1.0)
    assert metrics.effective_rank(x) == pytest.approx(1.0)
    assert (metrics.largest_norm(x), metrics.mean_norm(x)) == (3.0, 3.0)
    assert metrics.interaction_energy(x, 0.1) == pytest.approx(math.exp(0.9) / 0.2)


def test_orthogonal_tokens_have_full_rank_and_no_cosine():
    x = 3 * torch.eye(4, dtype=torch.float64)
    assert metrics.effective_rank(x) == pytest.approx(4.0)
    assert metrics.mean_cosine(x) == pytest.approx(0.0, abs=1e-15)
    assert metrics.mean_cosine(x, centred=True) == pytest.approx(-1 / 3)
    assert metrics.mean_squared_distance(x) == pytest.approx(18.0)
    assert metrics.dispersion(x) == pytest.approx(1.0)
    assert metrics.rank_one_distance(x) == pytest.approx(math.sqrt(3) / 2)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_equal_singular_values_count_as_so_many_ranks(k):
    left, _ = torch.linalg.qr(normal(seeded(k), 8, 8))
    right, _ = torch.linalg.qr(normal(seeded(k + 50), 6, 6))
    x = 7.0 * left[:, :k] @ right[:k]
    assert metrics.effective_rank(x) == pytest.approx(k, rel=1e-9)


def test_two_opposite_clusters():
    """n/2 tokens at a, n/2 at -a: pairs across are 2|a| apart, and there are n^2/2 of n (n - 1)."""
    n, a = 10, torch.tensor([0.6, 0.8], dtype=torch.float64)
    x = torch.cat([a.expand(n // 2, 2), -a.expand(n // 2, 2)])
    across = (n * n / 2) / (n * (n - 1))
    assert metrics.mean_squared_distance(x) == pytest.approx(4 * across)
    assert metrics.mean_cosine(x) == pytest.approx(1 - 2 * across)
    assert metrics.effective_rank(x) == pytest.approx(1.0)
    assert metrics.rank_one_distance(x) == pytest.approx(1.0)
    assert metrics.dispersion(x) == pytest.approx(n / (n - 1))
    assert metrics.interaction_energy(x, 2.0) == pytest.approx(math.cosh(2.0) / 4)


# --- invariances -----------------------------------------------------------------------------


def test_metrics_do_not_depend_on_the_basis_or_the_order(cloud):
    q, _ = torch.linalg.qr(normal(seeded(3), 4, 4))
    turned = cloud.flip(0) @ q
    for name, values in metrics.over_time(cloud[None]).items():
        assert metrics.over_time(turned[None])[name] == pytest.approx(values), name


def test_scale_matters_to_sizes_alone(cloud):
    small, large = metrics.over_time(torch.stack([cloud, 3 * cloud])), {}
    large = {name: values[1] for name, values in small.items()}
    powers = {"largest_norm": 1, "mean_norm": 1, "mean_squared_distance": 2}
    for name, value in large.items():
        assert value == pytest.approx(3 ** powers.get(name, 0) * small[name][0]), name


def test_a_common_shift_leaves_distances_alone(cloud):
    moved = cloud + 100.0
    for function in (metrics.mean_squared_distance,):
        assert function(moved) == pytest.approx(function(cloud), rel=1e-9)
    assert metrics.mean_cosine(moved, centred=True) == pytest.approx(
        metrics.mean_cosine(cloud, centred=True), rel=1e-9
    )
    assert metrics.mean_cosine(moved) > 0.99


# --- edges -----------------------------------------------------------------------------------


def test_tokens_at_the_origin_have_no_directions_and_no_rank():
    x = torch.zeros(3, 2, dtype=torch.float64)
    assert metrics.mean_cosine(x) == 0.0
    assert metrics.effective_rank(x) == 0.0
    assert metrics.rank_one_distance(x) == 0.0
    assert metrics.dispersion(x) == 0.0


def test_a_token_at_the_origin_is_orthogonal_to_the_others():
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    assert metrics.mean_cosine(x) == pytest.approx(1 / 3)


@pytest.mark.parametrize("function", ON_PAIRS)
def test_a_single_token_has_no_pairs(function):
    with pytest.raises(InputError, match="1 token was given; means over pairs need at least 2"):
        function(torch.ones(1, 3, dtype=torch.float64))


@pytest.mark.parametrize("beta", [0.0, -1.0])
def test_the_energy_needs_a_positive_temperature(beta):
    with pytest.raises(InputError, match="positive beta"):
        metrics.interaction_energy(torch.ones(2, 3, dtype=torch.float64), beta)


def test_metrics_over_time_have_one_value_a_moment(cloud):
    found = metrics.over_time(torch.stack([cloud, 2 * cloud, 0 * cloud + 1]))
    assert {len(values) for values in found.values()} == {3}
    for name, function in (
        ("mean_cosine", metrics.mean_cosine),
        ("effective_rank", metrics.effective_rank),
        ("dispersion", metrics.dispersion),
    ):
        assert found[name][1] == function(2 * cloud)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_shapes_do_not_depend_on_sizes_whose_squares_are_out_of_range(cloud, scale):
    """Tokens of 1e200 had a mean cosine of 0, and of 1e-200 one of 1e200."""
    large = scale * cloud
    for shape in (
        metrics.mean_cosine,
        metrics.dispersion,
        metrics.rank_one_distance,
        metrics.cosine_clusters,
        metrics.effective_rank,
    ):
        assert shape(large) == pytest.approx(shape(cloud), rel=1e-12)
    for size in (metrics.largest_norm, metrics.mean_norm):
        assert size(large) / scale == pytest.approx(size(cloud), rel=1e-12)
