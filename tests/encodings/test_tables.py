"""Tables of absolute positions: planted ends and periods are found, others are not."""

import math

import pytest
import torch

from orbitlens.encodings.tables import table_reading


def walk(n, generator):
    """Return rows that drift: each is like the one before it."""
    return torch.randn(n, 32, generator=generator, dtype=torch.float64).cumsum(dim=0) * 0.3


@pytest.mark.parametrize("end", [60, 140])
def test_rows_that_training_never_met_are_told_from_the_others(end, generator):
    table = walk(200, generator)
    table[end:] = 0.02 * torch.randn(200 - end, 32, generator=generator)
    found = table_reading(table)
    assert abs(found.trained - end) <= 5
    assert found.norm_rest < 0.2 * found.norm_first


def test_a_table_that_is_smooth_to_its_end_was_trained_to_its_end(generator):
    found = table_reading(walk(200, generator))
    assert found.trained == 200
    assert found.norm_rest is None
    assert found.neighbours > 0.9


def test_random_rows_do_not_say(generator):
    found = table_reading(torch.randn(128, 32, generator=generator, dtype=torch.float64))
    assert found.trained is None
    assert found.period is None
    assert abs(found.neighbours) < 0.2


def test_a_planted_period_is_found(generator):
    angle = 2 * math.pi * torch.arange(128, dtype=torch.float64)[:, None] / 16
    planted = torch.cat([angle.sin(), angle.cos()], dim=1) @ torch.randn(
        2, 32, generator=generator, dtype=torch.float64
    )
    noise = 0.2 * torch.randn(128, 32, generator=generator, dtype=torch.float64)
    found = table_reading(planted + noise)
    assert found.period == pytest.approx(16)
    assert found.period_share > 0.8


def test_the_share_of_position_is_that_of_variances(generator):
    positions = torch.randn(400, 8, generator=generator, dtype=torch.float64)
    tokens = 3 * torch.randn(400, 8, generator=generator, dtype=torch.float64)
    assert table_reading(positions, tokens).variance_share == pytest.approx(0.1, abs=0.02)


def test_few_rows_are_no_error(generator):
    assert table_reading(walk(3, generator)).trained is None
    assert table_reading(walk(1, generator)).n_rows == 1
