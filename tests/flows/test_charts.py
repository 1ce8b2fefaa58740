"""Charts: the same flow in other coordinates, and what becomes of tokens that run away."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from orbitlens.errors import InputError
from orbitlens.flows.charts import Chart, RawChart, ScaledChart, logit_spread
from orbitlens.flows.examples import example_system
from orbitlens.flows.integrate import SWITCHED, SimulationOptions, simulate
from orbitlens.flows.system import Geometry, system_of_maps
from orbitlens.trajectory import Status
from slow_flow import ENCODINGS, normal, random_system, seeded, slow_field, slow_flow

BOTH = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "scipy"])


def run(system, tokens, until, **options):
    return simulate(system, tokens, until=until, options=SimulationOptions(**options))


def runaway():
    """Return the flow of V = diag(1, 1/2, -1/2) and 64 tokens: they run away along one axis."""
    v = torch.diag(torch.tensor([1.0, 0.5, -0.5], dtype=torch.float64))
    return system_of_maps(torch.eye(3, dtype=torch.float64), v), normal(seeded(0), 64, 3)


def gap(one, other):
    return ((one - other).norm() / other.norm()).item()


# --- one chart at a time ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", [RawChart, ScaledChart])
def test_a_chart_gives_back_what_it_was_given(kind):
    system, tokens = random_system(1)
    chart = kind(system, len(tokens))
    assert isinstance(chart, Chart)
    found, log_scale = chart.decode(chart.encode(tokens, 0.7))
    assert torch.allclose(found * math.exp(log_scale), tokens * math.exp(0.7), atol=1e-14)


def test_the_scaled_chart_keeps_unit_length():
    system, tokens = random_system(1)
    chart = ScaledChart(system, len(tokens))
    y = chart.encode(tokens, 2.0)
    assert np.linalg.norm(y[:-1]) == pytest.approx(1.0, abs=1e-15)
    drifted = np.append(1.01 * y[:-1], y[-1])
    tidied = chart.tidy(drifted)
    assert np.linalg.norm(tidied[:-1]) == pytest.approx(1.0, abs=1e-15)
    assert tidied[-1] == pytest.approx(y[-1] + math.log(1.01))
    assert y[:-1] @ chart.rate(0.0, y)[:-1] == pytest.approx(0.0, abs=1e-15)  # along the sphere


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_scaled_chart_has_the_flow_of_the_raw_one(encoding):
    """x' = (u' + s' u) e^s, with biases and positions that do not scale."""
    system, tokens = random_system(2, heads=2, biased=True, encoding=encoding)
    chart = ScaledChart(system, len(tokens))
    y = chart.encode(3 * tokens, 0.0)
    rate = chart.rate(0.0, y)
    velocity = (rate[:-1] + rate[-1] * y[:-1]) * math.exp(y[-1])
    expected = slow_field(system, 3 * tokens.numpy()).ravel()
    assert np.abs(velocity - expected).max() < 1e-12 * np.abs(expected).max()


@pytest.mark.parametrize("kind", [RawChart, ScaledChart])
def test_tolerances_are_relative_to_the_cloud(kind):
    system, tokens = random_system(3)
    chart = kind(system, len(tokens))
    small, large = (chart.tolerances(1e-6, chart.encode(s * tokens, 0.0)) for s in (1.0, 100.0))
    assert small[0] == large[0] == 1e-6
    ratio = 100.0 if kind is RawChart else 1.0
    assert large[1] / small[1] == pytest.approx(ratio)


def test_the_spread_of_scores_is_bounded_from_above():
    for seed in range(20):
        system, tokens = random_system(seed, heads=2)
        system = replace(system, beta=1.7)
        scores = 1.7 * (tokens @ system.w_q) @ (tokens @ system.w_k).transpose(-1, -2)
        bound = logit_spread(system, tokens, 0.0)
        assert scores.abs().max().item() <= math.exp(bound) * (1 + 1e-12)
        assert logit_spread(system, tokens, 3.0) == pytest.approx(bound + 6.0)
    assert logit_spread(replace(system, beta=0.0), tokens, 0.0) == -math.inf


# --- running away ----------------------------------------------------------------------------


@BOTH
def test_tokens_that_run_away_end_with_directions_and_a_scale(compiled):
    system, tokens = runaway()
    until = 5000.0 if compiled else 200.0
    found = run(system, tokens, until, compiled=compiled)
    assert found.status is Status.DIVERGED
    assert "ran away" in found.ending
    assert len(found.times) == 65
    assert torch.isfinite(found.unit_tokens).all()
    assert found.n_evaluations < 20_000
    # Along the leading eigenvector, at the rate of its eigenvalue.
    directions = found.unit_tokens[-1] / found.unit_tokens[-1].norm(dim=-1, keepdim=True)
    assert directions[:, 0].abs().min() > 1 - 1e-9
    assert set(directions[:, 0].sign().tolist()) == {-1.0, 1.0}
    speed = (found.log_scale[-1] - found.log_scale[-2]) / (found.times[-1] - found.times[-2])
    assert speed.item() == pytest.approx(1.0, rel=1e-6)
    assert [event.what for event in found.events] == [SWITCHED]


def test_the_tokens_themselves_are_infinite_where_a_float_cannot_hold_them():
    system, tokens = runaway()
    tokens[:, 2] = 0.0  # stays 0: not a number times infinity
    found = run(system, tokens, 5000.0)
    assert torch.isinf(found.final[:, 0]).all()
    assert (found.final[:, 2] == 0).all()
    assert not found.tokens.isnan().any()


@BOTH
def test_both_charts_agree_while_the_raw_one_lasts(compiled):
    system, tokens = runaway()
    settings = {"rtol": 1e-9, "n_saved": 9, "compiled": compiled}
    raw = run(system, tokens, 8.0, scaled_chart=False, **settings)
    scaled = run(system, tokens, 8.0, scaled_chart=True, **settings)
    auto = run(system, tokens, 8.0, **settings)
    for moment in range(9):
        assert gap(scaled.tokens[moment], raw.tokens[moment]) < 1e-7
        assert gap(auto.tokens[moment], raw.tokens[moment]) < 1e-7
    assert (raw.log_scale == 0).all()
    assert not raw.events
    assert auto.log_scale[0] == 0 < auto.log_scale[-1]


def test_the_raw_chart_agrees_with_the_slow_flow_at_large_scores():
    system, tokens = runaway()
    expected = torch.from_numpy(slow_flow(system, tokens[:6], [0.0, 6.0], rtol=1e-11)[-1])
    found = run(system, tokens[:6], 6.0, rtol=1e-9)
    assert found.events
    assert gap(found.final, expected) < 1e-7


@BOTH
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_runs_away_alike_in_both_charts(encoding, compiled):
    system, tokens = random_system(4, n=6, mask="causal", encoding=encoding, biased=True)
    fast = replace(system, w_v=2.5 * system.w_v)
    raw = run(fast, tokens, 4.0, rtol=1e-9, scaled_chart=False, compiled=compiled)
    scaled = run(fast, tokens, 4.0, rtol=1e-9, scaled_chart=True, compiled=compiled)
    assert scaled.log_scale[-1] > 3
    assert gap(scaled.final, raw.final) < 1e-6


def test_the_size_of_the_start_does_not_matter_to_the_scaled_chart():
    """exp(s) u with a start of length 1e200: scores would be 1e400."""
    system, tokens = runaway()
    found = run(system, 1e150 * tokens, 3.0, scaled_chart=True)
    hard = run(system, 1e50 * tokens, 3.0, scaled_chart=True)
    assert torch.isfinite(found.unit_tokens).all()
    assert gap(found.unit_tokens[-1], hard.unit_tokens[-1]) < 1e-5


@BOTH
@pytest.mark.parametrize("geometry", [g for g in Geometry if g is not Geometry.FREE])
def test_other_geometries_have_no_scaled_chart(geometry, compiled):
    system, tokens = random_system(5, geometry=geometry)
    with pytest.raises(InputError, match="free flows"):
        run(system, tokens, 1.0, scaled_chart=True, compiled=compiled)


@BOTH
def test_tokens_without_a_size_have_no_scaled_chart(compiled):
    system, tokens = random_system(5)
    with pytest.raises(InputError, match="all of these are 0"):
        run(system, 0 * tokens, 1.0, scaled_chart=True, compiled=compiled)


@BOTH
def test_a_run_that_ends_as_it_would_change_chart_is_a_finished_one(compiled):
    system, tokens = example_system("aligned"), normal(seeded(0), 64, 3)
    switch = run(system, tokens, 10.0, compiled=compiled).events[0].time
    found = run(system, tokens, switch, compiled=compiled)
    assert found.status is Status.FINISHED
    assert found.times[-1].item() == switch


@BOTH
def test_a_cloud_on_its_way_out_is_not_taken_for_one_at_rest(compiled):
    """In the scaled chart unit tokens stand still while the tokens themselves run."""
    system, tokens = example_system("aligned"), 100 * normal(seeded(0), 64, 3)
    found = run(system, tokens, 5.0, compiled=compiled)
    assert found.events
    assert found.status is Status.FINISHED
    assert gap(found.final, math.exp(5.0) * tokens) > 0.1  # and it did move


def test_what_grows_more_slowly_is_known_only_relative_to_the_cloud():
    """One direction grows like e^t, the other stays: it ends below the tolerance, not at e^-60."""
    eye = torch.eye(2, dtype=torch.float64)
    system = system_of_maps(0 * eye, torch.diag(torch.tensor([1.0, 0.0], dtype=torch.float64)))
    tokens = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    found = run(system, tokens, 60.0, rtol=1e-6, scaled_chart=True)
    slow = found.unit_tokens[-1, :, 1].abs().max().item()
    assert math.exp(-60) < slow < 1e-5
    assert found.log_scale[-1].item() == pytest.approx(60 + math.log(2) / 2, abs=1e-4)
