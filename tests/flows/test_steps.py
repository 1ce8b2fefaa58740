"""Steps of our solvers: SciPy's own, the last two alike, and not fooled by rounding."""

import math

import numpy as np
import pytest
from scipy.integrate import DOP853, RK45

from orbitlens.flows.steps import EighthOrder, FifthOrder, move, squared_errors

PAIRS = pytest.mark.parametrize(
    ("ours", "scipy"), [(EighthOrder, DOP853), (FifthOrder, RK45)], ids=["eighth", "fifth"]
)


def pendulum(_, y):
    """Return the motion of many pendula, each of its own length."""
    n = y.size // 2
    return np.concatenate([y[n:], -np.sin(y[:n]) * np.linspace(0.5, 2.0, n)])


def start(n=3000):
    """Return more coordinates than are summed together, and not a multiple of them."""
    return np.random.default_rng(0).standard_normal(2 * n)


def run(kind, until, *, even=False, fun=pendulum, y=None, **options):
    """Return the solver after its last step and the lengths of all steps."""
    solver = kind(fun, 0.0, start() if y is None else y, until, rtol=1e-6, atol=1e-8, **options)
    lengths = []
    while solver.status == "running":
        left = until - solver.t
        if even and left / 2 < solver.h_abs:
            solver.h_abs = left if left <= 1.05 * solver.h_abs else left / 2
        solver.step()
        lengths.append(solver.t - solver.t_old)
    return solver, lengths


@PAIRS
@pytest.mark.parametrize("until", [0.4, 3.0, 11.0])
def test_steps_are_those_of_scipy_the_last_two_alike(ours, scipy, until):
    mine, lengths = run(ours, until)
    theirs, expected = run(scipy, until, even=True)
    assert lengths == pytest.approx(expected, rel=1e-6)
    assert mine.nfev == theirs.nfev
    assert np.abs(mine.y - theirs.y).max() < 1e-9  # what a difference by rounding grows to
    assert np.abs(mine.f - theirs.f).max() < 1e-9
    middle = (mine.t + mine.t_old) / 2
    assert np.abs(mine.dense_output()(middle) - theirs.dense_output()(middle)).max() < 1e-9


@PAIRS
def test_such_steps_are_as_many_and_more_exact(ours, scipy):
    gains = []
    for until in np.linspace(0.7, 2.0, 14):
        exact = DOP853(pendulum, 0.0, start(50), until, rtol=1e-13, atol=1e-14)
        while exact.status == "running":
            exact.step()
        mine, lengths = run(ours, until, y=start(50))
        theirs, others = run(scipy, until, y=start(50))
        assert len(lengths) <= len(others)
        errors = [np.linalg.norm(solver.y - exact.y) for solver in (mine, theirs)]
        gains.append(math.log10(errors[1] / errors[0]))
    assert min(gains) > -0.3
    assert np.mean(gains) > (0.2 if ours is EighthOrder else 0.0)


@PAIRS
def test_the_end_is_met_by_two_steps_of_equal_length(ours, scipy):
    mine, lengths = run(ours, 2.0, y=start(50))
    assert mine.t == 2.0
    assert lengths[-1] == pytest.approx(lengths[-2], rel=0.05)
    assert run(scipy, 2.0, y=start(50))[1][-1] < 0.9 * lengths[-1]


@PAIRS
def test_a_step_that_fails_is_tried_again_shorter(ours, scipy):
    mine, lengths = run(ours, 30.0, first_step=9.0)
    assert lengths[0] < 9.0
    assert mine.nfev > len(lengths) * mine.n_stages + 2


@PAIRS
def test_what_is_no_number_makes_steps_shorter_until_they_fail(ours, scipy):
    def breaks(t, y):
        return np.where(t > 0.5, np.nan, -y)

    solver = ours(breaks, 0.0, np.ones(3), 2.0, rtol=1e-6, atol=1e-8)
    while solver.status == "running":
        message = solver.step()
    assert solver.status == "failed"
    assert "step size" in message
    assert 0.3 < solver.t < 0.51


@PAIRS
def test_a_flow_that_stands_still_takes_the_longest_steps(ours, scipy):
    solver, lengths = run(ours, 1e3, fun=lambda t, y: 0 * y)
    assert len(lengths) < 12
    assert np.array_equal(solver.y, start())


def noisy(size):
    random = np.random.default_rng(1)
    return lambda t, y: pendulum(t, y) * (1 + size * random.uniform(-1, 1, y.size))


@PAIRS
def test_rounding_does_not_shorten_steps_once_its_size_is_known(ours, scipy):
    exact = run(ours, 6.0)[1]
    fooled = run(ours, 6.0, fun=noisy(1e-7))[1]
    solver = ours(noisy(1e-7), 0.0, start(), 6.0, rtol=1e-6, atol=1e-8)
    wrong = pendulum(0.0, solver.y) - solver.f
    allowed = 1e-8 + 1e-6 * np.abs(solver.y)
    solver.rounding = float(np.sqrt(np.mean((wrong / allowed) ** 2)))
    told = 0
    while solver.status == "running":
        solver.step()
        told += 1
    assert told <= len(exact) + 1
    assert len(fooled) >= told
    if ours is EighthOrder:  # the fifth-order pair's own error is above rounding here
        assert len(fooled) > told


def test_sums_are_those_of_the_tables():
    random = np.random.default_rng(2)
    stages, y = random.standard_normal((13, 5000)), random.standard_normal(5000)
    weights = np.where(np.arange(13) % 3 == 0, 0.0, random.standard_normal(13))
    out = np.empty(5000)
    move(y, stages, weights, 7, 0.5, out)
    assert np.abs(out - (y + 0.5 * weights[:7] @ stages[:7])).max() < 1e-13
    estimators = random.standard_normal((2, 13))
    allowed = 0.1 + 0.01 * np.maximum(np.abs(y), np.abs(out))
    expected = (((estimators @ stages) / allowed) ** 2).sum(axis=1)
    found = squared_errors(stages, estimators, y, out, 0.01, 0.1)
    assert found == pytest.approx(expected, rel=1e-12)
