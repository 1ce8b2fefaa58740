"""Attention with tokens in lanes: its powers of two, and its loops against plain NumPy."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from orbitlens.flows._fast.arrays import system_arrays
from orbitlens.flows._fast.lanes import columns_for, mix_lanes, padded_width
from orbitlens.flows._fast.pairs import is_symmetric, memory_for_pairs
from orbitlens.flows.system import Geometry, Mask, system_of_maps
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


NOTHING = np.empty((0, LANES))  # without memory for pairs, each query is mixed by itself


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


def lanes_mix(arrays, n, setting, rtol=0.0, parts=None, memory=NOTHING):
    out = np.zeros_like(arrays[0])
    for begin, end in parts or [(0, n)]:
        mix_lanes(*arrays, *setting, n, power_tables(rtol), begin, end, memory, out)
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


# --- pairs -----------------------------------------------------------------------------------


def symmetric_arrays(width, n, seed):
    """Return queries, keys that are a symmetric map of them, and values."""
    arrays = drawn(width, n, seed=seed)
    half = np.random.default_rng(seed).standard_normal((width, width))
    arrays[1] = (half + half.T) @ arrays[0]
    return arrays


@pytest.mark.parametrize("n", [1, 7, 8, 16, 21, 64, 72, 131, 200])
def test_pairs_of_symmetric_scores_mix_as_numpy_does(n):
    for width in (2, 3):
        arrays = symmetric_arrays(width, n, seed=n)
        setting = (0.3, *SETTINGS["full"][1:])
        expected = plain_mix(*arrays[:, :, :n], setting)
        memory = memory_for_pairs(width, arrays.shape[2])
        for rtol, near in ((1e-6, 5e-11), (1e-9, 1e-12)):
            found = lanes_mix(arrays, n, setting, rtol, memory=memory)
            np.testing.assert_allclose(found, expected, rtol=0, atol=near)
            one_by_one = lanes_mix(arrays, n, setting, rtol)
            np.testing.assert_allclose(found, one_by_one, rtol=0, atol=1e-13)
            assert n < 16 or not np.array_equal(found, one_by_one)  # another order of sums


def test_scores_too_large_for_powers_without_a_factor_are_not_taken_in_pairs():
    arrays = symmetric_arrays(2, 24, seed=1)
    setting = SETTINGS["large scores"]
    found = lanes_mix(arrays, 24, setting, 1e-9, memory=memory_for_pairs(2, 24))
    assert np.array_equal(found, lanes_mix(arrays, 24, setting, 1e-9))


def test_pairs_would_mix_scores_that_are_not_symmetric_wrongly():
    """The control: what `is_symmetric` is there for."""
    arrays = drawn(2, 24)
    found = lanes_mix(arrays, 24, SETTINGS["full"], 1e-9, memory=memory_for_pairs(2, 24))
    assert np.abs(found - plain_mix(*arrays, SETTINGS["full"])).max() > 0.1


def symmetry_of(**changes):
    """Return what is said of a system with a symmetric score map after some changes."""
    half = torch.from_numpy(np.random.default_rng(3).standard_normal((3, 3)))
    system = system_of_maps(half + half.T, torch.eye(3, dtype=torch.float64))
    return bool(is_symmetric(system_arrays(replace(system, **changes), 8), 0))


def test_symmetric_is_what_has_the_same_scores_both_ways():
    turned = torch.tensor([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]).double()
    bias, slopes = torch.ones(1, 3, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    assert symmetry_of() and symmetry_of(geometry=Geometry.SPHERE, beta=7.0)
    assert symmetry_of(w_q=2.0 * symmetric_factor(), w_k=symmetric_factor())
    for change in (
        {"w_q": turned[None]},
        {"mask": Mask.CAUSAL},
        {"window": 3},
        {"b_q": bias},
        {"b_k": bias},
        {"alibi_slopes": slopes},
        {"unnormalised": True},
    ):
        assert not symmetry_of(**change)


def symmetric_factor():
    """Return a map whose product with itself, turned round, is symmetric but for rounding."""
    return torch.from_numpy(np.random.default_rng(4).standard_normal((1, 3, 3)))


def test_heads_are_filled_up_to_what_loops_take():
    assert [padded_width(d) for d in (1, 2, 3, 4, 5, 8, 9)] == [2, 2, 3, 4, 8, 8, 12]
    assert columns_for(9, 2) == 16 and columns_for(LANES, 4) == LANES and columns_for(9, 8) == 9
