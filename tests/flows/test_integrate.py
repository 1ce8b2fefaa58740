"""The integrators against the slow flow at 1e-12, against closed forms, and against each other."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from orbitlens.errors import InputError
from orbitlens.flows.examples import example_system
from orbitlens.flows.integrate import EVENTS, IntegrateOptions, Method, integrate_flow
from orbitlens.flows.steps import Stop
from orbitlens.flows.system import Geometry, Mask, system_of_maps
from orbitlens.trajectory import Status
from slow_flow import (
    ENCODINGS,
    GEOMETRIES,
    MASKS,
    normal,
    random_system,
    seeded,
    slow_flow,
)

EYE = torch.eye(3, dtype=torch.float64)
# Steps are controlled one at a time; over a run their errors add up to a few tolerances.
TOLERANCES = 10
TOLERANCES_RK45 = 30
BOTH = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "scipy"])


def run(system, tokens, until, **options):
    return integrate_flow(system, tokens, until=until, options=IntegrateOptions(**options))


def relative_error(found, expected):
    found, expected = np.asarray(found), np.asarray(expected)
    return np.abs(found - expected).max() / np.abs(expected).max()


def on_sphere(system, **settings):
    return replace(system, geometry=Geometry.SPHERE, **settings)


# --- every setting ---------------------------------------------------------------------------


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("mask", MASKS)
def test_every_setting_meets_the_asked_tolerance(mask, encoding, geometry):
    """At the end and at the saved moments between, by the compiled path, SciPy's and RK45."""
    settings = {"n": 4, "mask": mask, "encoding": encoding, "geometry": geometry}
    for heads, biased in ((1, False), (2, True)):
        system, tokens = random_system(3, heads=heads, biased=biased, **settings)
        expected = slow_flow(system, tokens, np.linspace(0, 0.6, 5))
        fast = run(system, tokens, 0.6, rtol=1e-8, n_saved=5)
        large = run(system, tokens, 0.6, rtol=1e-8, n_saved=5, compiled=False)
        loose = run(system, tokens, 0.6, rtol=1e-5, n_saved=5, method=Method.RK45)
        assert relative_error(fast.tokens, expected) < TOLERANCES * 1e-8
        assert relative_error(large.tokens, expected) < TOLERANCES * 1e-8
        assert relative_error(loose.tokens, expected) < TOLERANCES_RK45 * 1e-5
        # The same method on the same flow takes the same steps: only rounding is apart.
        assert relative_error(fast.tokens, large.tokens) < 1e-9


@pytest.mark.parametrize("geometry", [Geometry.FREE, Geometry.SPHERE])
@pytest.mark.parametrize("encoding", ["none", "alibi", "rotary"])
def test_unnormalised_attention_meets_the_asked_tolerance(encoding, geometry):
    system, tokens = random_system(
        4, n=4, encoding=encoding, geometry=geometry, unnormalised=True, beta=0.3
    )
    expected = slow_flow(system, tokens, np.linspace(0, 0.5, 3))
    for compiled in (True, False):
        found = run(system, tokens, 0.5, rtol=1e-8, n_saved=3, compiled=compiled)
        assert relative_error(found.tokens, expected) < TOLERANCES * 1e-8


@pytest.mark.parametrize("rtol", [1e-4, 1e-6, 1e-8, 1e-10, 1e-12])
@pytest.mark.parametrize("method", [Method.DOP853, Method.RK45])
def test_a_tighter_tolerance_is_met_too(method, rtol):
    system, tokens = random_system(5, heads=2, mask="causal", encoding="rotary")
    expected = slow_flow(system, tokens, [0.0, 0.5, 1.0], rtol=3e-14)
    found = run(system, tokens, 1.0, rtol=rtol, method=method, n_saved=3)
    bound = TOLERANCES if method is Method.DOP853 else TOLERANCES_RK45
    assert relative_error(found.tokens, expected) < max(bound * rtol, 3e-13)


def test_auto_takes_the_eighth_order_method_from_1e_5_down():
    system, tokens = random_system(5)
    for rtol, method in ((1e-4, Method.RK45), (1e-5, Method.DOP853), (1e-9, Method.DOP853)):
        auto = run(system, tokens, 1.0, rtol=rtol)
        assert torch.equal(auto.final, run(system, tokens, 1.0, rtol=rtol, method=method).final)


def test_the_eighth_order_method_needs_fewer_evaluations_when_it_is_tight():
    system, tokens = example_system("spiral", d_model=2), normal(seeded(5), 32, 2)
    counts = {
        method: run(system, tokens, 5.0, rtol=1e-9, method=method).n_evaluations
        for method in (Method.DOP853, Method.RK45)
    }
    assert counts[Method.DOP853] < 0.6 * counts[Method.RK45]


@BOTH
def test_saved_moments_are_as_accurate_as_the_end(compiled):
    """More moments than steps: nearly all come from the interpolant."""
    system, tokens = random_system(6, mask="causal")
    times = np.linspace(0, 2.0, 129)
    expected = slow_flow(system, tokens, times)
    found = run(system, tokens, 2.0, rtol=1e-8, n_saved=129, compiled=compiled)
    assert found.n_steps < 60
    assert np.array_equal(found.times.numpy(), times)
    errors = np.abs(found.tokens.numpy() - expected).max(axis=(1, 2)) / np.abs(expected).max()
    assert errors.max() < TOLERANCES * 1e-8
    assert torch.equal(found.tokens[0], tokens)


def test_more_saved_moments_do_not_move_the_end():
    system, tokens = random_system(6)
    few, many = (run(system, tokens, 1.0, n_saved=k) for k in (2, 200))
    assert torch.equal(few.final, many.final)
    assert few.n_steps == many.n_steps


@BOTH
def test_large_systems_take_the_same_path(compiled):
    """Wider than the compiled integrator takes: both settings go to SciPy."""
    system, tokens = random_system(7, d=24, r=20, heads=2, n=4, mask="causal", encoding="rotary")
    expected = slow_flow(system, tokens, [0.0, 0.4])
    found = run(system, tokens, 0.4, rtol=1e-8, n_saved=2, compiled=compiled)
    assert relative_error(found.tokens, expected) < TOLERANCES * 1e-8


# --- fixed steps -----------------------------------------------------------------------------

ORDERS = [(Method.EULER, 1), (Method.MIDPOINT, 2), (Method.RK4, 4)]


def errors_of_halved_steps(system, tokens, method, until=1.0, n_saved=2):
    exact = run(system, tokens, until, rtol=1e-13, n_saved=n_saved, compiled=False).tokens
    coarse = [1 / 16, 1 / 32] if method is Method.RK4 else [1 / 64, 1 / 128]
    return [
        (run(system, tokens, until, method=method, step=h, n_saved=n_saved).tokens - exact)
        .abs()
        .max()
        .item()
        for h in coarse
    ]


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize(("method", "order"), ORDERS)
def test_fixed_steps_converge_at_their_order(method, order, geometry):
    system, tokens = random_system(11, heads=2, mask="causal", encoding="rotary", geometry=geometry)
    coarse, fine = errors_of_halved_steps(system, tokens, method)
    assert order - 0.25 < math.log2(coarse / fine) < order + 0.25


@pytest.mark.parametrize(("method", "order"), ORDERS)
def test_what_fixed_steps_save_on_the_way_has_their_order_too(method, order):
    system, tokens = random_system(12)
    coarse, fine = errors_of_halved_steps(system, tokens, method, n_saved=5)
    assert order - 0.25 < math.log2(coarse / fine) < order + 0.25


def test_moments_that_fixed_steps_do_not_meet_are_saved_at_the_nearest_step_under_its_own_time():
    system, tokens = random_system(12)
    found = run(system, tokens, 1.0, method=Method.RK4, step=1 / 30, n_saved=9)
    steps = found.times * 30
    assert torch.allclose(steps, steps.round(), atol=1e-9)
    exact = slow_flow(system, tokens, found.times.numpy())
    assert relative_error(found.tokens, exact) < 1e-6
    more = run(system, tokens, 1.0, method=Method.RK4, step=1 / 4, n_saved=65)
    assert more.times.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_frozen_attention_is_euler_in_disguise():
    """The well-known wrong RK4, whose stages shift all tokens alike, would not pass as order 4."""
    system, tokens = random_system(13)

    def wrong(n):
        x = tokens.clone()
        for _ in range(n):
            h = 1.0 / n
            scores = x @ system.w_q[0] @ system.w_k[0].T @ x.T
            stay = torch.softmax(scores, dim=-1) @ x @ system.w_v[0] @ system.w_o[0]
            x = x + h / 6 * (stay + 2 * stay + 2 * stay + stay)
        return x

    exact = run(system, tokens, 1.0, rtol=1e-13).final
    errors = [(wrong(n) - exact).abs().max().item() for n in (64, 128)]
    assert 0.8 < math.log2(errors[0] / errors[1]) < 1.2


def test_evaluations_of_fixed_steps_are_counted():
    system, tokens = random_system(12)
    for method, stages in ((Method.EULER, 1), (Method.MIDPOINT, 2), (Method.RK4, 4)):
        found = run(system, tokens, 1.0, method=method, step=0.1)
        assert (found.n_steps, found.n_evaluations) == (10, 10 * stages)


# --- closed forms ----------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("heads", [1, 3])
def test_the_leader_follows_the_matrix_exponential(heads, encoding, compiled):
    """T4: under a causal mask the first token obeys x' = (sum_h V_h) x, whatever the encoding."""
    system, tokens = random_system(21, heads=heads, mask="causal", encoding=encoding)
    total = (system.w_v @ system.w_o).sum(dim=0).numpy()
    start = tokens[0].numpy()
    shift = np.zeros(4)
    if encoding == "absolute":
        start = start + system.positions[0].numpy()
    if encoding == "reinjected":
        shift = system.positions[0].numpy()
    exact = (start + shift) @ expm(2.0 * total) - shift
    found = run(system, tokens, 2.0, rtol=1e-10, compiled=compiled).final[0]
    assert relative_error(found, exact) < 1e-8


def test_the_leader_with_a_drift_follows_the_affine_flow():
    system, tokens = random_system(22, heads=2, mask="causal", biased=True)
    total = (system.w_v @ system.w_o).sum(dim=0).numpy()
    drift = system.drift.numpy()
    grown = expm(1.5 * np.block([[total, np.zeros((4, 1))], [drift[None, :], np.zeros((1, 1))]]))
    exact = np.append(tokens[0].numpy(), 1.0) @ grown
    found = run(system, tokens, 1.5, rtol=1e-10).final[0]
    assert relative_error(found, exact[:4]) < 1e-8


def test_without_the_mask_the_leader_does_not_follow_it():
    system, tokens = random_system(21, heads=3)
    exact = tokens[0].numpy() @ expm(2.0 * (system.w_v @ system.w_o).sum(dim=0).numpy())
    assert relative_error(run(system, tokens, 2.0).final[0], exact) > 0.05


@BOTH
@pytest.mark.parametrize("beta", [0.5, 1.0, 4.0, 16.0])
@pytest.mark.parametrize("cosine", [-0.1, 0.0, 0.4])
def test_equiangular_tokens_on_the_sphere_follow_the_reduced_equation(beta, cosine, compiled):
    n = 6
    gram = cosine + (1 - cosine) * torch.eye(n, dtype=torch.float64)
    tokens = torch.linalg.cholesky(gram)
    eye = torch.eye(n, dtype=torch.float64)
    system = on_sphere(system_of_maps(eye, eye), beta=beta)
    found = run(system, tokens, 2.0, rtol=1e-10, n_saved=5, compiled=compiled)

    def reduced(t, rho):
        e = np.exp(beta * rho)
        return 2 * e * (1 - rho) * ((n - 1) * rho + 1) / (math.exp(beta) + (n - 1) * e)

    rho = solve_ivp(
        reduced, (0, 2), [cosine], "DOP853", found.times.numpy(), rtol=1e-13, atol=1e-14
    ).y[0]
    for moment, expected in zip(found.tokens, rho, strict=True):
        cosines = (moment @ moment.T)[~torch.eye(n, dtype=torch.bool)]
        assert (cosines - expected).abs().max() < 1e-8


@BOTH
def test_nothing_moves_without_values(compiled):
    zero = torch.zeros(3, 3, dtype=torch.float64)
    tokens = normal(seeded(1), 7, 3)
    found = run(system_of_maps(EYE, zero), tokens, 5.0, compiled=compiled)
    assert torch.equal(found.final, tokens)
    assert found.status is Status.FINISHED


@BOTH
@pytest.mark.parametrize("mask", [Mask.FULL, Mask.CAUSAL])
def test_one_token_follows_its_value_map(mask, compiled):
    v, tokens = normal(seeded(2), 3, 3), normal(seeded(3), 1, 3)
    system = replace(system_of_maps(normal(seeded(4), 3, 3), v), mask=mask)
    found = run(system, tokens, 1.5, rtol=1e-10, compiled=compiled).final
    assert relative_error(found[0], expm(1.5 * v.numpy()) @ tokens[0].numpy()) < 1e-8


@BOTH
def test_uniform_attention_moves_every_token_with_the_mean(compiled):
    """W = 0: the mean obeys x' = V x, and the differences between tokens stay what they are."""
    v, tokens = normal(seeded(5), 3, 3), normal(seeded(6), 9, 3)
    system = system_of_maps(torch.zeros(3, 3, dtype=torch.float64), v)
    found = run(system, tokens, 1.0, rtol=1e-10, compiled=compiled).final
    exact = expm(v.numpy()) @ tokens.mean(dim=0).numpy()
    assert relative_error(found.mean(dim=0), exact) < 1e-8
    moved = found - found.mean(dim=0)
    assert torch.allclose(moved, tokens - tokens.mean(dim=0), atol=1e-9 * found.abs().max().item())


def test_a_temperature_of_zero_is_uniform_attention_too():
    v, tokens = normal(seeded(5), 3, 3), normal(seeded(6), 9, 3)
    hot = replace(system_of_maps(EYE, v), beta=0.0)
    flat = system_of_maps(torch.zeros(3, 3, dtype=torch.float64), v)
    assert torch.allclose(run(hot, tokens, 1.0).final, run(flat, tokens, 1.0).final, atol=1e-12)


@BOTH
def test_tokens_at_the_origin_are_carried_by_the_drift_alone(compiled):
    """Uniform tokens attend to themselves: x' = V x + b from 0."""
    system, tokens = random_system(23, biased=True)
    v = (system.w_v[0] @ system.w_o[0]).numpy()
    found = run(system, 0 * tokens, 1.0, rtol=1e-9, compiled=compiled)
    grown = expm(np.block([[v, np.zeros((4, 1))], [system.drift.numpy()[None, :], 0 * np.eye(1)]]))
    for token in found.final:
        assert relative_error(token, grown[4, :4]) < 1e-7
    assert found.n_clusters == 1


# --- the sphere ------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("geometry", [Geometry.SPHERE, Geometry.POST_LN, Geometry.NGPT])
def test_tokens_on_the_sphere_stay_there(geometry, compiled):
    system, tokens = random_system(31, heads=2, n=10, geometry=geometry, beta=4.0, biased=True)
    found = run(system, 3 * tokens, 20.0, compiled=compiled)
    assert (found.tokens.norm(dim=-1) - 1).abs().max() < 1e-12
    fixed = run(system, tokens, 2.0, method=Method.EULER, step=0.1)
    assert (fixed.tokens.norm(dim=-1) - 1).abs().max() < 1e-12


def test_turning_the_sphere_turns_the_flow():
    system, tokens = random_system(32, geometry=Geometry.SPHERE)
    q, _ = torch.linalg.qr(normal(seeded(0), 4, 4))
    turned = replace(
        system,
        w_q=q.T @ system.w_q,
        w_k=q.T @ system.w_k,
        w_v=q.T @ system.w_v,
        w_o=system.w_o @ q,
    )
    expected = run(system, tokens, 2.0, rtol=1e-10).final @ q
    assert relative_error(run(turned, tokens @ q, 2.0, rtol=1e-10).final, expected) < 1e-8


# --- noise -----------------------------------------------------------------------------------


def test_noise_has_the_asked_variance_and_is_seeded():
    zero = torch.zeros(40, 40, dtype=torch.float64)
    system = replace(system_of_maps(zero, zero), noise=0.5)
    tokens = torch.zeros(500, 40, dtype=torch.float64)
    found = run(system, tokens, 2.0, step=0.25, n_saved=2)
    variance = found.final.var().item()
    assert variance == pytest.approx(0.25 * 2.0, rel=0.02)
    again = run(system, tokens, 2.0, step=0.25, n_saved=2)
    other = run(system, tokens, 2.0, step=0.25, n_saved=2, seed=1)
    assert torch.equal(found.final, again.final)
    assert not torch.equal(found.final, other.final)


def test_noise_is_not_the_start_again():
    """Tokens drawn from seed 0 were also the first kick of the noise of seed 0."""
    zero = torch.zeros(8, 8, dtype=torch.float64)
    tokens = normal(seeded(0), 20, 8)
    found = run(replace(system_of_maps(zero, zero), noise=1.0), tokens, 1.0, step=1.0)
    kick = torch.stack([(found.final - tokens).flatten(), tokens.flatten()])
    assert kick.corrcoef()[0, 1].abs() < 0.3


def test_noise_on_the_sphere_stays_there():
    system, tokens = random_system(33, geometry=Geometry.SPHERE, noise=0.3)
    found = run(system, tokens, 1.0, step=0.05)
    assert (found.tokens.norm(dim=-1) - 1).abs().max() < 1e-12


# --- bad input -------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokens": torch.ones(3, 5, dtype=torch.float64)}, "moves tokens of width 4"),
        ({"tokens": torch.ones(0, 4, dtype=torch.float64)}, r"shape \[0, 4\]"),
        ({"tokens": torch.full((3, 4), math.nan, dtype=torch.float64)}, "NaN"),
        ({"tokens": torch.full((3, 4), math.inf, dtype=torch.float64)}, "infinity"),
        ({"until": -1.0}, "positive, finite"),
        ({"until": 0.0}, "positive, finite"),
        ({"until": math.inf}, "positive, finite"),
        ({"until": math.nan}, "positive, finite"),
        ({"rtol": 1e-30}, "float64 can meet 1e-13"),
        ({"rtol": 1.0}, "tolerance of 1.0"),
        ({"rtol": 0.0}, "tolerance of 0.0"),
        ({"rtol": math.nan}, "tolerance of nan"),
        ({"n_saved": 1}, "n_saved must be at least 2"),
        ({"max_steps": 0}, "max_steps at least 1"),
        ({"method": Method.RK4}, "a step of None"),
        ({"method": Method.EULER, "step": 2.0}, "between 0 and the time to run"),
        ({"method": Method.EULER, "step": -0.1}, "between 0 and the time to run"),
    ],
)
def test_impossible_requests_are_refused(change, words, compiled):
    system, tokens = random_system(0)
    arguments = {"compiled": compiled, **change}
    tokens = arguments.pop("tokens", tokens)
    until = arguments.pop("until", 1.0)
    with pytest.raises(InputError, match=words):
        run(system, tokens, until, **arguments)


@BOTH
@pytest.mark.parametrize("encoding", ["absolute", "reinjected"])
def test_positions_must_be_as_many_as_tokens(encoding, compiled):
    system, tokens = random_system(0, encoding=encoding)
    with pytest.raises(InputError, match="3 tokens of width 4; expected one row a token"):
        run(system, tokens[:3], 1.0, compiled=compiled)


@pytest.mark.parametrize("geometry", [Geometry.SPHERE, Geometry.NGPT])
def test_a_token_at_the_origin_has_no_place_on_the_sphere(geometry):
    system, tokens = random_system(0, geometry=geometry)
    tokens[2] = 0.0
    with pytest.raises(InputError, match="origin"):
        run(system, tokens, 1.0)


def test_tokens_are_not_changed_by_a_run():
    system, tokens = random_system(0, encoding="absolute", geometry=Geometry.SPHERE)
    before = tokens.clone()
    run(system, tokens, 1.0)
    assert torch.equal(tokens, before)


def test_single_precision_tokens_are_welcome():
    system, tokens = random_system(0)
    found = run(system, tokens.float(), 1.0)
    assert found.final.dtype is torch.float64
    assert torch.equal(found.final, run(system, tokens.float().double(), 1.0).final)


def test_examples_run_the_same_twice():
    tokens = normal(seeded(0), 8, 3)
    first, second = (run(example_system("random", seed=3), tokens, 3.0) for _ in range(2))
    assert torch.equal(first.final, second.final)
    assert first.n_evaluations == second.n_evaluations


# --- attention in single precision -----------------------------------------------------------


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("mask", MASKS)
def test_attention_in_float32_meets_its_tolerance(mask, encoding):
    system, tokens = random_system(5, n=6, heads=2, biased=True, mask=mask, encoding=encoding)
    exact = slow_flow(system, tokens, np.array([0.0, 0.6]))[-1]
    found = run(system, tokens, 0.6, rtol=1e-5, n_saved=2, single=True)
    error = relative_error(found.final, exact)
    assert 1e-12 < error < 1e-4  # and it is float32 indeed: float64 at 1e-5 would be another path
    assert found.unit_tokens.dtype == torch.float64
    assert not found.events


def test_float32_is_noticed_by_its_rounding():
    system, tokens = random_system(5, n=6, heads=2)
    double = run(system, tokens, 0.6, rtol=1e-6, n_saved=2, compiled=False)
    single = run(system, tokens, 0.6, rtol=1e-6, n_saved=2, single=True)
    assert 1e-10 < relative_error(single.final, double.final) < 1e-5


def test_steps_that_fail_by_rounding_go_on_in_float64():
    """Scores of 1e5 carry float32 rounding into the exponent: no step is short enough."""
    system = replace(example_system("spiral", d_model=4), beta=3e4)
    tokens = torch.randn(16, 4, dtype=torch.float64, generator=seeded(0))
    noisy = run(system, tokens, 2.0, rtol=1e-6, single=True, scaled_chart=False)
    assert EVENTS[Stop.ROUNDING] in [event.what for event in noisy.events]
    exact = run(system, tokens, 2.0, rtol=1e-9, scaled_chart=False)
    assert relative_error(noisy.final, exact.final) < 1e-3


def test_float32_refuses_what_it_cannot_do():
    system, tokens = random_system(5, n=6)
    with pytest.raises(InputError, match="can meet 1e-06 at best"):
        run(system, tokens, 0.6, rtol=1e-7, single=True)
    with pytest.raises(InputError, match="for the adaptive methods"):
        run(system, tokens, 0.6, method=Method.RK4, step=0.1, single=True)
