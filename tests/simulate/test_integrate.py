"""The integrators against plain NumPy, SciPy at 1e-12, and closed forms."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from flow_reference import flow
from orbitlens.checkpoint.model import Pairing, RotarySpec
from orbitlens.errors import InputError
from orbitlens.simulate.examples import example_system
from orbitlens.simulate.fields import discrete_layer, make_field
from orbitlens.simulate.integrate import Method, SimulationOptions, simulate
from orbitlens.simulate.outcome import Fate, fate
from orbitlens.simulate.system import Geometry, Mask, System, system_of_maps
from orbitlens.trajectory import Status

N, D = 6, 4


def drawn(*shape, seed=0, size=0.5):
    generator = torch.Generator().manual_seed(seed)
    return size * torch.randn(*shape, generator=generator, dtype=torch.float64)


def a_system(n_heads=1, d_head=4, **changes):
    base = System(
        w_q=drawn(n_heads, D, d_head, seed=1),
        w_k=drawn(n_heads, D, d_head, seed=2),
        w_v=drawn(n_heads, D, d_head, seed=3),
        w_o=drawn(n_heads, d_head, D, seed=4),
    )
    return replace(base, **changes)


ROTARY = RotarySpec(base=20.0, d_rotary=4, d_head=4, pairing=Pairing.HALVES)
SETTINGS = {
    "plain": {},
    "two heads": {"n_heads": 2, "d_head": 2},
    "causal": {"mask": Mask.CAUSAL},
    "causal window": {"mask": Mask.CAUSAL, "window": 2},
    "window": {"window": 3},
    "rotary": {"rotary": ROTARY},
    "rotary causal, biases": {
        "rotary": ROTARY,
        "mask": Mask.CAUSAL,
        "b_q": drawn(1, 4, seed=5),
        "b_k": drawn(1, 4, seed=6),
    },
    "alibi": {"alibi_slopes": torch.tensor([0.3], dtype=torch.float64)},
    "biases and drift": {"b_q": drawn(1, 4, seed=7), "drift": drawn(D, seed=8)},
    "re-injected positions": {"positions": drawn(N, D, seed=9), "reinjected": True},
    "sphere": {"geometry": Geometry.SPHERE},
    "sphere, causal, hot": {"geometry": Geometry.SPHERE, "mask": Mask.CAUSAL, "beta": 5.0},
    "pre-ln": {"geometry": Geometry.PRE_LN},
    "peri-ln": {"geometry": Geometry.PERI_LN},
    "ngpt": {"geometry": Geometry.NGPT},
    "unnormalised": {"unnormalised": True, "beta": 0.3},
    "sphere, unnormalised": {"geometry": Geometry.SPHERE, "unnormalised": True},
}


def start_of(system, seed=11):
    x = drawn(N, D, seed=seed, size=0.8)
    return x / x.norm(dim=-1, keepdim=True) if system.geometry.on_sphere else x


def truth(system, x, until):
    """Integrate the plain NumPy flow with SciPy at 1e-12."""
    solved = solve_ivp(
        lambda t, y: flow(system, y.reshape(x.shape)).ravel(),
        (0, until),
        x.numpy().ravel(),
        "DOP853",
        rtol=1e-12,
        atol=1e-13,
    )
    return torch.from_numpy(solved.y[:, -1].reshape(x.shape))


@pytest.mark.parametrize("name", SETTINGS)
def test_the_field_is_the_plain_one(name):
    system = a_system(**SETTINGS[name])
    x = start_of(system)
    assert np.allclose(make_field(system, N)(x).numpy(), flow(system, x.numpy()), atol=1e-13)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "scipy"])
@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_agrees_with_scipy_to_the_asked_tolerance(name, compiled):
    system = a_system(**SETTINGS[name])
    x = start_of(system)
    options = SimulationOptions(rtol=1e-8, compiled=compiled)
    found = simulate(system, x, until=1.5, options=options)
    expected = truth(system, x, 1.5)
    assert (found.final - expected).abs().max() < 1e-6 * expected.abs().max()
    halfway = found.tokens[32]
    assert (halfway - truth(system, x, 0.75)).abs().max() < 1e-6 * expected.abs().max()


@pytest.mark.parametrize(
    "change",
    [
        {"rotary": replace(ROTARY, pairing=Pairing.NEIGHBOURS)},
        {"rotary": replace(ROTARY, base=25.0)},
        {"mask": Mask.CAUSAL},
        {"window": 5},
        {"beta": 1.01},
        {"drift": torch.full((D,), 0.01, dtype=torch.float64)},
    ],
)
def test_a_slightly_different_system_does_not_pass_for_the_same(change):
    system = a_system(rotary=ROTARY)
    x = start_of(system)
    found = simulate(replace(system, **change), x, until=1.5)
    assert (found.final - truth(system, x, 1.5)).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("method", "order"), [(Method.EULER, 1), (Method.MIDPOINT, 2), (Method.RK4, 4)]
)
def test_fixed_steps_converge_at_their_order(method, order):
    system, x = a_system(), drawn(N, D, seed=12)
    exact = simulate(system, x, until=1.0, options=SimulationOptions(rtol=1e-12)).final
    errors = [
        (
            simulate(system, x, until=1.0, options=SimulationOptions(method=method, step=h)).final
            - exact
        )
        .abs()
        .max()
        .item()
        for h in (1 / 32, 1 / 64)
    ]
    assert order - 0.2 < math.log2(errors[0] / errors[1]) < order + 0.2


@pytest.mark.parametrize("geometry", [g for g in Geometry if g is not Geometry.POST_LN])
def test_a_geometry_is_the_small_step_limit_of_its_layer(geometry):
    system = a_system(geometry=geometry)
    x = start_of(system)
    velocity = make_field(system, N)(x)
    gaps = [((discrete_layer(system, x, h) - x) / h - velocity).abs().max() for h in (1e-3, 5e-4)]
    if geometry in {Geometry.FREE, Geometry.PRE_LN, Geometry.PERI_LN}:
        assert max(gaps) < 1e-11  # the layer is the Euler step itself
    else:
        assert 1.8 < gaps[0] / gaps[1] < 2.2


def test_the_leader_follows_the_matrix_exponential():
    system = a_system(n_heads=2, d_head=2, mask=Mask.CAUSAL)
    x = drawn(N, D, seed=13)
    total = (system.w_v @ system.w_o).sum(dim=0).numpy()
    exact = x[0].numpy() @ expm(2.0 * total)
    found = simulate(system, x, until=2.0, options=SimulationOptions(rtol=1e-10)).final[0]
    assert np.allclose(found.numpy(), exact, rtol=1e-8)


@pytest.mark.parametrize("beta", [0.5, 4.0])
def test_equiangular_tokens_on_the_sphere_follow_the_reduced_equation(beta):
    n = 5
    gram = 0.3 * torch.ones(n, n, dtype=torch.float64) + 0.7 * torch.eye(n, dtype=torch.float64)
    x = torch.linalg.cholesky(gram)
    eye = torch.eye(n, dtype=torch.float64)
    system = replace(system_of_maps(eye, eye), geometry=Geometry.SPHERE, beta=beta)
    final = simulate(system, x, until=1.0, options=SimulationOptions(rtol=1e-10)).final

    def reduced(t, rho):
        e = np.exp(beta * rho)
        return 2 * e * (1 - rho) * ((n - 1) * rho + 1) / (math.exp(beta) + (n - 1) * e)

    rho = solve_ivp(reduced, (0, 1), [0.3], "DOP853", rtol=1e-12, atol=1e-14).y[0, -1]
    assert (final[0] @ final[1]).item() == pytest.approx(rho, rel=1e-8)


def test_nothing_moves_without_values():
    x = drawn(N, D)
    system = system_of_maps(torch.eye(D).double(), torch.zeros(D, D).double())
    assert torch.equal(simulate(system, x, until=5.0).final, x)


def test_uniform_attention_moves_every_token_with_the_mean():
    v = drawn(D, D, seed=14)
    x = drawn(N, D, seed=15)
    final = simulate(system_of_maps(torch.zeros(D, D).double(), v), x, until=1.0).final
    mean = expm(v.numpy()) @ x.mean(dim=0).numpy()
    assert np.allclose(final.mean(dim=0).numpy(), mean, rtol=1e-5)
    assert torch.allclose(final - final.mean(dim=0), x - x.mean(dim=0), atol=1e-6)


def test_one_token_follows_its_value_map():
    v, x = drawn(D, D, seed=16), drawn(1, D, seed=17)
    final = simulate(system_of_maps(torch.eye(D).double(), v), x, until=1.0).final
    assert np.allclose(final[0].numpy(), expm(v.numpy()) @ x[0].numpy(), rtol=1e-5)


# --- running away ----------------------------------------------------------------------------


def runaway():
    v = torch.diag(torch.tensor([1.0, 0.5, -0.5], dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 3, generator=generator, dtype=torch.float64)
    return system_of_maps(torch.eye(3, dtype=torch.float64), v), x


def test_tokens_that_run_away_end_with_directions_and_a_scale():
    system, x = runaway()
    found = simulate(system, x, until=5000.0)
    assert found.status is Status.DIVERGED
    assert "ran away" in found.ending
    assert found.log_scale[-1].item() == pytest.approx(5000.0, rel=1e-2)
    assert torch.isfinite(found.unit_tokens).all()
    directions = found.unit_tokens[-1] / found.unit_tokens[-1].norm(dim=-1, keepdim=True)
    assert directions[:, 0].abs().min() > 1 - 1e-6  # the leading direction of V


def test_both_charts_agree_while_the_raw_one_lasts():
    system, x = runaway()
    raw = simulate(system, x, until=8.0, options=SimulationOptions(scaled_chart=False, rtol=1e-9))
    scaled = simulate(system, x, until=8.0, options=SimulationOptions(scaled_chart=True, rtol=1e-9))
    gap = (raw.final - scaled.final).norm() / raw.final.norm()
    assert gap < 1e-6


def test_convergence_and_collapse_are_told_apart_from_running_on():
    eye = torch.eye(3, dtype=torch.float64)
    x = drawn(20, 3, seed=18, size=1.0)
    anti = simulate(system_of_maps(eye, -eye), x, until=30.0)
    assert fate(anti) is Fate.CONVERGING
    sphere = replace(system_of_maps(eye, eye), geometry=Geometry.SPHERE)
    one = simulate(sphere, x, until=40.0)
    assert (one.status, one.n_clusters) == (Status.CONVERGED, 1)
    many = simulate(replace(sphere, beta=60.0), x, until=40.0)
    assert many.status is Status.COLLAPSED
    assert 1 < many.n_clusters < 20
    spin = simulate(example_system("rotation", d_model=2), x[:, :2].contiguous(), until=5.0)
    assert fate(spin) is Fate.MIXED


def test_the_step_limit_is_said():
    system, x = runaway()
    found = simulate(system, x, until=3.0, options=SimulationOptions(max_steps=2, rtol=1e-12))
    assert found.status is Status.STEP_LIMIT
    assert "limit on steps" in found.ending


def test_noise_is_seeded_and_changes_the_path():
    system = a_system(noise=0.2)
    x = drawn(N, D)

    def run(seed):
        return simulate(system, x, until=1.0, options=SimulationOptions(step=0.01, seed=seed)).final

    assert torch.equal(run(1), run(1))
    assert not torch.allclose(run(1), run(2))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"tokens": torch.ones(3, 5, dtype=torch.float64)}, "width"),
        ({"tokens": torch.full((3, 4), math.nan, dtype=torch.float64)}, "NaN"),
        ({"until": -1.0}, "time"),
        ({"until": math.inf}, "time"),
        ({"options": SimulationOptions(rtol=1e-30)}, "tolerance"),
        ({"options": SimulationOptions(method=Method.RK4)}, "step"),
    ],
)
def test_impossible_requests_are_refused(change, word):
    arguments = {"tokens": drawn(3, D), "until": 1.0, **change}
    with pytest.raises(InputError, match=word):
        simulate(a_system(), arguments.pop("tokens"), **arguments)


def test_a_token_at_the_origin_has_no_place_on_the_sphere():
    with pytest.raises(InputError, match="origin"):
        simulate(a_system(geometry=Geometry.SPHERE), torch.zeros(2, D).double(), until=1.0)
