"""Intervals against known answers, and how often they contain the truth."""

import math

import pytest
import torch
from scipy import stats

from orbitlens.errors import InputError
from orbitlens_papers import estimate
from orbitlens_papers.estimate import Estimate


def test_the_interval_of_a_mean_is_students():
    found = estimate.mean([1.0, 2.0, 4.0])
    low, high = stats.t.interval(0.95, 2, loc=7 / 3, scale=stats.sem([1.0, 2.0, 4.0]))
    assert found.value == pytest.approx(7 / 3)
    assert (found.low, found.high) == pytest.approx((low, high))


def test_one_value_has_no_bounds_and_survives_json():
    found = estimate.mean([3.0])
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert found.to_json()["low"] is None
    assert Estimate.from_json(found.to_json()) == found


def test_pairing_removes_what_seeds_have_in_common():
    common = torch.randn(6, generator=torch.Generator().manual_seed(0)).tolist()
    worse = [x + 0.1 + 0.01 * k for k, x in enumerate(common)]
    paired = estimate.difference(worse, common)
    assert paired.low > 0
    assert estimate.mean(worse).low < estimate.mean(common).high  # apart they overlap
    with pytest.raises(InputError, match="paired"):
        estimate.difference([1.0], [1.0, 2.0])


@pytest.mark.parametrize(("count", "n"), [(0, 5), (5, 5), (50, 100), (1, 3)])
def test_the_interval_of_a_share_is_wilsons(count, n):
    found = estimate.share(count, n, of="systems")
    expected = stats.binomtest(count, n).proportion_ci(0.95, method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_an_interval_of_a_mean_contains_the_truth_nineteen_times_in_twenty(generator):
    draws = torch.randn(2000, 5, generator=generator).tolist()
    hits = sum(found.low < 0 < found.high for found in map(estimate.mean, draws))
    assert 0.93 < hits / 2000 < 0.97


def test_bounds_are_the_extremes():
    assert estimate.largest([1.0, 3.0, 2.0], of="models").high == 3.0
    assert estimate.smallest([1.0, 3.0, 2.0], of="models").low == 1.0


def test_a_correlation_has_fishers_interval():
    x = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    y = [0.1, 0.9, 2.3, 2.8, 4.4, 4.7]
    found = estimate.correlation(x, y, of="heads")
    expected = stats.pearsonr(x, y)
    interval = expected.confidence_interval(0.95)
    assert found.value == pytest.approx(expected.statistic)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(InputError, match="finite"):
        Estimate(value=value, low=-math.inf, high=math.inf, n=1, how="broken")


def test_no_values_are_refused():
    with pytest.raises(InputError, match="no values"):
        estimate.mean([])
    with pytest.raises(InputError, match="not a share"):
        estimate.share(3, 2, of="systems")


def test_a_median_of_censored_numbers_is_bounded_by_what_is_known_of_them(generator):
    """Whatever a censored number would have been, the interval of the exact ones lies within."""
    exact = sorted((torch.randn(12, generator=generator).abs() * 10).tolist())
    lows, highs = [min(x, 8.0) for x in exact], [x if x < 8 else math.inf for x in exact]
    whole, known = estimate.median(exact, exact), estimate.median(lows, highs)
    assert (whole.low, whole.high) == (exact[2], exact[9])
    assert known.low <= whole.low and known.value <= whole.value and known.high >= whole.high


def test_the_interval_of_a_median_covers_as_often_as_it_says(generator):
    draws = torch.randn(2000, 12, generator=generator).exp().tolist()
    hits = sum(found.low < 1 < found.high for found in (estimate.median(x, x) for x in draws))
    assert 0.95 < hits / 2000 < 0.975


def test_five_numbers_give_a_median_no_interval():
    assert estimate.median([1.0] * 5, [1.0] * 5).high == math.inf
    with pytest.raises(InputError, match="pairs in order"):
        estimate.median([2.0], [1.0])
