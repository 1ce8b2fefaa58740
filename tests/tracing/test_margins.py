"""Saturation and margin of attention rows: closed forms, limits, ties, and what is left out."""

import math

import pytest
import torch

from orbitlens.tracing.margins import (
    FEWEST_SEEN,
    SelectionSums,
    margin,
    margin_share,
    saturation,
    seen,
    selected,
)

INF = math.inf


def rows(*given):
    return torch.tensor(given, dtype=torch.float64)


@pytest.mark.parametrize(("n", "m", "gap"), [(5, 1, 0.7), (8, 3, 2.0), (50, 1, 9.0)])
def test_saturation_of_a_row_of_two_heights_has_a_closed_form(n, m, gap):
    scores = rows([gap] * m + [0.0] * (n - m)) - 3.0
    share = m * math.exp(gap) / (m * math.exp(gap) + n - m)
    expected = (share - m / n) / (1 - m / n)
    assert saturation(scores).item() == pytest.approx(expected, rel=1e-12)
    assert margin(scores).item() == pytest.approx(gap, rel=1e-12)
    assert margin_share(scores).item() == pytest.approx(1.0, rel=1e-12)


def test_saturation_is_one_less_total_variation_stretched_to_begin_at_zero(generator):
    scores = 2 * torch.randn(40, 9, generator=generator, dtype=torch.float64)
    p = scores.softmax(dim=-1)
    limit = (scores == scores.amax(dim=-1, keepdim=True)).double()
    overlap = 1 - (p - limit).abs().sum(dim=-1) / 2
    torch.testing.assert_close(saturation(scores), (overlap - 1 / 9) / (8 / 9))


def test_saturation_rises_with_the_scale_of_scores_from_even_to_saturated(generator):
    scores = torch.randn(20, 12, generator=generator, dtype=torch.float64)
    scores[:, 3] = scores.amax(dim=-1)  # a tie in every row
    course = torch.stack([saturation(c * scores) for c in (1e-4, 0.1, 1.0, 10.0, 100.0, 1e6)])
    assert bool((course.diff(dim=0) >= -1e-12).all())
    assert course[0].max() < 1e-3
    torch.testing.assert_close(course[-1], torch.ones(20, dtype=torch.float64))


def test_the_share_of_the_range_ignores_scale_and_offset_and_margins_follow_scale(generator):
    scores = torch.randn(20, 12, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(margin_share(7 * scores - 2), margin_share(scores))
    torch.testing.assert_close(margin(7 * scores - 2), 7 * margin(scores))
    order = torch.randperm(12, generator=generator)
    torch.testing.assert_close(margin(scores[:, order]), margin(scores))
    torch.testing.assert_close(saturation(scores[:, order]), saturation(scores))


def test_hidden_tokens_count_for_nothing():
    whole, hidden = rows([2.0, 0.5, -1.0]), rows([2.0, -INF, 0.5, -1.0, -INF])
    for function in (saturation, margin, margin_share):
        assert function(hidden).item() == function(whole).item()
    assert seen(hidden).item() == 3
    assert selected(hidden).tolist() == [[True, False, False, False, False]]


def test_equal_tokens_are_selected_together_and_near_ones_are_not():
    assert selected(rows([5.0, 5.0 - 1e-9, 1.0])).tolist() == [[True, True, False]]
    assert selected(rows([5.0, 5.0 - 1e-3, 1.0])).tolist() == [[True, False, False]]
    assert margin(rows([5.0, 5.0, 1.0])).item() == 4.0
    assert margin(rows([5.0, 4.0, 5.0, -5.0])).item() == 1.0
    assert margin_share(rows([5.0, 4.0, 5.0, -5.0])).item() == pytest.approx(0.1)


def test_large_scores_neither_overflow_nor_lose_the_margin():
    scores = rows([5000.0, 3000.0, -4000.0])
    assert saturation(scores).item() == 1.0
    assert margin(scores).item() == 2000.0


def test_means_leave_out_rows_that_cannot_choose():
    hidden = -INF
    causal = rows(
        [9.0, hidden, hidden, hidden],  # sees itself alone
        [3.0, 0.0, hidden, hidden],  # sees two
        [1.0, 1.0, 1.0, hidden],  # all equal
        [2.0, 0.0, 0.0, 0.0],  # chooses
    )
    sums = SelectionSums.empty(1)
    sums.add(causal[None])
    share = math.exp(2) / (math.exp(2) + 3)
    assert FEWEST_SEEN == 3
    assert sums.rows.item() == 1
    assert sums.means(0) == pytest.approx(((share - 0.25) / 0.75, 2.0, 1.0))


def test_a_head_without_a_row_that_chooses_has_no_score_and_not_a_high_one():
    sums = SelectionSums.empty(2)
    scores = torch.zeros(2, 6, 6, dtype=torch.float64)
    scores[1, :, 0] = 1.0
    sums.add(scores)
    assert sums.means(0) is None
    assert sums.means(1) is not None


def test_adding_contexts_one_by_one_is_the_mean_over_all_rows(generator):
    scores = torch.randn(5, 3, 7, 7, generator=generator, dtype=torch.float64)
    sums = SelectionSums.empty(3)
    for one in scores:
        sums.add(one)
    for h in range(3):
        expected = [f(scores[:, h]).mean().item() for f in (saturation, margin, margin_share)]
        assert sums.means(h) == pytest.approx(tuple(expected))
