"""T1 to T5 of a flow: every head, the drift and the start count, and tolerances are margins."""

from dataclasses import replace

import pytest
import torch

from orbitlens.flows.integrate import integrate_flow
from orbitlens.flows.outcome import Fate, fate
from orbitlens.flows.prediction import Ground, predict
from orbitlens.flows.system import Geometry, Mask, System, system_of_maps
from slow_flow import normal, seeded

EYE = torch.eye(2, dtype=torch.float64)
CLOUD = normal(seeded(0), 6, 2)


def held(system, tokens):
    return {c.name: c for c in predict(system, tokens).certificates if c.holds}


def diagonal(*values):
    return torch.diag(torch.tensor(values, dtype=torch.float64))


def causal(system):
    return replace(system, mask=Mask.CAUSAL)


def row(*values):
    return torch.tensor([values], dtype=torch.float64)


# --- cases that were once printed as proved --------------------------------------------------


def test_a_drift_takes_convergence_to_zero():
    system = replace(system_of_maps(EYE, -EYE), drift=torch.tensor([5.0, 0.0]).double())
    assert "T2" not in held(system, CLOUD)
    assert predict(system, CLOUD).source is not Ground.CERTIFICATE
    end = integrate_flow(system, CLOUD, until=30.0).final
    assert end.norm(dim=-1).min() > 3.0  # where "all tokens converge to 0" was printed
    assert "T2" in held(system_of_maps(EYE, -EYE), CLOUD)


def test_heads_that_outweigh_each_other_get_no_certificate_of_one_of_them():
    system = system_of_maps(torch.stack([EYE, EYE]), torch.stack([EYE, -3 * EYE]))
    assert set(held(system, CLOUD.abs())) == {"T5"}
    assert fate(integrate_flow(system, CLOUD.abs(), until=20.0)) is Fate.CONVERGING
    leader = held(causal(system), CLOUD)["T4"]
    assert "converges to 0" in leader.why


def test_two_heads_have_one_speed_limit_and_one_rate_of_both():
    system = system_of_maps(torch.stack([EYE, EYE]), torch.stack([EYE, EYE]))
    found = held(system, CLOUD.abs())
    assert found["T5"].numbers["rate"] == pytest.approx(2.0)
    assert found["T3"].numbers["rate"] == pytest.approx(2.0)
    names = [c.name for c in predict(system, CLOUD.abs()).certificates]
    assert len(names) == len(set(names))


def test_tokens_that_are_all_zero_diverge_nowhere():
    for system in (system_of_maps(EYE, EYE), causal(system_of_maps(EYE, EYE))):
        assert set(held(system, 0 * CLOUD)) <= {"T1", "T5"}
        assert predict(system, 0 * CLOUD).source is not Ground.CERTIFICATE
        assert "T2" in held(system, CLOUD)


def test_a_leader_in_the_stable_subspace_does_not_diverge():
    system = causal(system_of_maps(-EYE, diagonal(1.0, -1.0)))
    for first, expected in ((row(0.0, 1.0), False), (row(1e-3, 1.0), True)):
        tokens = torch.cat([first, CLOUD])
        assert ("T4" in held(system, tokens)) == expected


@pytest.mark.parametrize("size", [1.0, 2e7])
def test_keys_that_read_a_little_else_are_not_aligned(size):
    """w_k = (1, 5e-7) passed an equality of 1e-6, and T1 was violated by tokens of 2e7."""
    factors = {"w_q": (1.0, 0.0), "w_k": (1.0, 5e-7), "w_v": (1.0, 0.0), "w_o": (-1.0, 0.0)}
    w = {name: torch.tensor(v, dtype=torch.float64) for name, v in factors.items()}
    system = System(
        **{name: w[name][None, :, None] for name in ("w_q", "w_k", "w_v")}, w_o=w["w_o"][None, None]
    )
    assert "T1" not in held(system, size * CLOUD)
    exact = replace(system, w_k=system.w_q)
    assert ("T1" in held(exact, size * CLOUD)) == (size == 1.0)


# --- what a statement says of its own precision ----------------------------------------------


def test_t1_holds_within_a_radius_and_not_beyond():
    system = system_of_maps(EYE, -EYE)
    radius = held(system, CLOUD)["T1"].numbers["radius"]
    assert 1e5 < radius < 1e9
    assert "T1" in held(system, 0.1 * radius * CLOUD)
    assert "T1" not in held(system, 10 * radius * CLOUD)


def test_t1_and_t2_lose_their_hold_as_a_v_misses_more_of_w():
    source = seeded(3)
    m, twist = normal(source, 2, 2), normal(source, 2, 2)
    a = m @ m.T + 0.5 * EYE
    radii = []
    for share in (0.0, 1e-13, 1e-11):
        system = system_of_maps(a, -EYE + share * (twist - twist.T))
        found = held(system, CLOUD)
        radii.append((found["T1"].numbers["radius"], 1 / found["T2"].numbers["within"]))
    assert radii[0] > radii[1] > radii[2]
    assert "T1" not in held(system_of_maps(a, -EYE + 1e-7 * (twist - twist.T)), CLOUD)


def test_t2_says_nothing_of_tokens_smaller_than_rounding():
    system = system_of_maps(EYE, EYE)
    ball = held(system, CLOUD)["T2"].numbers["within"]
    assert 0 < ball < 1e-3
    assert "T2" not in held(system, 0.01 * ball * CLOUD / CLOUD.norm(dim=-1).max())


def test_a_nilpotent_value_map_has_no_growth_whatever_rounding_makes_of_it():
    jordan = torch.diag(torch.ones(4, dtype=torch.float64), 1)
    grown = 0
    for seed in range(20):
        q = torch.linalg.qr(normal(seeded(seed), 5, 5))[0]
        v = q @ jordan @ q.T
        grown += bool(torch.linalg.eigvals(v).real.max() > 1e-5)
        system = causal(system_of_maps(torch.eye(5).double(), v))
        assert not {"T3", "T4"} & set(held(system, normal(seeded(seed), 3, 5)))
    assert grown > 10  # its computed eigenvalues would have certified it


def test_a_drift_against_the_tokens_leaves_t3_while_they_outrun_it():
    x = torch.tensor([[1.0, 0.3], [0.8, -2.0]], dtype=torch.float64)
    for push, expected in ((-0.1, True), (-0.39, True), (-0.41, False)):
        system = system_of_maps(-EYE, diagonal(0.5, -1.0))
        drifting = replace(system, drift=torch.tensor([push, 0.0]).double())
        assert ("T3" in held(drifting, x)) == expected
    against = replace(system, drift=torch.tensor([-2.0, 0.0]).double())
    assert integrate_flow(against, x, until=4.0).final[:, 0].max() < 0  # they do turn round


def test_the_speed_limit_knows_the_drift():
    system = replace(system_of_maps(EYE, EYE), drift=torch.tensor([3.0, 4.0]).double())
    limit = held(system, CLOUD)["T5"]
    assert limit.numbers == {"rate": pytest.approx(1.0), "drift": pytest.approx(5.0)}
    assert "5 (exp(1 t) - 1) / 1" in limit.why


@pytest.mark.parametrize("size", [1e-300, 1e-200, 1e-160, 1e160, 1e200, 1e300])
@pytest.mark.parametrize("geometry", list(Geometry))
@pytest.mark.parametrize("part", ["values", "scores", "tokens", "drift", "one token"])
def test_nothing_is_proved_by_numbers_whose_squares_floats_do_not_hold(size, geometry, part):
    """T5 was once printed as exp(nan t) and, for maps of 1e-200, as exp(0 t)."""
    of = {name: size if name == part else 1.0 for name in ("values", "scores", "tokens", "drift")}
    system = replace(
        system_of_maps(of["scores"] * EYE, of["values"] * EYE),
        drift=of["drift"] * torch.tensor([1.0, 0.0]).double(),
        geometry=geometry,
    )
    tokens = of["tokens"] * CLOUD.abs()
    if part == "one token":
        tokens = torch.cat([tokens[:-1], size * tokens[-1:]])
    found = predict(system, tokens)
    assert found.certificates == ()
    assert found.source is Ground.NONE


def test_numbers_of_unusual_size_are_still_spoken_of():
    for size in (1e-20, 1e20):
        found = held(system_of_maps(EYE, size * EYE), CLOUD.abs())
        assert found["T5"].numbers["rate"] == pytest.approx(size)


def test_a_window_as_wide_as_the_context_is_none():
    system = system_of_maps(EYE, -EYE)
    assert "T1" in held(replace(system, window=6), CLOUD)
    assert "T1" not in held(replace(system, window=5), CLOUD)
