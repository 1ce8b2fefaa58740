"""Ranks, patterns and steps against closed forms."""

import math

import pytest
import torch

from orbitlens.errors import InputError
from orbitlens.theory.clouds import cosine_clusters, effective_rank, shuffled_cosine
from orbitlens.theory.ranks import (
    anisotropy,
    entropy_rank,
    moment_spectrum,
    participation_ratio,
    stable_rank,
)
from orbitlens.tracing.patterns import (
    attention_entropy,
    is_monotone,
    overlap,
    sharpness,
    sink_share,
)
from orbitlens.tracing.steps import (
    lyapunov_exponents,
    pair_contraction,
    update_cosine,
    update_size,
)


def rank_k(k, n=40, d=12):
    """Return n tokens whose k singular values are equal."""
    rng = torch.Generator().manual_seed(k)
    u = torch.linalg.qr(torch.randn(n, k, generator=rng, dtype=torch.float64))[0]
    v = torch.linalg.qr(torch.randn(d, k, generator=rng, dtype=torch.float64))[0]
    return 3 * u @ v.T


@pytest.mark.parametrize("k", [1, 3, 7])
def test_equal_singular_values_count_themselves(k):
    s = torch.linalg.svdvals(rank_k(k))
    assert entropy_rank(s) == pytest.approx(k, rel=1e-6)
    assert stable_rank(s) == pytest.approx(k, rel=1e-6)
    assert participation_ratio(s.square()) == pytest.approx(k, rel=1e-6)
    assert anisotropy(s.square()) == pytest.approx(1 / k, rel=1e-6)


def test_moments_give_the_same_singular_values_as_the_tokens(generator):
    x = torch.randn(30, 6, generator=generator, dtype=torch.float64)
    from_moments = moment_spectrum(x.T @ x / 30) * math.sqrt(30)
    assert torch.allclose(from_moments, torch.linalg.svdvals(x), rtol=1e-10)
    assert entropy_rank(from_moments) == pytest.approx(effective_rank(x))


def test_no_tokens_have_no_rank():
    zero = torch.zeros(4, dtype=torch.float64)
    assert [f(zero) for f in (entropy_rank, stable_rank, participation_ratio, anisotropy)] == [
        0
    ] * 4


def test_a_gaussian_cloud_is_isotropic(generator):
    x = torch.randn(200_000, 5, generator=generator, dtype=torch.float64)
    variances = torch.linalg.eigvalsh(x.T @ x / len(x))
    assert participation_ratio(variances) == pytest.approx(5, rel=1e-3)
    assert anisotropy(variances) == pytest.approx(0.2, rel=0.02)


def test_clusters_of_directions_are_counted():
    eye = torch.eye(4, dtype=torch.float64)
    assert cosine_clusters(eye) == 4
    assert cosine_clusters(torch.cat([eye, 2 * eye, eye + 1e-6])) == 4
    assert cosine_clusters(torch.ones(5, 3, dtype=torch.float64)) == 1
    chain = torch.tensor([[math.cos(a), math.sin(a)] for a in (0.0, 0.4, 0.8)]).double()
    assert cosine_clusters(chain, threshold=math.cos(0.5)) == 1
    assert cosine_clusters(chain, threshold=math.cos(0.3)) == 3


def test_shuffling_coordinates_takes_common_directions_away(generator):
    direction = torch.tensor([1.0, -1.0] * 50).double()
    x = direction + 0.1 * torch.randn(60, 100, generator=generator, dtype=torch.float64)
    assert abs(shuffled_cosine(x, generator=generator)) < 0.05
    assert shuffled_cosine(torch.ones(4, 9).double(), generator=generator) == pytest.approx(1.0)


# --- patterns --------------------------------------------------------------------------------


def even(n):
    return torch.full((1, n, n), 1 / n, dtype=torch.float64)


def test_even_attention_and_a_single_choice():
    n = 8
    assert sharpness(even(n)).item() == pytest.approx(1 / n)
    assert attention_entropy(even(n)).item() == pytest.approx(math.log(n))
    assert overlap(even(n)).item() == pytest.approx(1 / n)
    own = torch.eye(n, dtype=torch.float64)[None]
    assert sharpness(own).item() == 1
    assert attention_entropy(own).item() == 0
    assert overlap(own).item() == 0
    assert sink_share(own).item() == 1 / 1  # every token is seen by one row, which gives it all


def test_a_sink_takes_its_share_and_even_attention_has_none():
    p = even(6) * 0.4
    p[..., 2] += 0.6
    assert sink_share(p).item() == pytest.approx(0.6 + 0.4 / 6)
    assert overlap(p).item() > overlap(even(6)).item()


def test_the_last_token_of_a_causal_context_is_no_sink():
    n = 10
    p = torch.ones(1, n, n, dtype=torch.float64).tril()
    p[..., :-1, :] /= p[..., :-1, :].sum(dim=-1, keepdim=True)
    p[..., -1, :] = 0
    p[..., -1, -1] = 1.0  # the last row looks at itself alone
    assert sink_share(p).item() < 0.5


@pytest.mark.parametrize(
    ("values", "course"),
    [
        ([1.0, 2.0, 2.0], "rising"),
        ([3.0, 1.0], "falling"),
        ([1.0, 1.0], "constant"),
        ([1.0, 2.0, 1.0], "neither"),
    ],
)
def test_the_course_of_an_energy(values, course):
    assert is_monotone(values) == course


# --- steps -----------------------------------------------------------------------------------


def test_scaling_has_a_known_update_and_contraction(generator):
    x = torch.randn(10, 4, generator=generator, dtype=torch.float64)
    assert update_size(x, 3 * x) == pytest.approx(2)
    assert update_cosine(x, 3 * x) == pytest.approx(1)
    assert update_cosine(x, 0.5 * x) == pytest.approx(-1)
    assert pair_contraction(x, 0.5 * x + 7) == pytest.approx(math.log(0.5))


def test_one_token_has_no_contraction():
    one = torch.ones(1, 3, dtype=torch.float64)
    with pytest.raises(InputError, match="at least 2"):
        pair_contraction(one, one)


def test_the_lyapunov_exponent_of_a_linear_map_is_that_of_its_largest_eigenvalue(generator):
    basis = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    matrix = (
        basis
        @ torch.diag(torch.tensor([1.7, 0.6, -0.3], dtype=torch.float64))
        @ torch.linalg.inv(basis)
    )
    start = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    growth = lyapunov_exponents([lambda x: x @ matrix] * 60, start, generator=generator)
    assert growth[-1] == pytest.approx(math.log(1.7), abs=1e-9)


def test_the_lyapunov_exponent_of_the_logistic_map_is_ln_2(generator):
    steps = [lambda x: 4 * x * (1 - x)] * 1_000
    start = torch.tensor([[0.1234567]], dtype=torch.float64)
    growth = lyapunov_exponents(steps, start, generator=generator)
    assert sum(growth) / len(growth) == pytest.approx(math.log(2), abs=0.05)


def test_a_map_that_forgets_has_no_growth(generator):
    start = torch.ones(2, 2, dtype=torch.float64)
    assert lyapunov_exponents([torch.zeros_like], start, generator=generator) == [-math.inf]
