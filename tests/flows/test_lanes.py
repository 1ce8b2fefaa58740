"""Attention with tokens in lanes: its powers of two, and its loops against plain NumPy."""

import math

import numpy as np
import pytest

from orbitlens.flows._fast.lanes import columns_for, mix_lanes, padded_width
from orbitlens.running._compiled.powers import (
    FULL,
    LANES,
    MIDDLE,
    MIDDLE_FROM,
    SHORT,
    SHORT_FROM,
    power_tables,
)


def polynomial_error(terms):
    """Return the largest relative error of a polynomial for 2^x on its interval."""
    x = np.linspace(-0.5, 0.5, 20_001, dtype=np.longdouble)
    found = sum(np.longdouble(c) * x**k for k, c in enumerate(terms))
    return float(np.abs(found / np.exp2(x) - 1).max())


def test_polynomials_are_as_exact_as_a_tolerance_asks():
    assert polynomial_error(FULL) < 1e-16
    for terms, least in ((SHORT, SHORT_FROM), (MIDDLE, MIDDLE_FROM)):
        assert polynomial_error(terms) < 1e-4 * least * 1.1
        assert polynomial_error(terms[:-1]) > 1e-4 * least  # a shorter one would not do
    chosen = {1e-6: SHORT, SHORT_FROM: SHORT, SHORT_FROM / 2: MIDDLE, MIDDLE_FROM: MIDDLE}
    for rtol, terms in (chosen | {MIDDLE_FROM / 2: FULL, 0.0: FULL}).items():
        exact, quick = power_tables(rtol)
        assert (len(exact), len(quick)) == (len(FULL) + 2, len(terms) + 2)


# --- attention -------------------------------------------------------------------------------


def visible(n, causal, window):
    offsets = np.arange(n)[:, None] - np.arange(n)
    seen = offsets >= 0 if causal else np.ones((n, n), dtype=bool)
    return seen & (np.abs(offsets) < window) if window else seen


def plain_mix(q, k, v, setting):
    scale, slope, causal, window, unnormalised = setting
    n = q.shape[1]
    distance = np.abs(np.arange(n)[:, None] - np.arange(n))
    s = scale * (q.T @ k) - slope * distance
    s = np.where(visible(n, causal, window), s, -math.inf)
    if unnormalised:
        return (np.exp(s) @ v.T / n).T
    p = np.exp(s - s.max(axis=1, keepdims=True))
    return (p @ v.T / p.sum(axis=1, keepdims=True)).T


def drawn(width, n, seed=0):
    """Return queries, keys and values, filled up to whole blocks."""
    random = np.random.default_rng(seed)
    arrays = np.zeros((3, width, columns_for(n, width)))
    arrays[:, :, :n] = random.standard_normal((3, width, n))
    return arrays


def lanes_mix(arrays, n, setting, rtol=0.0, parts=None):
    out = np.zeros_like(arrays[0])
    for begin, end in parts or [(0, n)]:
        mix_lanes(*arrays, *setting, n, power_tables(rtol), begin, end, out)
    return out[:, :n]


SETTINGS = {
    "full": (1.0, 0.0, False, 0, False),
    "causal": (1.0, 0.0, True, 0, False),
    "window": (1.0, 0.0, False, 4, False),
    "causal window": (1.0, 0.0, True, 4, False),
    "biased": (1.0, 0.7, True, 0, False),
    "large scores": (1e4, 0.0, False, 0, False),
    "large, causal, window": (1e4, 0.0, True, 4, False),
    "a choice": (1e200, 0.0, False, 0, False),
    "not normalised": (0.3, 0.0, True, 0, True),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_lanes_mix_as_numpy_does(name):
    for width in (2, 3, 4):
        for n in (1, 5, 8, 21):
            arrays = drawn(width, n, seed=n)
            found = lanes_mix(arrays, n, SETTINGS[name])
            expected = plain_mix(*arrays[:, :, :n], SETTINGS[name])
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)


def test_a_short_polynomial_moves_a_mean_by_its_error_and_no_more():
    arrays = drawn(3, 40)
    full, short = (lanes_mix(arrays, 40, SETTINGS["full"], rtol) for rtol in (1e-12, 1e-6))
    assert 1e-15 < np.abs(short - full).max() < 5e-12


def test_blocks_shared_out_give_the_same_numbers():
    arrays = drawn(2, 40)
    for name in ("causal window", "large scores"):
        whole = lanes_mix(arrays, 40, SETTINGS[name])
        parts = [(24, 40), (0, 8), (8, 24)]
        assert np.array_equal(lanes_mix(arrays, 40, SETTINGS[name], parts=parts), whole)


def test_a_number_that_is_none_stays_so():
    arrays = drawn(2, 16)
    arrays[0, 0, 3] = math.nan
    found = lanes_mix(arrays, 16, SETTINGS["full"])
    assert np.isnan(found[:, 3]).all()
    assert np.isfinite(np.delete(found, 3, axis=1)).all()


def test_heads_are_filled_up_to_what_loops_take():
    assert [padded_width(d) for d in (1, 2, 3, 4, 5, 8, 9)] == [2, 2, 3, 4, 8, 8, 12]
    assert columns_for(9, 2) == 16 and columns_for(LANES, 4) == LANES and columns_for(9, 8) == 9
