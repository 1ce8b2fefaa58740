"""Summaries of symmetric spectra: exact while small, else estimated with an honest error."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orbitlens.errors import CheckpointError
from orbitlens.theory.spectrum import eigenvalues, summarise_symmetric, symmetric_eigenvalues
from random_heads import PROPERTY, SEEDS, normal, orthogonal, seeded, symmetric_part

D = 220


def wigner(source):
    return normal(source, D, D)  # not symmetric: the summary is of its symmetric part


def shifted(source):
    return normal(source, D, D) + 8.0 * torch.eye(D, dtype=torch.float64)


def low_rank(source):
    return normal(source, D, 12) @ normal(source, 12, D)


def with_outliers(source):
    spikes = torch.zeros(D, dtype=torch.float64)
    spikes[:3] = torch.tensor([60.0, -45.0, 30.0])
    q = orthogonal(source, D)
    return (q * spikes) @ q.T + normal(source, D, D) / D**0.5


def decaying(source):
    q = orthogonal(source, D)
    return (q * torch.logspace(0, -6, D, dtype=torch.float64)) @ q.T


def mostly_antisymmetric(source):
    m = normal(source, D, D)
    return m - m.T + 0.01 * normal(source, D, D)


KINDS = [wigner, shifted, low_rank, with_outliers, decaying, mostly_antisymmetric]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def matrix(request):
    return request.param(seeded(7))


def exact(matrix):
    return torch.linalg.eigvalsh(symmetric_part(matrix))


def test_the_estimated_nuclear_norm_is_within_its_error_or_two_percent(matrix):
    found = summarise_symmetric(matrix, dense_limit=64)
    norm = exact(matrix).abs().sum().item()
    assert found.relative_error > 0
    assert abs(found.nuclear_norm - norm) < max(4 * found.relative_error, 0.02) * norm
    assert found.relative_error < 0.25  # few directions weigh most: six starts cannot do better


def test_estimated_extremes_are_reached_from_inside(matrix):
    found, eigenvalues = summarise_symmetric(matrix, dense_limit=64), exact(matrix)
    slack = 1e-5 * eigenvalues.abs().max().item()  # single precision
    width = (eigenvalues[-1] - eigenvalues[0]).item()
    assert eigenvalues[0].item() - slack < found.smallest < eigenvalues[0].item() + 0.05 * width
    assert eigenvalues[-1].item() - 0.05 * width < found.largest < eigenvalues[-1].item() + slack


def test_the_trace_is_exact_even_where_the_rest_is_estimated(matrix):
    found = summarise_symmetric(matrix, dense_limit=64)
    slack = 1e-14 * matrix.diagonal().abs().sum().item()
    assert found.trace == pytest.approx(matrix.diagonal().sum().item(), rel=0, abs=slack)
    assert found.dimension == D


def test_the_same_matrix_gets_the_same_answer_twice(matrix):
    assert summarise_symmetric(matrix, dense_limit=64) == summarise_symmetric(
        matrix, dense_limit=64
    )


def test_estimating_leaves_the_matrix_as_it_was(matrix):
    for kept in (matrix, matrix.float()):
        copy = kept.clone()
        summarise_symmetric(kept, dense_limit=64)
        assert torch.equal(kept, copy)


def test_the_whole_spectrum_is_computed_where_it_is_asked_for(matrix):
    eigenvalues = exact(matrix)
    for limit in (None, D):
        found = summarise_symmetric(matrix, dense_limit=limit)
        assert found.relative_error == 0.0
        assert found.nuclear_norm == pytest.approx(eigenvalues.abs().sum().item(), rel=1e-12)
        assert (found.smallest, found.largest) == (eigenvalues[0].item(), eigenvalues[-1].item())


def test_tiles_of_any_size_give_the_same_summary(matrix, monkeypatch):
    whole = [summarise_symmetric(matrix, dense_limit=limit) for limit in (None, 64)]
    monkeypatch.setattr("orbitlens.theory.spectrum.TILE", 33)
    tiled = [summarise_symmetric(matrix, dense_limit=limit) for limit in (None, 64)]
    for one, other in zip(whole, tiled, strict=True):
        assert other.nuclear_norm == pytest.approx(one.nuclear_norm, rel=1e-6)
        assert (other.trace, other.relative_error) == pytest.approx((one.trace, one.relative_error))


def test_an_estimate_is_told_apart_from_an_exact_answer():
    m = wigner(seeded(7))
    estimate, answer = summarise_symmetric(m, dense_limit=64), summarise_symmetric(m)
    assert estimate.nuclear_norm != pytest.approx(answer.nuclear_norm, rel=1e-9)
    assert estimate.relative_error > 1e-4


@pytest.mark.parametrize(("low", "high"), [(-2.0, 3.0), (2.0, 3.0), (-3.0, -2.0), (1.0, 1.0)])
def test_few_distinct_eigenvalues_end_the_iteration_early_and_do_no_harm(low, high):
    """With two of them nothing but rounding is left after two steps; it must not look like more."""
    q = orthogonal(seeded(1), D)
    values = torch.full((D,), low, dtype=torch.float64)
    values[: D // 2] = high
    found = summarise_symmetric((q * values) @ q.T, dense_limit=64)
    assert found.smallest == pytest.approx(low, abs=1e-4)
    assert found.largest == pytest.approx(high, abs=1e-4)
    norm = values.abs().sum().item()
    assert found.nuclear_norm == pytest.approx(norm, rel=4 * found.relative_error + 1e-3)


def test_a_zero_matrix_has_no_error_and_no_nan():
    found = summarise_symmetric(torch.zeros(D, D, dtype=torch.float64), dense_limit=64)
    assert (found.smallest, found.largest, found.nuclear_norm) == (0.0, 0.0, 0.0)
    assert (found.trace, found.relative_error) == (0.0, 0.0)


@PROPERTY
@given(st.integers(1, 12), SEEDS, st.floats(-20, 20).filter(lambda a: abs(a) > 1e-3))
def test_exact_summaries_scale_with_the_matrix(d, seed, a):
    m = normal(seeded(seed), d, d)
    one, scaled = summarise_symmetric(m), summarise_symmetric(a * m)
    assert scaled.nuclear_norm == pytest.approx(abs(a) * one.nuclear_norm, rel=1e-12)
    assert scaled.trace == pytest.approx(a * one.trace, rel=1e-12)
    edges = sorted([a * one.smallest, a * one.largest])
    slack = 1e-12 * abs(a) * one.nuclear_norm
    assert [scaled.smallest, scaled.largest] == pytest.approx(edges, abs=slack)


@PROPERTY
@given(st.integers(1, 12), SEEDS)
def test_exact_summaries_do_not_depend_on_the_basis_or_the_antisymmetric_part(d, seed):
    source = seeded(seed)
    m, q, twist = normal(source, d, d), orthogonal(source, d), normal(source, d, d)
    one = summarise_symmetric(m)
    other = summarise_symmetric(q @ (m + twist - twist.T) @ q.T)
    slack = 1e-11 * (1 + one.nuclear_norm)
    for name in ("smallest", "largest", "trace", "nuclear_norm"):
        assert getattr(other, name) == pytest.approx(getattr(one, name), abs=slack)


@pytest.mark.parametrize("size", [1e-290, 1e-200, 1e-40, 1.0, 1e40, 1e200])
def test_eigenvalues_are_those_of_the_matrix_at_size_one(size):
    m = normal(seeded(3), 24, 24)
    power = 2.0 ** round(math.log2(size))  # scaling by it rounds nothing
    symmetric = symmetric_part(m)
    expected = torch.linalg.eigvalsh(symmetric)
    assert torch.allclose(symmetric_eigenvalues(symmetric * power) / power, expected, atol=1e-12)
    whole = torch.sort(torch.linalg.eigvals(m).abs()).values
    scaled = torch.sort(eigenvalues(m * power).abs()).values / power
    assert torch.allclose(scaled, whole, atol=1e-12)


def test_where_lapack_gives_up_another_basis_is_tried(monkeypatch):
    m, real, asked = normal(seeded(4), 12, 12), torch.linalg.eigvals, []

    def stubborn(matrix):
        asked.append(matrix)
        if len(asked) < 3:
            raise torch.linalg.LinAlgError("did not converge")
        return real(matrix)

    expected = torch.sort(real(m).abs()).values
    monkeypatch.setattr(torch.linalg, "eigvals", stubborn)
    assert torch.allclose(torch.sort(eigenvalues(m).abs()).values, expected, atol=1e-10)
    assert len(asked) == 3
    monkeypatch.setattr(torch.linalg, "eigvals", lambda m: stubborn(asked.clear() or m))
    with pytest.raises(CheckpointError, match="LAPACK does not converge"):
        eigenvalues(m)
