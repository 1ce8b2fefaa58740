"""The compiled integrator's own parts: its exponential, its steps, its interpolant, its limits."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from scipy.integrate import DOP853

from orbitlens.flows._fast import MOST_TOKENS, WIDEST, exponentials, fast_path, rows
from orbitlens.flows._fast.arrays import system_arrays
from orbitlens.flows._fast.attention import attend, workspace
from orbitlens.flows.charts import RawChart
from orbitlens.flows.examples import example_system
from orbitlens.flows.steps import StepLimits, Stop
from orbitlens.flows.system import Geometry
from slow_flow import normal, random_system, seeded, slow_flow

U = np.uint64


def exponential(values):
    given = np.array([values], dtype=np.float64)
    rows.exponentiate(given, U(0), U(0), U(len(values)), 0.0)
    return given[0]


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
    assert exponentials.HIGHEST == 709.0


def test_the_exponential_in_single_precision_is_exact_to_its_rounding():
    x = (-80 * np.random.default_rng(0).random(300_000)).astype(np.float32)
    single = x[None].copy()
    total = rows.exponentiate(single, U(0), U(0), U(len(x)), np.float32(0))
    exact = np.exp(x.astype(np.float64))
    assert single.dtype == np.float32
    # The argument in base 2 is rounded, which moves the result by as much as it is large.
    assert np.abs((single[0] - exact) / exact).max() < 1.5e-7 + 116 * 2.0**-24
    assert total == pytest.approx(single[0].astype(np.float64).sum(), rel=1e-5)


def test_the_exponential_in_single_precision_at_its_edges():
    x = np.array([[0.0, -1.0, -86.0, -87.0, -200.0, -np.inf]], dtype=np.float32)
    exact = np.exp(np.maximum(x.astype(np.float64), -87.0))
    rows.exponentiate(x, U(0), U(0), U(6), np.float32(0))
    np.testing.assert_allclose(x, exact, rtol=1e-5)
    assert np.isnan(exponential_single(np.nan))


def exponential_single(value):
    row = np.array([[value]], dtype=np.float32)
    rows.exponentiate(row, U(0), U(0), U(1), np.float32(0))
    return row[0, 0]


def test_weights_and_their_sum_are_taken_relative_to_the_largest_score():
    scores = np.array([[2000.0, 999.0, 1000.0, 998.0, 2000.0]])
    stretch = (U(0), U(1), U(4))
    total = rows.exponentiate(scores, *stretch, rows._largest(scores, *stretch))
    np.testing.assert_allclose(scores[0], [2000.0, *np.exp([-1.0, 0.0, -2.0]), 2000.0], rtol=1e-15)
    assert total == pytest.approx(scores[0, 1:4].sum(), rel=1e-15)


def test_scores_too_large_to_exponentiate_are_not_finite_and_never_garbage():
    """Beyond 710 the exponent's bits would overflow into the sign."""
    eye = torch.eye(2, dtype=torch.float64)[None]
    system, _ = random_system(0, d=2, r=2, w_q=eye, w_k=eye, w_v=eye, w_o=eye, unnormalised=True)
    for length in (26.0, 27.0, 30.0, 1e3):
        x = np.array([[length, 0.0], [0.0, 1.0]])
        arrays = system_arrays(system, 2)
        out = np.empty_like(x)
        attend(arrays, x.ravel(), 0.0, out.ravel(), workspace(arrays, 2))
        if length > 26.5:
            assert not np.isfinite(out[0, 0])
        else:
            assert out[0, 0] == pytest.approx(math.exp(length**2) * length / 2, rel=1e-12)


# --- the integrator --------------------------------------------------------------------------


def integrate(system, tokens, times, *, scaled=False, **limits):
    given = StepLimits(**({"rtol": 1e-8, "max_steps": 10_000} | limits))
    follow = fast_path(system, len(tokens)).follow
    y = tokens.numpy().ravel() if not scaled else np.append(tokens.numpy().ravel(), 0.0)
    return follow(y, 0.0, np.asarray(times), scaled, given)


def test_steps_and_results_are_those_of_scipys_dop853():
    """The same coefficients, error norm, first step and step control; the last two alike."""
    system, tokens = random_system(41, mask="causal")
    found = integrate(system, tokens, [0.7, 2.0])
    assert (len(found.saved), found.t, found.stop) == (2, 2.0, Stop.DONE)
    chart = RawChart(system, len(tokens))
    y = chart.encode(tokens, 0.0)
    atol = chart.absolute(1e-8, y, chart.rate(y))
    solver = DOP853(lambda t, x: chart.rate(x), 0.0, y, 2.0, rtol=1e-8, atol=atol)
    while solver.status == "running":
        left = 2.0 - solver.t
        if left / 2 < solver.h_abs:
            solver.h_abs = left if left <= 1.05 * solver.h_abs else left / 2
        solver.step()
        solver.atol = chart.absolute(1e-8, solver.y, solver.f)  # follows the cloud
        if solver.t_old <= 0.7 < solver.t:
            assert np.abs(solver.dense_output()(0.7) - found.saved[0]).max() < 1e-11
    assert np.abs(solver.y - found.saved[1]).max() < 1e-11


@pytest.mark.parametrize("where", [0.001, 0.3, 0.999])
def test_the_interpolant_has_the_accuracy_of_the_steps(where):
    system, tokens = random_system(42)
    times = np.array([where, 1.0])
    found = integrate(system, tokens, times, rtol=1e-9)
    expected = slow_flow(system, tokens, np.append(0.0, times))[1:]
    assert np.abs(np.reshape(found.saved, expected.shape) - expected).max() < 1e-8


def test_the_limit_on_steps_is_kept():
    system, tokens = random_system(43)
    found = integrate(system, tokens, [1e-9, 50.0], max_steps=4)
    assert (len(found.saved), found.n_steps, found.stop) == (1, 4, Stop.STEP_LIMIT)
    assert 0 < found.t < 50


def test_tokens_that_leave_the_range_of_sizes_are_noticed():
    tokens = normal(seeded(0), 8, 3)
    found = integrate(example_system("aligned"), tokens, [30.0], high=math.log(1e4))
    assert found.stop is Stop.RAN_AWAY
    assert 1 < found.t < 15
    found = integrate(example_system("anti-aligned"), tokens, [300.0], low=math.log(0.3))
    assert found.stop is Stop.CAME_BACK
    assert 0 < found.t < 300


def test_a_blow_up_in_finite_time_ends_the_run():
    """x' = exp(beta x^2) x from 1 is infinite at t = E_1(1)/2, about 0.1097, for beta = 1."""
    eye = torch.eye(1, dtype=torch.float64)[None]
    system, _ = random_system(0, d=1, r=1, w_q=eye, w_k=eye, w_v=eye, w_o=eye, unnormalised=True)
    found = integrate(system, torch.ones(1, 1, dtype=torch.float64), [1.0])
    assert found.stop is Stop.STUCK
    assert found.t == pytest.approx(0.21938393439552 / 2, rel=1e-6)


def test_a_cloud_whose_directions_stand_still_takes_long_steps():
    """One token in the scaled chart: u is constant, s grows linearly, however long the run."""
    system = example_system("aligned", d_model=2)
    token = torch.tensor([[0.6, 0.8]], dtype=torch.float64)
    found = integrate(system, token, [10.0, 1e6], scaled=True)
    assert found.stop is Stop.DONE
    assert found.n_steps < 20
    assert np.allclose([y[:2] for y in found.saved], [0.6, 0.8])
    assert [y[2] for y in found.saved] == pytest.approx([10.0, 1e6])


def test_threads_do_not_disturb_each_other():
    jobs = [random_system(seed, n=20, geometry=Geometry.SPHERE) for seed in range(12)]
    alone = [integrate(system, tokens, [3.0]).y for system, tokens in jobs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda job: integrate(*job, [3.0]).y, jobs))
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
    assert (fast_path(system, n).follow is not None) is fits
