"""Flows of models with norms: directions, at the speed at which a layer turns them."""

import math
from dataclasses import replace

import pytest
import torch

from orbit_models import tiny, token_ids
from orbitlens.errors import InputError
from orbitlens.families.architecture import NormKind
from orbitlens.flows.fields import AttentionField
from orbitlens.flows.flow import build_flow
from orbitlens.flows.integrate import IntegrateOptions, Method, integrate_flow
from orbitlens.flows.normed import Norms, direction_system, typical_length
from orbitlens.flows.outcome import log_spreads
from orbitlens.flows.real_tokens import layer_tokens
from orbitlens.flows.setup import SimulateOptions
from orbitlens.flows.simulation import simulate
from orbitlens.flows.system import Geometry, system_of_heads
from orbitlens.heads.head import make_head
from orbitlens.running.model import load
from slow_flow import normal, seeded

SHORT = SimulateOptions(n_tokens=6, until=1.0)
EXACT = {"layer_norm_eps": 1e-14}  # the flow leaves epsilon out
KINDS = ("rms", "layer")
POSITIONS = ("none", "learned", "rotary", "alibi")


def model_with(**switches):
    return load(tiny(**{**EXACT, **switches}))


def real(model, layer=1):
    return layer_tokens(model, token_ids(batch=1)[0].tolist(), layer=layer, n_tokens=11)


def unit_head(value, *, d=8, norm=NormKind.RMS):
    """Return a head that looks everywhere alike, V = value times the identity."""
    eye, zero = torch.eye(d, dtype=torch.float64), torch.zeros(d, d, dtype=torch.float64)
    return replace(make_head(zero, zero, eye, value * eye), norm=norm)


# --- the flow is the model's -----------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("position", POSITIONS)
def test_the_flow_begins_as_fast_as_the_model_moves_its_tokens(kind, position):
    """The running model is the reference: what its attention adds, without the mean coordinate."""
    model = model_with(norm="pre", norm_kind=kind, position=position)
    tokens, layer = real(model), model.layer(1)
    flow = build_flow(layer, SHORT, tokens)
    assert flow.system.geometry is Geometry.PRE_LN
    norms = Norms.of(layer.head(0))
    expected = norms.seen(tokens.attention)
    found = AttentionField(flow.system, len(flow.start))(flow.start)
    assert (found - expected).abs().max() < 1e-9 * expected.abs().max()


@pytest.mark.parametrize("kind", KINDS)
def test_one_euler_step_is_the_models_own(kind):
    """Depth is time: a layer is one step of length 1, for a head and for the whole layer."""
    model = model_with(norm="pre", norm_kind=kind)
    tokens = real(model)
    euler = IntegrateOptions(method=Method.EULER, step=1.0)
    for target in (model.layer(1), model.head(1, 2)):
        flow = build_flow(target, SHORT, tokens)
        moved = integrate_flow(flow.system, flow.start, until=1.0, options=euler)
        after, _ = tokens.after(target)
        expected = Norms.of(model.head(1, 2)).seen(after)
        assert (moved.final - expected).abs().max() < 1e-9 * expected.abs().max()


@pytest.mark.parametrize("kind", KINDS)
def test_on_the_sphere_directions_turn_by_what_is_added_over_the_length(kind):
    """y' = P_y A / |x|, with tokens brought to one length so that it is exact."""
    model = model_with(norm="pre", norm_kind=kind)
    layer, norms = model.layer(1), Norms.of(model.head(1, 0))
    x = norms.seen(normal(seeded(3), 7, 24))
    x = 5.0 * x / x.norm(dim=-1, keepdim=True)
    flow = build_flow(layer, replace(SHORT, geometry=Geometry.SPHERE), x)
    small = integrate_flow(flow.system, flow.start, until=1e-6)
    found = (small.final - small.tokens[0]) / 1e-6
    from orbitlens.heads.attention import attention_output

    added = norms.seen(attention_output(layer, layer.normalise(x)))
    y = x / 5.0
    expected = (added - (y * added).sum(dim=-1, keepdim=True) * y) / 5.0
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()


def test_a_stream_with_norms_behind_is_seen_at_its_own_length():
    """Post-norm: attention sees x = |x| y, and tokens of one length make it exact."""
    model = model_with(norm="post")
    layer = model.layer(0)
    x = normal(seeded(4), 7, 24)
    x = 3.0 * x / x.norm(dim=-1, keepdim=True)
    flow = build_flow(layer, SHORT, x)
    assert flow.system.geometry is Geometry.SPHERE
    from orbitlens.heads.attention import attention_output

    found = AttentionField(flow.system, 7)(x / 3.0)
    expected = attention_output(layer, x) / 3.0
    assert (found - expected).abs().max() < 1e-9 * expected.abs().max()


def test_uniform_attention_obeys_the_equation_of_equal_angles():
    """W = 0, V = v: C' = 2 v (sqrt(d) / length) m (1 - C), m = (1 + (n - 1) C) / n (theory 7)."""
    n, d, v, length, until = 5, 8, 0.7, 4.0, 2.0
    corners = torch.eye(d, dtype=torch.float64)[:n]
    shared = torch.zeros(d, dtype=torch.float64)
    shared[-1] = 1.0
    tokens = corners + shared  # cosine 1/2 between any two
    options = SimulateOptions(until=until, rtol=1e-10, token_length=length)
    options = replace(options, geometry=Geometry.SPHERE)
    run = simulate(unit_head(v), options, tokens=tokens).trajectory
    cosine, n_steps = 0.5, 20_000
    for _ in range(n_steps):  # midpoint
        step = until / n_steps

        def rate(c):
            return 2 * v * (math.sqrt(d) / length) * (1 + (n - 1) * c) / n * (1 - c)

        cosine += step * rate(cosine + step / 2 * rate(cosine))
    found = 1 - math.exp(log_spreads(run.unit_tokens)[-1].item())
    assert found == pytest.approx(cosine, abs=1e-7)
    assert cosine > 0.85


# --- which geometry --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("norm", "alone", "on_text"),
    [
        ("pre", Geometry.SPHERE, Geometry.PRE_LN),
        ("post", Geometry.SPHERE, Geometry.SPHERE),
        ("none", Geometry.FREE, Geometry.FREE),
    ],
)
def test_models_with_norms_are_simulated_as_directions_and_others_are_not(norm, alone, on_text):
    model = model_with(norm=norm)
    assert simulate(model.head(1, 0), SHORT).geometry is alone
    found = simulate(model.layer(1), SHORT, tokens=real(model))
    assert found.geometry is on_text
    assert ("directions" in found.setting) is (on_text is not Geometry.FREE)
    assert (found.measured is not None) is True


def test_the_free_geometry_gives_the_flow_without_norms():
    head = model_with(norm="pre").head(1, 0)
    free = simulate(head, replace(SHORT, geometry=Geometry.FREE))
    plain = simulate(system_of_heads([head]), SHORT)
    assert torch.equal(free.trajectory.final, plain.trajectory.final)
    assert "leaves out the norms" in free.setting
    assert plain.setting == ""


def test_a_run_says_where_it_is_and_what_its_time_means():
    shown = simulate(model_with(norm="pre").head(1, 0), SHORT).summary()
    assert "6 tokens on the sphere to t = 1" in shown
    assert "one unit of time is one layer of tokens of length 4.899" in shown  # sqrt(24)
    assert "mean cosine C" in shown


@pytest.mark.parametrize("geometry", [Geometry.NGPT, Geometry.PERI_LN])
def test_speeds_that_are_not_the_models_are_not_compared_with_it(geometry):
    model = model_with(norm="pre")
    found = simulate(model.layer(1), replace(SHORT, geometry=geometry), tokens=real(model))
    assert found.measured is None
    assert "one unit of time" not in found.setting


# --- lengths and centring --------------------------------------------------------------------


def test_tokens_twice_as_long_turn_half_as_fast():
    head = model_with(norm="pre").head(1, 0)
    slow = simulate(head, replace(SHORT, token_length=8.0, until=2.0, rtol=1e-9))
    fast = simulate(head, replace(SHORT, token_length=4.0, until=1.0, rtol=1e-9))
    gap = (slow.trajectory.final - fast.trajectory.final).abs().max()
    assert gap < 1e-7
    assert (slow.trajectory.final - slow.trajectory.tokens[0]).abs().max() > 0.01


def test_the_one_length_of_the_sphere_has_the_mean_speed_of_all():
    x = torch.tensor([[1.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    assert typical_length(x) == pytest.approx(1.6)
    massive = torch.cat([normal(seeded(0), 63, 8), 1e4 * torch.ones(1, 8, dtype=torch.float64)])
    assert typical_length(massive) < 4  # a mean would be 440


def test_a_layer_norm_forgets_the_mean_coordinate_and_an_rms_norm_does_not():
    for kind, forgets in (("layer", True), ("rms", False)):
        model = model_with(norm="pre", norm_kind=kind)
        x = normal(seeded(2), 6, 24)
        shift = torch.linspace(-1, 1, 6, dtype=torch.float64)[:, None]
        runs = [simulate(model.layer(1), SHORT, tokens=t).trajectory for t in (x, x + shift)]
        same = torch.allclose(runs[0].final, runs[1].final, atol=1e-9)
        assert same is forgets
        still = runs[0].tokens.mean(dim=-1).abs().max().item() < 1e-9
        assert still is forgets


def test_lengths_must_be_positive():
    head = unit_head(1.0)
    system, norms = system_of_heads([head]), Norms.of(head)
    for length in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InputError, match="positive"):
            direction_system(system, norms, geometry=Geometry.SPHERE, length=length)


# --- the words -------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "words"), [(1.0, "gathers"), (-1.0, "spreads")])
def test_directions_gather_where_the_shared_one_is_kept_and_spread_where_it_is_turned(value, words):
    """Theory 7, T8: the sign of ybar^T V ybar."""
    tokens = normal(seeded(5), 12, 8) + 1.0
    found = simulate(unit_head(value), SHORT, tokens=tokens)
    happened = dict(found.lines())["happened"]
    assert f"{words} directions" in happened
    assert "diverg" not in happened and "converg" not in happened


def test_a_head_that_adds_nothing_neither_gathers_nor_spreads():
    found = simulate(unit_head(0.0), SHORT, tokens=normal(seeded(5), 12, 8))
    assert "neither gathers nor spreads directions" in found.summary()
