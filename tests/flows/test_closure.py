"""The Gaussian closure against closed forms, against many tokens, and where it is not exact."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.linalg import expm
from scipy.special import ndtri

from orbitlens.errors import InputError
from orbitlens.families.architecture import Pairing, RotarySpec
from orbitlens.flows.closure import simulate_closure
from orbitlens.flows.examples import example_system
from orbitlens.flows.integrate import IntegrateOptions, integrate_flow
from orbitlens.flows.system import Geometry, Mask, system_of_maps
from slow_flow import normal, random_system, seeded

ROTARY = RotarySpec(base=10.0, d_rotary=2, d_head=2, pairing=Pairing.HALVES)
EYE = torch.eye(2, dtype=torch.float64)
ZERO = torch.zeros(2, dtype=torch.float64)


def identity_cloud(d):
    return torch.zeros(d, dtype=torch.float64), torch.eye(d, dtype=torch.float64)


def gaussian_grid(k, mean):
    """Return k^2 tokens at the quantiles of a Gaussian: a sample without sampling error."""
    q = torch.from_numpy(ndtri((np.arange(k) + 0.5) / k))
    x = torch.cartesian_prod(q, q)[torch.randperm(k * k, generator=seeded(0))]
    return x / x.std(dim=0, correction=0) + mean


def covariance_of(x):
    return torch.cov(x.T, correction=0)


def relative(found, expected, start):
    """Return the error in units of the change since the start."""
    return ((found - expected).norm() / (found - start).norm()).item()


# --- closed forms ----------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 5])
def test_the_anti_aligned_cloud_shrinks_like_one_over_one_plus_two_t(d):
    found = simulate_closure(
        example_system("anti-aligned", d_model=d), *identity_cloud(d), until=9.0
    )
    assert found.blow_up is None
    expected = torch.eye(d, dtype=torch.float64) / (1 + 2 * found.times)[:, None, None]
    assert torch.allclose(found.covariances, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("variance", [0.5, 1.0, 4.0])
def test_the_aligned_cloud_blows_up_when_it_should(variance):
    """S = s / (1 - 2 s t): infinite at 1 / (2 s)."""
    mean, unit = identity_cloud(2)
    found = simulate_closure(example_system("aligned", d_model=2), mean, variance * unit, until=5.0)
    assert found.blow_up == pytest.approx(1 / (2 * variance), abs=1e-6)
    expected = variance / (1 - 2 * variance * found.times)
    assert torch.allclose(found.covariances[:, 0, 0], expected, rtol=1e-6)
    assert (found.times < found.blow_up).all()


def test_without_scores_only_the_mean_moves():
    v = normal(seeded(1), 2, 2)
    mean = torch.tensor([1.0, -0.5], dtype=torch.float64)
    found = simulate_closure(system_of_maps(0 * EYE, v), mean, EYE, until=1.0)
    assert np.allclose(found.means[-1], expm(v.numpy()) @ mean.numpy(), rtol=1e-7)
    assert torch.allclose(found.covariances[-1], EYE, atol=1e-10)


def test_a_bias_of_the_queries_pulls_the_mean_along_c():
    """c = w_k b_q: from a mean of 0 it first moves with V S c + b."""
    system, _ = random_system(2, d=3, r=3, biased=True, beta=1.3)
    found = simulate_closure(system, *identity_cloud(3), until=1e-4, n_saved=2)
    v = (system.w_v[0] @ system.w_o[0]).T
    expected = 1.3 * v @ system.w_k[0] @ system.b_q[0] + system.drift
    assert torch.allclose(found.means[-1] / 1e-4, expected, rtol=1e-3)


def test_several_heads_add_their_rates():
    system, _ = random_system(3, heads=3, d=3, r=2)
    covariance = torch.diag(torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64))
    found = simulate_closure(system, identity_cloud(3)[0], covariance, until=0.3, n_saved=2)

    def rate(t, y):
        s = y.reshape(3, 3)
        b = sum(
            (system.w_v[h] @ system.w_o[h]).T.numpy()
            @ s
            @ (system.w_k[h] @ system.w_q[h].T).numpy()
            for h in range(3)
        )
        return (b @ s + s @ b.T).ravel()

    exact = solve_ivp(rate, (0, 0.3), covariance.numpy().ravel(), "DOP853", rtol=1e-11, atol=1e-12)
    assert np.allclose(found.covariances[-1].numpy().ravel(), exact.y[:, -1], rtol=1e-7)


# --- against tokens --------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_many_tokens_follow_the_closure(sign):
    mean = torch.tensor([0.3, -0.2], dtype=torch.float64)
    v = sign * 0.8 * EYE + 0.3 * normal(seeded(1), 2, 2)
    system = replace(system_of_maps(EYE, v), beta=0.25)
    closure = simulate_closure(system, mean, EYE, until=0.5, n_saved=2)

    def errors(k):
        found = integrate_flow(
            system, gaussian_grid(k, mean), until=0.5, options=IntegrateOptions(rtol=1e-4)
        ).final
        return (
            relative(covariance_of(found), closure.covariances[-1], EYE),
            relative(found.mean(dim=0), closure.means[-1], mean),
        )

    few, many = errors(6), errors(30)
    assert max(many) < 0.03
    assert few[0] > 1.5 * many[0]  # exact in the limit of many tokens only


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_rotary_closure_is_what_turned_tokens_do_at_small_scores(sign):
    """Contents repeat at twelve places of a turn by 1.5 radians; the plain closure is 20 % off."""
    mean = torch.tensor([0.3, -0.2], dtype=torch.float64)
    tokens = gaussian_grid(10, mean).repeat(12, 1)
    n = len(tokens)
    spec = RotarySpec(
        base=10.0, d_rotary=2, d_head=2, pairing=Pairing.HALVES, frequency_divisors=(n / 1.5,)
    )
    v = sign * 0.8 * EYE + 0.3 * normal(seeded(1), 2, 2)
    system = replace(
        system_of_maps(EYE, v),
        beta=0.1,
        rotary=spec,
        b_q=torch.tensor([[1.0, -0.6]], dtype=torch.float64),
    )
    final = integrate_flow(system, tokens, until=0.5, options=IntegrateOptions(rtol=1e-4)).final
    turned = simulate_closure(system, mean, EYE, until=0.5, n_context=n)
    plain = simulate_closure(replace(system, rotary=None), mean, EYE, until=0.5)
    assert relative(covariance_of(final), turned.covariances[-1], EYE) < 0.04
    assert relative(covariance_of(final), plain.covariances[-1], EYE) > 0.15
    assert relative(final.mean(dim=0), turned.means[-1], mean) < 0.01


def test_fast_rotations_damp_both_directions():
    """The longer the context, the less of the rates a rotary encoding leaves."""
    for name in ("aligned", "anti-aligned"):
        system = example_system(name, d_model=2)
        spec = RotarySpec(base=10.0, d_rotary=2, d_head=2, pairing=Pairing.HALVES)
        changes = []
        for n_context in (1, 2, 8, 64):
            found = simulate_closure(
                replace(system, rotary=spec), ZERO, EYE, until=0.2, n_context=n_context
            )
            changes.append((found.covariances[-1] - EYE).norm().item())
        assert changes == sorted(changes, reverse=True)
        assert changes[-1] < 0.02 * changes[0]


def test_a_causal_context_is_seen_from_its_last_token():
    spec = RotarySpec(base=10.0, d_rotary=2, d_head=2, pairing=Pairing.HALVES)
    system = replace(example_system("aligned", d_model=2), rotary=spec)
    full, causal = (
        simulate_closure(replace(system, mask=mask), ZERO, EYE, until=0.1, n_context=4)
        for mask in (Mask.FULL, Mask.CAUSAL)
    )
    mean_turn = sum(math.cos(m) for m in range(4)) / 4
    rate = (causal.covariances[1] - EYE)[0, 0] / causal.times[1]
    assert rate.item() == pytest.approx(2 * mean_turn, rel=0.02)
    assert not torch.allclose(full.covariances[-1], causal.covariances[-1], atol=1e-3)


# --- what it refuses -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"geometry": Geometry.SPHERE}, "free flows with softmax"),
        ({"unnormalised": True}, "free flows with softmax"),
        ({"noise": 0.1}, "without noise"),
        ({"alibi_slopes": torch.ones(1).double()}, "no form for ALiBi"),
        ({"rotary": ROTARY}, "give n_context"),
        ({"positions": torch.zeros(4, 2).double(), "reinjected": True}, "re-injected positions"),
    ],
)
def test_flows_that_the_closure_is_not_for_are_refused(changes, words):
    system = replace(example_system("aligned", d_model=2), **changes)
    with pytest.raises(InputError, match=words):
        simulate_closure(system, ZERO, EYE, until=1.0)


@pytest.mark.parametrize(
    ("size", "words"), [(1e100, "could not be followed"), (1e200, "out of the range")]
)
def test_a_closure_that_cannot_be_followed_has_not_blown_up(size, words):
    """The integrator stopped at once, which was reported as a blow-up at t = 0; or never did."""
    system = system_of_maps(size * EYE, -size * EYE)
    with pytest.raises(InputError, match=words):
        simulate_closure(system, ZERO, EYE, until=1.0)


@pytest.mark.parametrize("until", [0.0, -1.0, math.inf, math.nan])
def test_impossible_times_are_refused(until):
    with pytest.raises(InputError, match="positive, finite"):
        simulate_closure(example_system("aligned", d_model=2), ZERO, EYE, until=until)
