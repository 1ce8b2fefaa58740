"""How a run ended: status, time, clusters and fate, each told apart from its neighbours."""

import math
from dataclasses import replace

import pytest
import torch

from flow_runs import trajectory
from orbitlens.flows.charts import RUNAWAY
from orbitlens.flows.examples import example_system
from orbitlens.flows.integrate import EVENTS, IntegrateOptions, Method, integrate_flow
from orbitlens.flows.outcome import (
    CLUSTER,
    Fate,
    cluster_labels,
    count_clusters,
    describe_end,
    fate,
    log_sizes,
)
from orbitlens.flows.steps import Stop
from orbitlens.flows.system import Geometry, system_of_maps
from orbitlens.trajectory import Status
from slow_flow import normal, random_system, seeded

EYE = torch.eye(3, dtype=torch.float64)
BOTH = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "scipy"])


def run(system, tokens, until, **options):
    return integrate_flow(system, tokens, until=until, options=IntegrateOptions(**options))


def path(*moments, log_scale=None):
    """Return what `describe_end` takes, from moments at times 0, 1, 2 ..."""
    tokens = torch.stack([torch.as_tensor(m, dtype=torch.float64) for m in moments])
    times = torch.arange(len(moments), dtype=torch.float64)
    scales = torch.zeros_like(times) if log_scale is None else torch.tensor(log_scale).double()
    return times, tokens, scales


# --- clusters --------------------------------------------------------------------------------


def slow_clusters(points, radius):
    """Merge, until nothing changes, whatever is linked by a gap of at most `radius`."""
    labels = list(range(len(points)))
    changed = True
    while changed:
        changed = False
        for i in range(len(points)):
            for j in range(len(points)):
                close = (points[i] - points[j]).norm().item() <= radius
                if close and labels[i] != labels[j]:
                    labels[i] = labels[j] = min(labels[i], labels[j])
                    changed = True
    return labels


@pytest.mark.parametrize("seed", range(8))
def test_clusters_are_chains_of_short_gaps(seed):
    points = torch.rand(40, 2, generator=seeded(seed), dtype=torch.float64)
    for radius in (0.01, 0.08, 0.15, 0.3):
        found = cluster_labels(points, radius)
        expected = slow_clusters(points, radius)
        assert count_clusters(points, radius) == len(set(expected))
        pairs = set(zip(found.tolist(), expected, strict=True))
        assert len(pairs) == len(set(expected))  # the same partition under other names


def test_one_token_is_one_cluster():
    assert count_clusters(torch.zeros(1, 3, dtype=torch.float64), 0.1) == 1


# --- endings from saved moments --------------------------------------------------------------


def test_a_cloud_is_said_to_run_away_when_it_has_grown_a_millionfold():
    start = [[1.0, 0.0], [0.0, 1.0]]
    near = torch.tensor(start) * 0.99e6
    far = torch.tensor(start) * 1.01e6
    assert describe_end(Geometry.FREE, *path(start, near)).status is Status.FINISHED
    end = describe_end(Geometry.FREE, *path(start, near, far, 2 * far))
    assert (end.status, end.time, end.n_clusters) == (Status.DIVERGED, 2.0, 2)


def test_growth_counts_the_scale():
    start = [[1.0, 0.0], [0.0, 1.0]]
    grown = RUNAWAY + 0.1
    end = describe_end(Geometry.FREE, *path(start, start, start, log_scale=[0.0, 5.0, grown]))
    assert (end.status, end.time) == (Status.DIVERGED, 2.0)


def test_a_large_start_must_grow_as_much_as_any_and_a_small_one_to_a_size_worth_the_name():
    big = torch.tensor([[1e8, 0.0], [0.0, 1.0]])
    assert describe_end(Geometry.FREE, *path(big, 10 * big)).status is Status.FINISHED
    tiny = torch.tensor([[1e-8, 0.0], [0.0, 1e-8]])
    assert describe_end(Geometry.FREE, *path(tiny, 1e7 * tiny)).status is Status.FINISHED


def test_tokens_at_rest_in_clusters_are_counted_from_when_they_sat_still():
    start = [[0.0, 0.0], [1.0, 0.0], [0.0, 5.0]]
    moving = [[0.4, 0.0], [0.6, 0.0], [0.0, 5.0]]
    still = [[0.5, 0.0], [0.5, 1e-6], [0.0, 5.0]]
    end = describe_end(Geometry.FREE, *path(start, moving, still, still))
    assert (end.status, end.time, end.n_clusters) == (Status.COLLAPSED, 2.0, 2)


def test_one_cluster_at_rest_is_convergence():
    start, still = [[0.0, 0.0], [1.0, 0.0]], [[0.5, 0.0], [0.5, 0.0]]
    end = describe_end(Geometry.FREE, *path(start, still, still))
    assert (end.status, end.time, end.n_clusters) == (Status.CONVERGED, 1.0, 1)


def test_tokens_that_reached_each_other_at_the_last_moment_are_not_at_rest_yet():
    start, moving = [[0.0, 0.0], [1.0, 0.0]], [[0.3, 0.0], [0.7, 0.0]]
    last = [[0.5, 0.0], [0.5, 0.0]]
    assert describe_end(Geometry.FREE, *path(start, moving, last)).status is Status.FINISHED


def test_a_cluster_that_travels_on_is_not_at_rest():
    moments = [[[t, 0.0], [t, 1e-9]] for t in range(5)]
    moments[0] = [[0.0, 0.0], [1.0, 0.0]]
    assert describe_end(Geometry.FREE, *path(*moments)).status is Status.FINISHED


def test_directions_cluster_where_lengths_are_regulated():
    """Pre-LN tokens grow along fixed directions: clusters of directions, not of points."""
    start = [[1.0, 0.0], [0.0, 1.0]]
    moments = [[[2.0 * t, 0.0], [5.0 * t, 1e-5]] for t in (1, 2, 3)]
    end = describe_end(Geometry.PRE_LN, *path(start, *moments))
    assert (end.status, end.n_clusters) == (Status.CONVERGED, 1)
    assert describe_end(Geometry.FREE, *path(start, *moments)).status is Status.FINISHED


def test_tokens_that_start_as_one_are_one_cluster_whatever_their_size():
    rounding = [[1.0, 0.0], [1.0, 1e-15]]
    end = describe_end(Geometry.FREE, *path([[1.0, 0.0]] * 2, rounding, rounding))
    assert end.n_clusters == 1


def test_sizes_are_those_of_the_largest_token():
    _, tokens, _ = path([[3.0, 4.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]])
    sizes = log_sizes(tokens, torch.tensor([2.0, 0.0], dtype=torch.float64))
    assert sizes[0].item() == pytest.approx(math.log(5) + 2)
    assert math.isfinite(sizes[1].item())


# --- endings of real runs --------------------------------------------------------------------


@BOTH
def test_each_status_is_reached_by_a_flow_that_earns_it(compiled):
    tokens = normal(seeded(18), 20, 3)
    sphere = replace(system_of_maps(EYE, EYE), geometry=Geometry.SPHERE)
    one = run(sphere, tokens, 40.0, compiled=compiled)
    assert (one.status, one.n_clusters) == (Status.CONVERGED, 1)
    assert 0 < one.status_time < 40
    many = run(replace(sphere, beta=60.0), tokens, 40.0, compiled=compiled)
    assert many.status is Status.COLLAPSED
    assert 1 < many.n_clusters < 20
    assert f"{many.n_clusters} clusters" in many.ending
    away = run(system_of_maps(EYE, EYE), tokens, 30.0, compiled=compiled)
    assert away.status is Status.DIVERGED
    assert 5 < away.status_time < 30
    still = run(system_of_maps(EYE, -EYE), tokens, 5.0, compiled=compiled)
    assert still.status is Status.FINISHED
    cut = run(sphere, tokens, 40.0, max_steps=3, compiled=compiled)
    assert cut.status is Status.STEP_LIMIT
    assert f"stopped at t = {cut.status_time:.4g}" in cut.ending
    assert cut.status_time > 0


def test_a_contraction_comes_to_rest_at_the_origin():
    """W = 0 and V = -1 in one dimension of one token: x' = -x."""
    system = system_of_maps(torch.zeros(1, 1).double(), -torch.ones(1, 1).double())
    found = run(system, torch.ones(1, 1, dtype=torch.float64), 40.0)
    assert (found.status, found.n_clusters) == (Status.CONVERGED, 1)
    assert found.status_time == pytest.approx(-math.log(CLUSTER), abs=1.0)
    assert fate(found) is Fate.CONVERGING


@BOTH
def test_the_limit_on_steps_leaves_what_was_saved(compiled):
    system, tokens = random_system(1)
    found = run(system, tokens, 50.0, max_steps=5, n_saved=501, compiled=compiled)
    assert found.status is Status.STEP_LIMIT
    assert found.n_steps == 5
    assert 1 < len(found.times) < 501
    assert found.times[-1].item() <= found.status_time < 50


@BOTH
def test_the_limit_on_steps_counts_both_charts_together(compiled):
    system, tokens = example_system("aligned"), normal(seeded(0), 16, 3)
    full = run(system, tokens, 20.0, compiled=compiled)
    assert full.events
    cut = run(system, tokens, 20.0, max_steps=full.n_steps - 2, compiled=compiled)
    assert cut.n_steps == full.n_steps - 2


@pytest.mark.parametrize("method", [Method.EULER, Method.RK4])
def test_fixed_steps_stop_at_their_limit_too(method):
    system, tokens = random_system(1)
    found = run(system, tokens, 5.0, method=method, step=0.1, max_steps=7)
    assert found.status is Status.STEP_LIMIT
    assert found.status_time == pytest.approx(0.7)
    assert found.n_steps == 7


@BOTH
def test_a_blow_up_in_finite_time_is_divergence(compiled):
    """x' = exp(x^2) x from 1 is infinite at E_1(1) / 2."""
    one = torch.ones(1, 1, dtype=torch.float64)
    system = replace(system_of_maps(one, one), unnormalised=True)
    found = run(system, one, 1.0, compiled=compiled)
    assert found.status is Status.DIVERGED
    assert found.status_time == pytest.approx(0.2193839343955 / 2, rel=1e-5)
    assert [event.what for event in found.events] == [EVENTS[Stop.STUCK]]
    assert torch.isfinite(found.tokens).all()


@pytest.mark.parametrize("n_saved", [3, 200])
def test_fixed_steps_that_leave_the_range_of_floats_are_divergence(n_saved):
    one = torch.ones(1, 1, dtype=torch.float64)
    system = replace(system_of_maps(one, one), unnormalised=True)
    found = run(system, one, 1.0, method=Method.EULER, step=0.01, n_saved=n_saved)
    assert found.status is Status.DIVERGED
    assert torch.isfinite(found.tokens).all()
    assert "range of float64" in found.events[0].what
    assert found.n_evaluations == found.n_steps


# --- fates -----------------------------------------------------------------------------------


def test_fates_follow_the_size_of_the_cloud():
    tokens = normal(seeded(2), 20, 3)
    assert fate(run(system_of_maps(EYE, EYE), tokens, 3.0)) is Fate.DIVERGING
    assert fate(run(system_of_maps(EYE, -EYE), tokens, 30.0)) is Fate.CONVERGING
    turn = example_system("rotation", d_model=2)
    assert fate(run(turn, tokens[:, :2].contiguous(), 5.0)) is Fate.MIXED


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ((1.0, 1.5, 2.1), Fate.DIVERGING),
        ((1.0, 1.5, 1.9), Fate.MIXED),  # not doubled
        ((1.0, 3.0, 2.5), Fate.MIXED),  # doubled, and shrinking again
        ((1.0, 0.7, 0.4), Fate.CONVERGING),
        ((1.0, 0.7, 0.6), Fate.MIXED),
        ((1.0, 0.3, 0.4), Fate.MIXED),  # halved, and growing again
    ],
)
def test_a_fate_needs_a_factor_of_two_and_the_trend(lengths, expected):
    tokens = normal(seeded(3), 4, 2)
    template = run(example_system("rotation", d_model=2), tokens, 1.0, n_saved=3)
    unit = torch.stack([length * tokens for length in lengths])
    found = replace(template, unit_tokens=unit, log_scale=torch.zeros(3, dtype=torch.float64))
    assert fate(found) is expected


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_clusters_are_counted_at_any_size(scale):
    """Squares of gaps of 1e200 are infinite: every token was a cluster, or none."""
    tokens = torch.tensor([[0.0, 0.0], [0.05, 0.0], [1.0, 0.0]], dtype=torch.float64)
    assert cluster_labels(scale * tokens, 0.1 * scale).tolist() == [0, 0, 1]


@pytest.mark.parametrize("geometry", [g for g in Geometry if g is not Geometry.FREE])
def test_fates_of_directions_follow_their_mean_cosine_whatever_their_lengths(geometry):
    start = normal(seeded(0), 6, 3)
    shared = torch.ones(3, dtype=torch.float64)
    near = start + shared
    lengths = torch.linspace(1, 50, 6, dtype=torch.float64)[:, None]
    for first, last, expected in (
        (start, near, Fate.CONVERGING),
        (near, start, Fate.DIVERGING),
        (start, start + 1e-4 * shared, Fate.MIXED),
    ):
        for factor in (1.0, 0.01):
            moved = trajectory(torch.stack([first, factor * lengths * last]))
            assert fate(moved, geometry) is expected
    words = {kind: kind.words(geometry) for kind in Fate}
    assert words[Fate.CONVERGING] == "gathers directions"
    assert words[Fate.DIVERGING] == "spreads directions"
    assert Fate.CONVERGING.words(Geometry.FREE) == "converging"


def test_the_radius_of_clusters_is_a_share_of_the_first_cloud():
    wide = [[0.0, 0.0], [100.0, 0.0], [0.0, 100.0]]
    gap = 50 * CLUSTER
    close = [[0.0, 0.0], [gap, 0.0], [0.0, 100.0]]
    end = describe_end(Geometry.FREE, *path(wide, close, close))
    assert end.n_clusters == 2
    narrow = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    assert describe_end(Geometry.FREE, *path(narrow, close, close)).n_clusters == 3
