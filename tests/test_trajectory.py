"""A trajectory says what happened in words, and keeps tokens of any size."""

import dataclasses
import math

import pytest
import torch

from orbitlens.trajectory import ENDINGS, Event, Status, Trajectory


def trajectory(**changes):
    fields = {
        "times": torch.tensor([0.0, 1.0, 2.5], dtype=torch.float64),
        "unit_tokens": torch.ones(3, 4, 2, dtype=torch.float64),
        "log_scale": torch.tensor([0.0, 1.0, 2000.0], dtype=torch.float64),
        "status": Status.FINISHED,
        "status_time": 2.5,
        "n_clusters": 1,
        "n_evaluations": 12,
        "n_steps": 1,
        "events": (),
    }
    return Trajectory(**(fields | changes))


def test_tokens_are_unit_tokens_times_their_scale():
    found = trajectory()
    assert torch.equal(found.tokens[0], torch.ones(4, 2, dtype=torch.float64))
    assert found.tokens[1, 0, 0].item() == pytest.approx(math.e)
    assert torch.isinf(found.tokens[2]).all()
    assert torch.equal(found.final, found.tokens[-1])


def test_a_coordinate_of_zero_stays_zero_at_any_scale():
    units = torch.ones(3, 4, 2, dtype=torch.float64)
    units[..., 1] = 0.0
    found = trajectory(unit_tokens=units)
    assert (found.tokens[..., 1] == 0).all()
    assert torch.isinf(found.final[..., 0]).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "ran to t = 2.5; tokens neither ran away nor settled"),
        (
            {"status": Status.DIVERGED, "status_time": 1.25},
            "tokens ran away: they left every bounded region at t = 1.25",
        ),
        (
            {"status": Status.CONVERGED, "status_time": 0.5},
            "all tokens settled at one point at t = 0.5",
        ),
        (
            {"status": Status.COLLAPSED, "status_time": 0.5, "n_clusters": 3},
            "tokens collapsed to 3 clusters at t = 0.5",
        ),
        (
            {"status": Status.STEP_LIMIT, "status_time": 2.7},
            "stopped at t = 2.7 by the limit on steps: ask for more steps, a looser tolerance or "
            "a shorter time",
        ),
    ],
)
def test_the_ending_says_what_happened_and_when(changes, words):
    assert trajectory(**changes).ending == words


def test_every_status_has_an_ending():
    assert set(ENDINGS) == set(Status)


def test_trajectories_and_events_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        trajectory().n_steps = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        Event(time=1.0, what="x").time = 2.0
