"""Steps: SciPy's methods as tables, the last two alike, and not fooled by rounding."""

import math

import numpy as np
import pytest
import scipy.integrate

from orbitlens.flows import steps
from orbitlens.flows.adaptive import AdaptiveRun
from orbitlens.flows.steps import Interpolant, StepLimits, Stop, first_length

PAIRS = pytest.mark.parametrize(
    ("ours", "scipy_method"),
    [(steps.DOP853, scipy.integrate.DOP853), (steps.RK45, scipy.integrate.RK45)],
    ids=["eighth", "fifth"],
)


def pendulum(y):
    """Return the motion of many pendula, each of its own length."""
    n = y.size // 2
    return np.concatenate([y[n:], -np.sin(y[:n]) * np.linspace(0.5, 2.0, n)])


def start(n=300):
    return np.random.default_rng(0).standard_normal(2 * n)


class PlainChart:
    """A vector as it is."""

    constrained = False

    def __init__(self, rate=pendulum):
        self.rate = rate

    def tidy(self, y):
        return y

    def encode(self, tokens, log_scale):
        raise NotImplementedError

    def decode(self, y):
        raise NotImplementedError

    def absolute(self, rtol, y, f):
        return 1e-8

    def log_size(self, y):
        return 0.0


def run(method, until, *, rate=pendulum, y=None, exact=None, max_steps=10_000):
    """Return the run of our integrator, and its segment."""
    limits = StepLimits(rtol=1e-6, max_steps=max_steps)
    made = AdaptiveRun(PlainChart(rate), method, limits, exact)
    return made, made.follow(start() if y is None else y, 0.0, np.array([until]))


def run_scipy(kind, until, *, even=False, y=None):
    """Return SciPy's solver after its last step and the lengths of all steps."""
    y = start() if y is None else y
    solver = kind(lambda t, x: pendulum(x), 0.0, y, until, rtol=1e-6, atol=1e-8)
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
def test_steps_are_those_of_scipy_the_last_two_alike(ours, scipy_method, until):
    made, segment = run(ours, until)
    theirs, expected = run_scipy(scipy_method, until, even=True)
    assert made.lengths == pytest.approx(expected, rel=1e-6)
    assert segment.n_evaluations == theirs.nfev
    assert np.abs(segment.y - theirs.y).max() < 1e-9  # what a difference by rounding grows to


@PAIRS
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_interpolants_are_those_of_scipy(ours, scipy_method, part):
    solver = scipy_method(lambda t, x: pendulum(x), 0.0, start(), 5.0, rtol=1e-6, atol=1e-8)
    y, h = start(), solver.h_abs
    stages = np.empty((ours.n_stages + 1, y.size))
    stages[0] = pendulum(y)
    new = ours.step(pendulum, y, h, stages)
    stages[-1] = pendulum(new)
    solver.step()
    assert solver.t == pytest.approx(h)
    inside = Interpolant.of(ours, pendulum, stages, h, y, new)
    assert np.abs(inside.at(part) - solver.dense_output()(part * solver.t)).max() < 1e-12


@PAIRS
def test_the_first_step_is_that_of_scipy(ours, scipy_method):
    solver = scipy_method(lambda t, x: pendulum(x), 0.0, start(), 5.0, rtol=1e-6, atol=1e-8)
    y = start()
    allowed = 1e-8 + 1e-6 * np.abs(y)
    found = first_length(pendulum, y, pendulum(y), allowed, 5.0, ours.order)
    assert found == pytest.approx(solver.h_abs, rel=1e-9)


@PAIRS
def test_such_steps_are_as_many_and_more_exact(ours, scipy_method):
    gains = []
    for until in np.linspace(0.7, 2.0, 14):
        exact = scipy.integrate.solve_ivp(
            lambda t, x: pendulum(x), (0, until), start(50), "DOP853", rtol=1e-13, atol=1e-14
        ).y[:, -1]
        made, mine = run(ours, until, y=start(50))
        theirs, others = run_scipy(scipy_method, until, y=start(50))
        assert len(made.lengths) <= len(others)
        errors = [np.linalg.norm(y - exact) for y in (mine.y, theirs.y)]
        gains.append(math.log10(errors[1] / errors[0]))
    assert min(gains) > -0.3
    assert np.mean(gains) > (0.2 if ours is steps.DOP853 else 0.0)


@PAIRS
def test_the_end_is_met_by_two_steps_of_equal_length(ours, scipy_method):
    made, segment = run(ours, 2.0, y=start(50))
    assert segment.t == 2.0
    assert made.lengths[-1] == pytest.approx(made.lengths[-2], rel=0.05)
    assert run_scipy(scipy_method, 2.0, y=start(50))[1][-1] < 0.9 * made.lengths[-1]


def breaks(y):
    """Fall at speed 1, and be no number below a half."""
    return np.where(y < 0.5, np.nan, -np.ones(3))


@PAIRS
def test_what_is_no_number_makes_steps_shorter_until_they_fail(ours, scipy_method):
    _, segment = run(ours, 2.0, rate=breaks, y=np.ones(3))
    assert segment.stop is Stop.STUCK
    assert 0.3 < segment.t < 0.51


@PAIRS
def test_steps_that_fail_count_against_the_limit(ours, scipy_method):
    made, segment = run(ours, 2.0, rate=breaks, y=np.ones(3), max_steps=12)
    assert (segment.stop, segment.n_steps) == (Stop.STEP_LIMIT, 12)
    assert len(made.lengths) < 12


@PAIRS
def test_a_flow_that_stands_still_takes_the_longest_steps(ours, scipy_method):
    made, segment = run(ours, 1e3, rate=lambda y: 0 * y)
    assert len(made.lengths) < 12
    assert np.array_equal(segment.y, start())


def noisy(size):
    random = np.random.default_rng(1)
    return lambda y: pendulum(y) * (1 + size * random.uniform(-1, 1, y.size))


@PAIRS
def test_rounding_does_not_shorten_steps_once_its_size_is_known(ours, scipy_method):
    exact = run(ours, 6.0)[0].lengths
    fooled = run(ours, 6.0, rate=noisy(1e-7))[0].lengths
    told = run(ours, 6.0, rate=noisy(1e-7), exact=PlainChart())[0].lengths
    assert len(told) <= len(exact) + 1
    assert len(fooled) >= len(told)
    if ours is steps.DOP853:  # the fifth-order pair's own error is above rounding here
        assert len(fooled) > len(told)
