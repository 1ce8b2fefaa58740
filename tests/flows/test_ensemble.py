"""Ensembles are their members; T1 to T5 hold on all members of large ones, and fail when a
hypothesis is dropped.

Systems are drawn so that the hypotheses of a theorem hold and nothing else does: any value map V
and any A of the asked kind give W = A V. Theorems about all times are followed in legs, each begun
where the last one ended.
"""

import itertools
import math
import os
from dataclasses import replace

import jaxtyping
import pytest
import torch

from orbitlens.errors import InputError
from orbitlens.families.architecture import Pairing, RotarySpec
from orbitlens.flows import ensemble
from orbitlens.flows.ensemble import check_memory, simulate_ensemble
from orbitlens.flows.examples import (
    example_system,
    random_antisymmetric,
    random_definite,
)
from orbitlens.flows.integrate import IntegrateOptions, Method, integrate_flow
from orbitlens.flows.outcome import Fate, fate
from orbitlens.flows.system import Geometry, Mask, system_of_maps
from orbitlens.trajectory import Status
from slow_flow import ENCODINGS, MASKS, normal, random_system, seeded

CLOSE = (
    1e-9  # as a rule the same bits; once, in a whole run of the tests, tokens on a sphere were not
)


@pytest.fixture(autouse=True)
def unchecked_shapes():
    """Thousands of runs go without the tests' own check of shapes: other files have it on."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


TIGHT = IntegrateOptions(rtol=1e-9)
ROUNDING = 1e-6  # of what a theorem compares, at that tolerance


# --- ensembles -------------------------------------------------------------------------------


def test_an_ensemble_is_its_members_run_one_by_one():
    systems = [example_system(name, seed=seed) for name in ("pd", "nd") for seed in range(4)]
    x = normal(seeded(0), 8, 10, 3)
    together = simulate_ensemble(systems, x, until=3.0, n_threads=3)
    for k, system in enumerate(systems):
        alone = integrate_flow(system, x[k], until=3.0, options=IntegrateOptions(n_saved=3))
        assert torch.allclose(
            alone.unit_tokens[-1], together.unit_tokens[k], rtol=CLOSE, atol=CLOSE
        )
        assert torch.allclose(alone.log_scale[-1], together.log_scale[k], rtol=CLOSE, atol=CLOSE)
        assert alone.n_evaluations == together.n_evaluations[k]
        assert alone.status is together.statuses[k]


def test_an_ensemble_of_all_sorts_is_its_members_run_one_by_one():
    """Shapes, settings and ends differ: some settle, some run away, one has too few steps."""
    causal = {"mask": Mask.CAUSAL, "window": 3}
    systems = [
        example_system("aligned"),  # runs away
        replace(example_system("anti-aligned"), geometry=Geometry.SPHERE, beta=3.0),
        replace(example_system("random", seed=1), **causal),
        replace(example_system("random", seed=2), positions=normal(seeded(9), 10, 3)),
        example_system("aligned"),
        replace(example_system("nd"), beta=0.5),
        replace(example_system("nd"), beta=200.0),
    ]
    x = normal(seeded(3), len(systems), 10, 3)
    options = IntegrateOptions(max_steps=25, n_saved=3)
    together = simulate_ensemble(systems, x, until=15.0, options=options)
    for k, system in enumerate(systems):
        alone = integrate_flow(system, x[k], until=15.0, options=options)
        assert torch.allclose(
            alone.unit_tokens[-1], together.unit_tokens[k], rtol=CLOSE, atol=CLOSE
        )
        assert torch.allclose(alone.log_scale[-1], together.log_scale[k], rtol=CLOSE, atol=CLOSE)
        assert alone.n_evaluations == together.n_evaluations[k]
        assert alone.status is together.statuses[k]
        assert fate(alone, system.geometry) is together.fates[k]
    assert len(set(together.statuses)) > 2


def test_the_number_of_threads_changes_nothing():
    systems = [example_system("random", seed=seed) for seed in range(6)]
    x = normal(seeded(0), 6, 5, 3)
    one, many = (simulate_ensemble(systems, x, until=2.0, n_threads=k) for k in (1, 4))
    assert torch.equal(one.unit_tokens, many.unit_tokens)


def test_members_take_steps_of_their_own():
    eye = torch.eye(3, dtype=torch.float64)
    systems = [
        replace(system_of_maps(eye, eye), geometry=Geometry.SPHERE, beta=beta)
        for beta in (0.5, 1.0, 16.0, 64.0)
    ]
    found = simulate_ensemble(systems, normal(seeded(1), 16, 3).expand(4, 16, 3), until=10.0)
    assert len(set(found.n_evaluations.tolist())) > 1
    assert (found.unit_tokens.norm(dim=-1) - 1).abs().max() < 1e-12


def test_options_and_statuses_are_passed_on():
    systems = [example_system("aligned"), example_system("rotation", d_model=3)]
    x = normal(seeded(2), 2, 6, 3)
    found = simulate_ensemble(systems, x, until=30.0)
    assert found.statuses[0] is Status.DIVERGED
    assert found.fates[0] is Fate.DIVERGING
    fixed = IntegrateOptions(method=Method.EULER, step=0.5)
    assert simulate_ensemble(systems, x, until=1.0, options=fixed).n_evaluations.tolist() == [2, 2]


def test_ensembles_that_cannot_run_are_refused():
    pd = example_system("pd")
    with pytest.raises(InputError, match="there are 1 systems and tokens of shape"):
        simulate_ensemble([pd], torch.zeros(2, 5, 3, dtype=torch.float64), until=1.0)
    with pytest.raises(InputError, match="there are 0 systems"):
        simulate_ensemble([], torch.zeros(0, 5, 3, dtype=torch.float64), until=1.0)
    with pytest.raises(InputError, match="too wide"):
        wide = example_system("pd", d_model=20)
        simulate_ensemble([wide], torch.zeros(1, 5, 20, dtype=torch.float64), until=1.0)
    with pytest.raises(InputError, match="or have noise"):
        x = torch.zeros(1, 5, 3, dtype=torch.float64)
        simulate_ensemble([replace(pd, noise=0.1)], x, until=1.0)
    with pytest.raises(InputError, match="width 3"):
        simulate_ensemble([pd], torch.zeros(1, 5, 4, dtype=torch.float64), until=1.0)


def test_an_ensemble_too_large_for_memory_says_how_much_it_needs(monkeypatch):
    with pytest.raises(InputError, match=r"needs about 640000.0 GB and the machine has"):
        check_memory(10**13)
    check_memory(10)
    memory = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}
    monkeypatch.setattr(os, "sysconf", memory.__getitem__)
    assert ensemble.os is os
    x = torch.zeros(1, 1, 1, dtype=torch.float64).expand(1000, 50, 3)
    with pytest.raises(InputError, match=r"needs about 0.0 GB .* Run it in parts"):
        simulate_ensemble([example_system("pd")] * 1000, x, until=1.0)


# --- systems for the theorems ----------------------------------------------------------------


def definite(source, d, sign):
    return random_definite(d, sign * torch.ones(d, dtype=torch.float64), source)


def value_map(source, d):
    """Return an invertible V of mild speed."""
    v = normal(source, d, d) / math.sqrt(d)
    return v if torch.linalg.cond(v) < 30 else value_map(source, d)


def mild(system, largest=0.7):
    """Return the system with values scaled so that |V|_2 is `largest` (A scales along)."""
    size = torch.linalg.matrix_norm(system.w_o[0], ord=2)
    return replace(system, w_o=system.w_o * (largest / size))


def legs(systems, tokens, until, count=2):
    """Return where tokens are after each leg, the start first."""
    states = [tokens]
    for _ in range(count):
        found = simulate_ensemble(systems, states[-1], until=until, options=TIGHT)
        states.append(found.unit_tokens * torch.exp(found.log_scale)[:, None, None])
    return states


def squared_distances(x, metric):
    """Return (x_i - x_k)^T A (x_i - x_k) for every member and pair."""
    gaps = x[:, :, None, :] - x[:, None, :, :]
    return torch.einsum("sijd,sde,sije->sij", gaps, metric, gaps)


# --- T1 --------------------------------------------------------------------------------------


def pair_systems(count, sign, *, d, symmetric=True, mask=Mask.FULL):
    """Return systems with A definite of the given sign, any V, any biases; and the metrics |A|."""
    systems, metrics = [], []
    for seed in range(count):
        source = seeded(seed)
        v = value_map(source, d)
        a = definite(source, d, sign)
        w = (a if symmetric else a + 3 * random_antisymmetric(d, source)) @ v
        system = replace(system_of_maps(w, v), mask=mask)
        biases = {"b_q": normal(source, 1, d), "drift": 0.3 * normal(source, d)}
        system = mild(replace(system, **(biases if seed % 2 else {})))
        systems.append(system)
        metrics.append(sign * a)
    return systems, torch.stack(metrics)


def share_of_broken_pairs(systems, metrics, sign, *, n=6, until=0.4):
    d = metrics.shape[-1]
    states = legs(systems, normal(seeded(1), len(systems), n, d), until)
    distances = [squared_distances(x, metrics) for x in states]
    broken = torch.zeros(len(systems), dtype=torch.bool)
    for before, after in itertools.pairwise(distances):
        floor = ROUNDING * before.amax(dim=(1, 2), keepdim=True)
        broken |= (sign * (after - before) < -floor).flatten(1).any(dim=1)
    return broken.double().mean().item()


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["aligned", "anti-aligned"])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_t1_pair_distances_never_turn_back(d, sign):
    systems, metrics = pair_systems(120, sign, d=d)
    assert share_of_broken_pairs(systems, metrics, sign) == 0.0


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["aligned", "anti-aligned"])
def test_t1_needs_full_attention_and_a_symmetric_alignment(sign):
    systems, metrics = pair_systems(60, sign, d=3, mask=Mask.CAUSAL)
    assert share_of_broken_pairs(systems, metrics, sign) > 0.2
    systems, metrics = pair_systems(60, sign, d=3, symmetric=False)
    assert share_of_broken_pairs(systems, metrics, sign) > 0.2


def test_t1_does_not_survive_a_rotary_encoding():
    systems, metrics = pair_systems(60, 1.0, d=2)
    spec = RotarySpec(base=10.0, d_rotary=2, d_head=2, pairing=Pairing.HALVES)
    turned = [replace(system, rotary=spec) for system in systems]
    assert share_of_broken_pairs(turned, metrics, 1.0) > 0.2


# --- T2 --------------------------------------------------------------------------------------


def cloud_systems(count, sign, *, d, skew_w=True, skew_a=False, mask=Mask.FULL):
    """Return systems with sym(W) > 0 and V = A^-1 W, A of the given sign; and the metrics |A|."""
    systems, metrics = [], []
    for seed in range(count):
        source = seeded(1000 + seed)
        w, a = definite(source, d, 1.0), definite(source, d, sign)
        w = w + 2 * random_antisymmetric(d, source) if skew_w else w
        whole = a + 3 * random_antisymmetric(d, source) if skew_a else a
        systems.append(mild(replace(system_of_maps(w, torch.linalg.solve(whole, w)), mask=mask)))
        metrics.append(sign * a)
    return systems, torch.stack(metrics)


def energies(states, metrics):
    return torch.stack([torch.einsum("snd,sde,sne->s", x, metrics, x) for x in states])


@pytest.mark.parametrize("mask", [Mask.FULL, Mask.CAUSAL])
@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["aligned", "anti-aligned"])
def test_t2_the_energy_never_turns_back(sign, mask):
    """Under a causal mask W must be symmetric too."""
    for d in (1, 2, 3):
        systems, metrics = cloud_systems(60, sign, d=d, skew_w=mask is Mask.FULL, mask=mask)
        found = energies(legs(systems, normal(seeded(2), 60, 6, d), 1.0), metrics)
        assert (sign * found.diff(dim=0) > -ROUNDING * found[:-1]).all()


def test_t2_aligned_clouds_diverge_and_anti_aligned_ones_converge():
    x = normal(seeded(3), 60, 6, 2)
    away, _ = cloud_systems(60, 1.0, d=2)
    home, _ = cloud_systems(60, -1.0, d=2)
    assert set(simulate_ensemble(away, x, until=40.0).fates) == {Fate.DIVERGING}
    assert set(simulate_ensemble(home, x, until=2000.0).fates) == {Fate.CONVERGING}


def test_t2_needs_a_symmetric_alignment():
    """With antisymmetric parts in both, anti-aligned clouds need not contract."""
    systems, metrics = cloud_systems(60, -1.0, d=3, skew_a=True)
    x = normal(seeded(3), 60, 6, 3)
    found = energies(legs(systems, x, 1.0), metrics)
    assert (found.diff(dim=0) > ROUNDING * found[:-1]).any(dim=0).sum() >= 3
    fates = simulate_ensemble(systems, x, until=100.0, options=IntegrateOptions(max_steps=2000))
    assert fates.fates.count(Fate.CONVERGING) < 55


def test_t2_needs_a_symmetric_score_under_a_causal_mask():
    """A = -I and W = I + 8 J: full attention contracts; a causal one lets tokens grow."""
    eye, turn = torch.eye(2, dtype=torch.float64), torch.tensor([[0.0, -1.0], [1.0, 0.0]]).double()
    system = system_of_maps(eye + 8 * turn, -(eye + 8 * turn))
    tokens = 0.1 * torch.stack([eye[0], *[-(turn @ eye[0])] * 3])
    sizes = {}
    for mask in Mask:
        states = legs([replace(system, mask=mask)], tokens[None], 0.02)
        sizes[mask] = energies(states, eye[None]).ravel()
    assert (sizes[Mask.FULL].diff() < 0).all()
    assert (sizes[Mask.CAUSAL].diff() > 0).all()


# --- T3 --------------------------------------------------------------------------------------


def half_space_systems(count, rate):
    """Return systems of every mask and encoding whose V has V^T w = rate w, and w of each."""
    systems, normals = [], []
    for k in range(count):
        system, _ = random_system(
            2000 + k, encoding=ENCODINGS[k % 6], mask=MASKS[k // 6 % 4], n=5, d=4, r=4
        )
        if system.reinjected:  # shifts tokens; the theorem is about z = x + p
            system = replace(system, reinjected=False, positions=None)
        source = seeded(k)
        w = normal(source, 4)
        w = w / w.norm()
        v = value_map(source, 4)
        v = v + torch.outer(w, rate * w - v.T @ w)  # now V^T w = rate w
        eye = torch.eye(4, dtype=torch.float64)[None]
        systems.append(replace(system, w_v=eye, w_o=v.T[None].contiguous(), positions=None))
        normals.append(w)
    return systems, torch.stack(normals)


def heights_of(x, normals):
    return torch.einsum("snd,sd->sn", x, normals)


def tokens_above(normals, margin=0.1):
    x = normal(seeded(5), len(normals), 5, 4)
    lift = (margin - heights_of(x, normals).amin(dim=1)).clamp(min=0)
    return x + lift[:, None, None] * normals[:, None, :]


def test_t3_tokens_on_one_side_grow_exponentially():
    systems, normals = half_space_systems(240, 0.6)
    x = tokens_above(normals)
    states = legs(systems, x, 1.0)
    lowest = [heights_of(state, normals).amin(dim=1) for state in states]
    for k, found in enumerate(lowest):
        assert (found >= math.exp(0.6 * k) * lowest[0] * (1 - 1e-5)).all()


def test_t3_needs_all_tokens_on_one_side_and_a_positive_eigenvalue():
    systems, normals = half_space_systems(48, 0.6)
    x = tokens_above(normals)
    x[:, 0] -= 3 * normals  # one token on the other side
    final = legs(systems, x, 1.0, count=1)[-1]
    bound = math.exp(0.6) * heights_of(x, normals)[:, 1:].amin(dim=1)
    assert (heights_of(final, normals)[:, 1:].amin(dim=1) < bound).any()
    shrinking, normals = half_space_systems(48, -0.6)
    x = tokens_above(normals)
    final = legs(shrinking, x, 1.0, count=1)[-1]
    assert (heights_of(final, normals).amin(dim=1) < heights_of(x, normals).amin(dim=1)).all()


# --- T4 and T5 -------------------------------------------------------------------------------


def any_systems(count, **settings):
    """Return systems of every mask and encoding, one to three heads."""
    pairs = [
        random_system(
            3000 + k,
            heads=1 + k % 3,
            encoding=[e for e in ENCODINGS if e not in {"absolute", "reinjected"}][k % 4],
            mask=settings.get("mask", MASKS[k // 4 % 4]),
            biased=settings.get("biased", False),
            n=5,
            unnormalised=settings.get("unnormalised", False),
        )
        for k in range(count)
    ]
    return [system for system, _ in pairs], torch.stack([tokens for _, tokens in pairs])


def total_speed(system):
    return sum(
        torch.linalg.matrix_norm(system.w_v[h] @ system.w_o[h], ord=2).item()
        for h in range(system.n_heads)
    )


def leaders_after(systems, x, until):
    total = torch.stack([(s.w_v @ s.w_o).sum(dim=0) for s in systems])
    return torch.einsum("sd,sde->se", x[:, 0], torch.linalg.matrix_exp(until * total))


def test_t4_the_leader_follows_the_sum_of_the_value_maps():
    systems, x = any_systems(200, mask="causal")
    found = simulate_ensemble(systems, x, until=1.5, options=TIGHT)
    final = found.unit_tokens * torch.exp(found.log_scale)[:, None, None]
    exact = leaders_after(systems, x, 1.5)
    assert (final[:, 0] - exact).norm(dim=-1).div(exact.norm(dim=-1)).max() < 1e-6
    full, x = any_systems(40, mask="full")
    found = simulate_ensemble(full, x, until=1.5)
    gaps = (found.unit_tokens[:, 0] - leaders_after(full, x, 1.5)).norm(dim=-1)
    assert (gaps > 0.1).sum() > 20


def outgrowth(systems, x, until):
    """Return max|x(t)| over T5's bound, for every member."""
    found = simulate_ensemble(systems, x, until=until, options=TIGHT)
    grown = found.unit_tokens.norm(dim=-1).amax(dim=-1).log() + found.log_scale
    limits = torch.tensor([total_speed(system) for system in systems])
    return torch.exp(grown - x.norm(dim=-1).amax(dim=-1).log() - until * limits)


def test_t5_no_token_outgrows_the_speed_limit():
    systems, x = any_systems(240)
    assert outgrowth(systems, x, 1.0).max() <= 1 + ROUNDING
    # It is sharp: one token along the largest singular direction of a symmetric V.
    v = torch.diag(torch.tensor([0.9, 0.1], dtype=torch.float64))
    one = torch.tensor([[[2.0, 0.0]]], dtype=torch.float64)
    system = system_of_maps(torch.eye(2, dtype=torch.float64), v)
    assert outgrowth([system], one, 1.0).item() == pytest.approx(1.0, rel=1e-6)


def test_t5_needs_a_softmax_and_no_drift():
    biased, x = any_systems(60, biased=True)
    assert outgrowth(biased, 0.1 * x, 0.5).max() > 1.01
    loud, x = any_systems(60, unnormalised=True)
    assert outgrowth(loud, x, 0.02).max() > 1.01
