"""The compiled integrator's own parts: its exponential, its steps, its interpolant, its limits."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from scipy.integrate import DOP853

from orbitlens.flows import kernel, loops, powers
from orbitlens.flows.charts import RawChart
from orbitlens.flows.compiled import MOST_TOKENS, WIDEST, fits_kernel, kernel_system
from orbitlens.flows.examples import example_system
from orbitlens.flows.system import Geometry
from slow_flow import normal, random_system, seeded, slow_flow

U = np.uint64


def exponential(values):
    rows = np.array([values], dtype=np.float64)
    loops.exponentiate(rows, U(0), U(0), U(len(values)), 0.0)
    return rows[0]


def relative_errors(x):
    exact = np.exp(x.astype(np.longdouble))  # 64 bits of mantissa where float64 has 53
    return np.abs((exponential(x) - exact) / exact)


# --- the exponential -------------------------------------------------------------------------


def test_the_exponential_is_exact_to_rounding():
    random = -708 * np.random.default_rng(0).random(300_000)
    near_zero = -np.logspace(-320, 0, 50_000)
    # Where the argument is a multiple of ln 2, and half-way between two: the ends of a reduction.
    seams = -math.log(2) * np.arange(0, 2042) / 2
    seams = np.concatenate([seams, np.nextafter(seams, -800), np.nextafter(seams[1:], 0)])
    assert np.finfo(np.longdouble).nmant > 60, "the reference needs a longer float"
    for x in (random, near_zero, seams):
        assert relative_errors(x[x >= -708]).max() < 3e-16


def test_the_exponential_at_its_edges():
    smallest = exponential([-708.0])[0]
    assert smallest == pytest.approx(math.exp(-708), rel=1e-15)
    assert exponential([0.0, -0.0, -5e-324]).tolist() == [1.0, 1.0, 1.0]
    # Below its range it stays at the smallest value: nothing beside the 1 of the largest score.
    assert exponential([-708.5, -1e5, -1e300, -math.inf]).tolist() == [smallest] * 4
    assert np.isnan(exponential([math.nan])[0])


def test_the_exponential_of_positive_scores_serves_unnormalised_attention():
    x = np.linspace(0, 709, 50_001)
    assert relative_errors(x).max() < 3e-16
    assert powers.HIGHEST == 709.0


def test_powers_of_two_are_exact_to_rounding():
    x = 999 * (2 * np.random.default_rng(0).random(300_000) - 1)
    seams = np.arange(-1998, 1999) / 2
    x = np.concatenate([x, seams, np.nextafter(seams, -1e4), np.nextafter(seams, 1e4)])
    exact = np.exp2(x.astype(np.longdouble))
    rows = x[None].copy()
    total = loops.raise_two(rows, U(0), U(0), U(len(x)), (0, len(x)))
    assert np.abs((rows[0] - exact) / exact).max() < 8e-16
    assert total == pytest.approx(rows[0].sum(), rel=1e-13)


def test_powers_in_single_precision_are_exact_to_its_rounding():
    x = 100 * (2 * np.random.default_rng(0).random(300_000) - 1)
    seams = np.arange(-200, 201) / 2
    x = np.concatenate([x, seams]).astype(np.float32)
    rows = x[None].copy()
    total = loops.raise_two(rows, U(0), U(0), U(len(x)), (0, len(x)))
    exact = np.exp2(x.astype(np.float64))
    assert rows.dtype == np.float32
    assert np.abs((rows[0] - exact) / exact).max() < 1.5e-7
    assert total == pytest.approx(rows[0].astype(np.float64).sum(), rel=1e-5)


def test_the_exponential_in_single_precision_at_its_edges():
    x = np.array([[0.0, -1.0, -86.0, -87.0, -200.0, -np.inf]], dtype=np.float32)
    exact = np.exp(np.maximum(x.astype(np.float64), -87.0))
    loops.exponentiate(x, U(0), U(0), U(6), np.float32(0))
    np.testing.assert_allclose(x, exact, rtol=1e-5)
    assert np.isnan(exponential_single(np.nan))


def exponential_single(value):
    row = np.array([[value]], dtype=np.float32)
    loops.exponentiate(row, U(0), U(0), U(1), np.float32(0))
    return row[0, 0]


def test_weights_and_their_sum_are_taken_relative_to_the_largest_score():
    rows = np.array([[2000.0, 999.0, 1000.0, 998.0, 2000.0]])
    stretch = (U(0), U(1), U(4))
    total = loops.exponentiate(rows, *stretch, loops._largest(rows, *stretch))
    np.testing.assert_allclose(rows[0], [2000.0, *np.exp([-1.0, 0.0, -2.0]), 2000.0], rtol=1e-15)
    assert total == pytest.approx(rows[0, 1:4].sum(), rel=1e-15)


def test_scores_too_large_to_exponentiate_are_not_finite_and_never_garbage():
    """Beyond 710 the exponent's bits would overflow into the sign."""
    eye = torch.eye(2, dtype=torch.float64)[None]
    system, _ = random_system(0, d=2, r=2, w_q=eye, w_k=eye, w_v=eye, w_o=eye, unnormalised=True)
    for length in (26.0, 27.0, 30.0, 1e3):
        x = np.array([[length, 0.0], [0.0, 1.0]])
        arrays = kernel_system(system, 2)
        out = np.empty_like(x)
        kernel.attention(arrays, x, 0.0, out, kernel._workspace(arrays, 2))
        if length > 26.5:
            assert not np.isfinite(out[0, 0])
        else:
            assert out[0, 0] == pytest.approx(math.exp(length**2) * length / 2, rel=1e-12)


# --- the integrator --------------------------------------------------------------------------


def integrate(system, tokens, times, *, rtol=1e-8, max_steps=10_000, limit=math.inf):
    arrays = kernel_system(system, len(tokens))
    y = tokens.numpy().ravel().copy()
    moments = np.asarray(times)
    return kernel.integrate(arrays, y, 0.0, moments, False, len(tokens), rtol, max_steps, limit)


def test_steps_and_results_are_those_of_scipys_dop853():
    """The same coefficients, error norm, first step and step control; the last two alike."""
    system, tokens = random_system(41, mask="causal")
    moments, kept, _, t, _, _, status = integrate(system, tokens, [0.7, 2.0])
    assert (kept, t, status) == (2, 2.0, kernel.DONE)
    chart = RawChart(system, len(tokens))
    y = chart.encode(tokens, 0.0)
    rtol, atol = chart.tolerances(1e-8, y)
    solver = DOP853(chart.rate, 0.0, y, 2.0, rtol=rtol, atol=atol)
    while solver.status == "running":
        left = 2.0 - solver.t
        if left / 2 < solver.h_abs:
            solver.h_abs = left if left <= 1.05 * solver.h_abs else left / 2
        solver.step()
        if solver.t_old <= 0.7 < solver.t:
            assert np.abs(solver.dense_output()(0.7) - moments[0]).max() < 1e-11
    assert np.abs(solver.y - moments[1]).max() < 1e-11


@pytest.mark.parametrize("where", [0.001, 0.3, 0.999])
def test_the_interpolant_has_the_accuracy_of_the_steps(where):
    system, tokens = random_system(42)
    times = np.array([where, 1.0])
    found = integrate(system, tokens, times, rtol=1e-9)[0]
    expected = slow_flow(system, tokens, np.append(0.0, times))[1:]
    assert np.abs(found.reshape(expected.shape) - expected).max() < 1e-8


def test_the_limit_on_steps_is_kept():
    system, tokens = random_system(43)
    _, kept, _, t, steps, _, status = integrate(system, tokens, [1e-9, 50.0], max_steps=4)
    assert (kept, steps, status) == (1, 4, kernel.STEP_LIMIT)
    assert 0 < t < 50


def test_tokens_that_run_away_are_noticed():
    system = example_system("aligned")
    tokens = normal(seeded(0), 8, 3)
    *_, t, _, _, status = integrate(system, tokens, [30.0], limit=math.log(1e4))
    assert status == kernel.RUNS_AWAY
    assert 1 < t < 10


def test_a_blow_up_in_finite_time_ends_the_run():
    """x' = exp(beta x^2) x from 1 is infinite at t = E_1(1)/2, about 0.1097, for beta = 1."""
    eye = torch.eye(1, dtype=torch.float64)[None]
    system, _ = random_system(0, d=1, r=1, w_q=eye, w_k=eye, w_v=eye, w_o=eye, unnormalised=True)
    *_, t, _, _, status = integrate(system, torch.ones(1, 1, dtype=torch.float64), [1.0])
    assert status == kernel.STUCK
    assert t == pytest.approx(0.21938393439552 / 2, rel=1e-6)


def test_a_cloud_whose_directions_stand_still_coasts():
    """One token in the scaled chart: u is constant, s grows linearly, however long the run."""
    system = example_system("aligned", d_model=2)
    y = torch.tensor([[0.6, 0.8]], dtype=torch.float64)
    arrays = kernel_system(system, 1)
    start = np.append(y.numpy().ravel(), 3.0)
    moments, kept, _, _, steps, _, status = kernel.integrate(
        arrays, start, 0.0, np.array([10.0, 1e6]), True, 1, 1e-8, 1000, math.inf
    )
    assert (kept, status) == (2, kernel.DONE)
    assert steps < 20
    assert np.allclose(moments[:, :2], [0.6, 0.8])
    assert moments[:, 2].tolist() == pytest.approx([13.0, 3.0 + 1e6])


def test_threads_do_not_disturb_each_other():
    jobs = [random_system(seed, n=20, geometry=Geometry.SPHERE) for seed in range(12)]
    alone = [integrate(system, tokens, [3.0])[0] for system, tokens in jobs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda job: integrate(*job, [3.0])[0], jobs))
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("n", "d", "noise", "fits"),
    [
        (MOST_TOKENS, WIDEST, 0.0, True),
        (MOST_TOKENS + 1, WIDEST, 0.0, False),
        (4, WIDEST + 1, 0.0, False),
        (4, 4, 0.1, False),
    ],
)
def test_only_small_systems_without_noise_go_to_the_compiled_integrator(n, d, noise, fits):
    system, _ = random_system(0, d=d, noise=noise)
    assert fits_kernel(system, n) is fits
