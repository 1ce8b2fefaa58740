"""Charts: the same flow in other coordinates, and what becomes of tokens that run away."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from orbitlens.errors import InputError
from orbitlens.flows.charts import RUNAWAY, Chart, RawChart, ScaledChart, log_size
from orbitlens.flows.examples import example_system
from orbitlens.flows.integrate import EVENTS, IntegrateOptions, integrate_flow
from orbitlens.flows.outcome import log_sizes
from orbitlens.flows.steps import Stop
from orbitlens.flows.system import Geometry, system_of_maps
from orbitlens.trajectory import Status
from slow_flow import ENCODINGS, normal, random_system, seeded, slow_field, slow_flow

BOTH = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "scipy"])


def run(system, tokens, until, **options):
    return integrate_flow(system, tokens, until=until, options=IntegrateOptions(**options))


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
    assert y[:-1] @ chart.rate(y)[:-1] == pytest.approx(0.0, abs=1e-15)  # along the sphere


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_scaled_chart_has_the_flow_of_the_raw_one(encoding):
    """x' = (u' + s' u) e^s, with biases and positions that do not scale."""
    system, tokens = random_system(2, heads=2, biased=True, encoding=encoding)
    chart = ScaledChart(system, len(tokens))
    y = chart.encode(3 * tokens, 0.0)
    rate = chart.rate(y)
    velocity = (rate[:-1] + rate[-1] * y[:-1]) * math.exp(y[-1])
    expected = slow_field(system, 3 * tokens.numpy()).ravel()
    assert np.abs(velocity - expected).max() < 1e-12 * np.abs(expected).max()


@pytest.mark.parametrize("kind", [RawChart, ScaledChart])
def test_tolerances_are_relative_to_the_cloud(kind):
    system, tokens = random_system(3)
    chart = kind(system, len(tokens))
    clouds = [chart.encode(s * tokens, 0.0) for s in (1.0, 100.0)]
    small, large = (chart.absolute(1e-6, y, chart.rate(y)) for y in clouds)
    ratio = 100.0 if kind is RawChart else 1.0
    assert large / small == pytest.approx(ratio)


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
@pytest.mark.parametrize("kind", [RawChart, ScaledChart])
def test_sizes_are_known_where_their_squares_are_out_of_range(kind, scale):
    system, tokens = random_system(4)
    y = kind(system, len(tokens)).encode(scale * tokens, 0.0)
    assert np.isfinite(y).all()
    expected = math.log(tokens.norm(dim=-1).max().item()) + math.log(scale)
    assert kind(system, len(tokens)).log_size(y) == pytest.approx(expected, rel=1e-14)
    assert log_size(scale * tokens, 0.0) == pytest.approx(expected, rel=1e-14)


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
    assert [event.what for event in found.events] == [EVENTS[Stop.RAN_AWAY]]


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
    raw = run(system, tokens, 16.0, scaled_chart=False, **settings)
    scaled = run(system, tokens, 16.0, scaled_chart=True, **settings)
    auto = run(system, tokens, 16.0, **settings)
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
def test_the_bound_that_changes_the_chart_is_the_one_that_says_diverged(compiled):
    system, tokens = example_system("aligned"), normal(seeded(0), 64, 3)
    switch = run(system, tokens, 20.0, compiled=compiled).events[0].time
    at_it = run(system, tokens, switch, compiled=compiled)
    before = run(system, tokens, switch - 2.0, compiled=compiled)
    assert (at_it.status, before.status) == (Status.DIVERGED, Status.FINISHED)
    assert at_it.times[-1].item() == switch
    growth = log_size(before.final, 0.0) - log_size(tokens, 0.0)
    assert RUNAWAY - 4.0 < growth < RUNAWAY


@BOTH
def test_both_integrators_have_one_bound(compiled):
    """It was 1e4 of a bound on scores in one, and of another bound in the other."""
    system, tokens = runaway()
    for beta in (0.1, 100.0):
        found = run(replace(system, beta=beta), tokens, 30.0, compiled=compiled, n_saved=300)
        changed = found.log_scale != 0
        first = int(changed.int().argmax())
        sizes = log_sizes(found.unit_tokens, found.log_scale) - log_size(tokens, 0.0)
        assert RUNAWAY < sizes[first] < RUNAWAY + 3.0  # a step may be that long
        assert (sizes[:first] > RUNAWAY + 3.0).sum() == 0


@BOTH
def test_a_cloud_on_its_way_out_is_not_taken_for_a_settled_one(compiled):
    """In the scaled chart unit tokens stand still while the tokens themselves run."""
    system, tokens = example_system("aligned"), 1e120 * normal(seeded(0), 64, 3)
    found = run(system, tokens, 5.0, compiled=compiled)
    assert (found.log_scale[1:] != 0).all()
    assert found.status is Status.FINISHED
    assert gap(found.unit_tokens[-1], tokens / tokens.norm()) > 0.1  # and it did move


@BOTH
def test_sizes_shrink_as_fast_as_they_do_and_not_as_they_did(compiled):
    """A square under V = -I at beta 1e4: the pull weakens with scores. Coasting gave 4.5e-5."""
    eye = torch.eye(2, dtype=torch.float64)
    system = replace(system_of_maps(eye, -eye), beta=1e4)
    square = torch.tensor([[1, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.float64)
    for scaled in (None, True):
        found = run(system, square, 10.0, scaled_chart=scaled, compiled=compiled)
        expected = torch.from_numpy(slow_flow(system, square, [0.0, 10.0], rtol=1e-11)[-1])
        assert expected.norm(dim=-1).min() > 4e-3
        assert gap(found.final, expected) < 1e-4


@BOTH
@pytest.mark.parametrize("start", [-1.0, -5.0, -9.0, -1e7])
def test_tokens_pass_through_the_origin_in_the_raw_chart(start, compiled):
    """x' = 0.1 x + 1 exactly; coasting ended at -0.24 where 3.19 is true."""
    one = torch.ones(1, 1, dtype=torch.float64)
    system = replace(system_of_maps(one, 0.1 * one), beta=1e4, drift=torch.ones(1).double())
    found = run(system, start * one, 8.0, compiled=compiled)
    expected = (start + 10) * math.exp(0.8) - 10
    assert found.final.item() == pytest.approx(expected, rel=1e-5)


@BOTH
def test_tokens_that_come_back_return_to_the_raw_chart(compiled):
    """A drift of 1e8 pulls them out, V = -1 holds them there; one of 1e120 falls to it."""
    one = torch.ones(1, 1, dtype=torch.float64)
    system = replace(system_of_maps(one, -one), drift=torch.tensor([3.0], dtype=torch.float64))
    found = run(system, 1e120 * one, 300.0, compiled=compiled)
    assert [event.what for event in found.events] == [EVENTS[Stop.CAME_BACK]]
    assert found.final.item() == pytest.approx(3.0, rel=1e-5)
    assert found.status is not Status.DIVERGED


@BOTH
def test_huge_tokens_that_shrink_are_not_called_diverged(compiled):
    eye = torch.eye(2, dtype=torch.float64)
    square = torch.tensor([[1, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.float64)
    found = run(system_of_maps(eye, -eye), 1e200 * square, 10.0, compiled=compiled)
    assert found.status is Status.FINISHED
    assert gap(found.final / 1e200, math.exp(-10) * square) < 1e-5
    assert found.n_clusters == 4
    assert "inf" not in found._repr_html_()


@BOTH
def test_huge_value_maps_run_away_or_stop_but_are_never_wrong(compiled):
    eye, tokens = torch.eye(2, dtype=torch.float64), normal(seeded(0), 6, 2)
    options = {"compiled": compiled, "max_steps": 500}
    out = run(system_of_maps(eye, 1e200 * eye), tokens, 10.0, **options)
    assert out.status is Status.DIVERGED
    back = run(system_of_maps(eye, -1e200 * eye), tokens, 10.0, **options)
    assert back.status is Status.STEP_LIMIT
    assert torch.equal(back.final, tokens)


@BOTH
def test_weights_that_are_not_normalised_have_no_scaled_chart(compiled):
    system, tokens = random_system(5, unnormalised=True)
    with pytest.raises(InputError, match="softmax"):
        run(system, tokens, 1.0, scaled_chart=True, compiled=compiled)


def test_what_grows_more_slowly_is_known_only_relative_to_the_cloud():
    """One direction grows like e^t, the other stays: it ends below the tolerance, not at e^-60."""
    eye = torch.eye(2, dtype=torch.float64)
    system = system_of_maps(0 * eye, torch.diag(torch.tensor([1.0, 0.0], dtype=torch.float64)))
    tokens = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    found = run(system, tokens, 60.0, rtol=1e-6, scaled_chart=True)
    slow = found.unit_tokens[-1, :, 1].abs().max().item()
    assert math.exp(-60) < slow < 1e-5
    assert found.log_scale[-1].item() == pytest.approx(60 + math.log(2) / 2, abs=1e-4)
