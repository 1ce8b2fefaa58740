"""N1 to N6: each comes true where it holds, and has a control just outside it that breaks."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from orbitlens.families.architecture import Pairing, RotarySpec
from orbitlens.flows.outcome import Fate
from orbitlens.flows.prediction import Ground, predict
from orbitlens.flows.system import Geometry, Mask, system_of_maps
from slow_flow import normal, seeded, slow_flow

EYE = torch.eye(3, dtype=torch.float64)
SPHERE = Geometry.SPHERE


def on_sphere(w, v, **changes):
    return replace(system_of_maps(w, v), geometry=SPHERE, **changes)


def held(system, tokens):
    return {c.name: c for c in predict(system, tokens).certificates if c.holds}


def score(seed):
    return normal(seeded(100 + seed), 3, 3)


def one_side(seed, n=5):
    """Return tokens in a half-space."""
    x = normal(seeded(seed), n, 3)
    x[:, 0] = x[:, 0].abs() + 0.05
    return x


def around(seed, n=5):
    """Return tokens in no half-space: some and their opposites."""
    x = normal(seeded(seed), n, 3)
    return torch.cat([x, -x + 1e-3 * normal(seeded(seed + 1), n, 3)])


def path(system, tokens, times):
    """Return directions at some times by the slow reference."""
    x = slow_flow(system, tokens, times, rtol=1e-10)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def widest(y):
    return np.linalg.norm(y[:, :, None] - y[:, None], axis=-1).max(axis=(1, 2))


TIMES = np.array([0.0, 0.5, 1.0, 2.0, 4.0])
ROTARY = RotarySpec(base=20.0, d_rotary=2, d_head=3, pairing=Pairing.HALVES)
SETTINGS = {
    "full": {},
    "causal": {"mask": Mask.CAUSAL},
    "rotary": {"rotary": ROTARY},
    "alibi": {"alibi_slopes": torch.tensor([0.5]).double()},
    "biased": {"b_q": torch.ones(1, 3).double()},
}


# --- N1 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS)
def test_n1_tokens_in_a_half_space_gather_as_fast_as_proved(setting):
    system = on_sphere(score(0), 0.8 * EYE, **SETTINGS[setting])
    found = held(system, one_side(0))["N1"]
    bound = found.numbers["spread"] * np.exp(-found.numbers["rate"] * TIMES)
    assert (widest(path(system, one_side(0), TIMES)) <= bound).all()
    outlook = predict(system, one_side(0))
    assert (outlook.source, outlook.fate) == (Ground.CERTIFICATE, Fate.CONVERGING)


def test_n1_holds_of_several_heads_whose_value_maps_are_not_negative():
    maps = torch.stack([score(0), score(1)])
    good = on_sphere(maps, torch.stack([0.5 * EYE, 1.5 * EYE]))
    bad = on_sphere(maps, torch.stack([-0.5 * EYE, 1.5 * EYE]))
    assert "N1" in held(good, one_side(0))
    assert "N1" not in held(bad, one_side(0))


def test_without_a_half_space_tokens_need_not_gather():
    """Control: two opposite tokens under V = I stay opposite."""
    system = on_sphere(0 * EYE, EYE)
    x = torch.cat([EYE[:1], -EYE[:1]])
    assert "N1" not in held(system, x)
    assert widest(path(system, x, TIMES))[-1] == pytest.approx(2.0)


def test_with_a_negative_value_map_tokens_in_a_half_space_spread():
    system = on_sphere(EYE, -EYE)
    assert not {"N1", "N1c"} & set(held(system, one_side(0)))
    spread = widest(path(system, one_side(0), TIMES))
    assert spread[-1] > spread[0]


def test_n1_goes_where_a_drift_pulls():
    b = torch.tensor([1.0, 0.2, 0.0]).double()
    system = on_sphere(score(0), 0.7 * EYE, drift=b, window=2)
    x = one_side(0)
    x = x * torch.sign(x @ b)[:, None]
    found = held(system, x)["N1"]
    cosines = (path(system, x, TIMES) @ (b / b.norm()).numpy()).min(axis=1)
    start = math.atanh(found.numbers["cosine"])
    assert (cosines >= np.tanh(found.numbers["pull"] * TIMES + start) - 1e-9).all()
    assert "N1" not in held(system, torch.cat([x, -x[:1]]))


@pytest.mark.parametrize("geometry", [Geometry.PRE_LN, Geometry.PERI_LN, Geometry.NGPT])
def test_n1_survives_other_speeds_without_its_rate(geometry):
    system = replace(on_sphere(0.3 * score(0), EYE), geometry=geometry)
    found = held(system, one_side(0))["N1"]
    assert "rate" not in found.numbers
    assert widest(path(system, one_side(0), np.array([0.0, 300.0])))[-1] < 0.1


def test_a_window_takes_n1_its_proof():
    system = on_sphere(score(0), EYE, window=2)
    assert "N1" not in held(system, one_side(0))


# --- N1c -------------------------------------------------------------------------------------


def ahead(seed, *, lead=2.0):
    """Return V with eigenvalues lead, and two of modulus about 1."""
    s = torch.linalg.qr(normal(seeded(seed), 3, 3))[0] + 0.2 * normal(seeded(seed + 1), 3, 3)
    block = torch.tensor([[lead, 0, 0], [0, 0.3, -0.9], [0, 0.9, 0.3]]).double()
    return s @ block @ torch.linalg.inv(s), torch.linalg.inv(s)[0]


@pytest.mark.parametrize("setting", [*SETTINGS, "window"])
def test_n1c_tokens_on_one_side_gather_in_the_leading_direction(setting):
    v, w = ahead(0)
    changes = {"window": 2} if setting == "window" else SETTINGS[setting]
    system = on_sphere(score(0), v, **changes)
    x = normal(seeded(3), 5, 3)
    x = x * torch.sign(x @ w)[:, None]
    found = held(system, x)["N1c"]
    y = path(system, x, TIMES)
    bound = found.numbers["spread"] * np.exp(-found.numbers["rate"] * TIMES)
    assert (widest(y) <= bound).all()
    assert "N1c" not in held(system, torch.cat([x, -x[:1]]))
    assert "N1c" not in held(replace(system, drift=torch.ones(3).double()), x)


def test_an_eigenvalue_that_is_not_largest_in_modulus_gathers_nothing():
    """Control: a turn as large as the leading eigenvalue, and tokens that all turn."""
    v, w = ahead(0, lead=0.5)
    system = on_sphere(score(0), v)
    x = normal(seeded(3), 5, 3)
    x = x * torch.sign(x @ w)[:, None]
    assert "N1c" not in held(system, x)


def test_several_heads_void_n1c():
    """Control: two heads that each have a leading direction pull tokens to a third."""
    (v, w), (u, _) = ahead(0), ahead(5)
    x = normal(seeded(3), 5, 3)
    x = x * torch.sign(x @ w)[:, None]
    system = on_sphere(torch.stack([score(0), score(1)]), torch.stack([v, u]))
    assert "N1c" not in held(system, x)


def test_n1c_of_a_narrow_head_counts_what_lies_outside_its_span():
    out, value = normal(seeded(1), 9, 1), normal(seeded(2), 9, 1)
    value = value * torch.sign((out * value).sum())
    factor = {"w_q": normal(seeded(4), 1, 9, 1), "w_k": normal(seeded(5), 1, 9, 1)}
    base = system_of_maps(torch.eye(9).double(), torch.eye(9).double())
    system = replace(base, geometry=SPHERE, w_v=value[None], w_o=out.T[None], **factor)
    x = normal(seeded(6), 4, 9)
    x = x * torch.sign(x @ value)
    found = held(system, x)["N1c"]
    bound = found.numbers["spread"] * np.exp(-found.numbers["rate"] * TIMES)
    assert (widest(path(system, x, TIMES)) <= bound).all()


# --- N2 and N3 -------------------------------------------------------------------------------


def test_n2_the_first_token_turns_to_the_leading_eigenvector():
    v, _ = ahead(0)
    heads = torch.stack([v - 0.5 * score(3), 0.5 * score(3)])
    system = on_sphere(torch.stack([score(0), score(1)]), heads, mask=Mask.CAUSAL)
    x = normal(seeded(3), 4, 3)
    found = held(system, x)["N2"]
    values, vectors = np.linalg.eig(v.numpy())
    lead = vectors[:, values.real.argmax()].real
    y = path(system, x, TIMES)[:, 0]
    lead = lead / np.linalg.norm(lead)
    gap = np.minimum(np.linalg.norm(y - lead, axis=1), np.linalg.norm(y + lead, axis=1))
    assert (gap <= found.numbers["spread"] * np.exp(-found.numbers["rate"] * TIMES)).all()
    assert "N2" not in held(replace(system, mask=Mask.FULL), x)
    assert "N2" not in held(replace(system, drift=torch.ones(3).double()), x)


def test_a_leading_pair_that_turns_has_no_n2():
    """Control: the first token goes round for ever."""
    v, _ = ahead(0, lead=0.1)
    system = on_sphere(score(0), v, mask=Mask.CAUSAL)
    assert "N2" not in held(system, normal(seeded(3), 4, 3))


def test_a_jordan_block_has_no_n2_as_nothing_tells_its_eigenvalues_apart():
    jordan = EYE + torch.diag(torch.ones(2).double(), 1)
    system = on_sphere(score(0), jordan, mask=Mask.CAUSAL)
    assert not {"N1c", "N2"} & set(held(system, normal(seeded(3), 4, 3)))


def test_n2_of_this_start_needs_a_part_in_the_leading_direction():
    v = torch.diag(torch.tensor([1.0, 0.5, 0.2]).double())
    system = on_sphere(score(0), v, mask=Mask.CAUSAL)
    x = normal(seeded(3), 4, 3)
    assert "N2" in held(system, x)
    x[0, 0] = 0.0
    assert "N2" not in held(system, x)


def test_n3_is_said_of_almost_every_start_and_proves_none():
    system = on_sphere(score(0), EYE, mask=Mask.CAUSAL)
    x = around(0)
    outlook = predict(system, x)
    assert "N3" in held(system, x)
    assert (outlook.source, outlook.fate) == (Ground.INDICATION, Fate.CONVERGING)
    y = path(system, x, np.array([0.0, 400.0]))
    assert np.linalg.norm(y[-1] - y[0, 0], axis=-1).max() < 1e-3
    # Control: of the starts it leaves out, one stays where it is.
    opposite = torch.cat([EYE[:1], -EYE[:1]])
    assert widest(path(system, opposite, TIMES))[-1] == pytest.approx(2.0)
    assert "N3" not in held(replace(system, mask=Mask.FULL), x)


# --- N4 --------------------------------------------------------------------------------------


def test_n4_no_tokens_make_attention_sharper_than_its_floor():
    """The worst tokens: one along the query, all others against it."""
    system = on_sphere(1.5 * EYE, score(0))
    x = torch.cat([EYE[:1], -EYE[:1].expand(3, 3)])
    found = held(system, x)["N4"].numbers
    scores = 1.5 * (x[0] @ x.T)
    p = scores.softmax(dim=0)
    assert found["spread"] == pytest.approx(3.0)
    assert p.min().item() >= found["weight"]
    entropy = -(p * p.log()).sum().item()
    assert found["entropy"] <= entropy
    assert found["entropy"] == pytest.approx(entropy, rel=1e-6)  # the floor is reached


def test_longer_tokens_break_the_floor_of_n4():
    """Control: what a norm keeps short may be any length without it."""
    system = on_sphere(1.5 * EYE, score(0))
    x = 2 * torch.cat([EYE[:1], -EYE[:1].expand(3, 3)])
    p = (1.5 * (x[0] @ x.T)).softmax(dim=0)
    assert p.min().item() < held(system, x)["N4"].numbers["weight"]
    assert "N4" not in held(replace(system, geometry=Geometry.FREE), x)


def test_a_floor_that_says_nothing_is_not_printed_as_held():
    assert "N4" not in held(on_sphere(30 * EYE, EYE), one_side(0))


# --- N5 and N6 -------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [(1.0,), (-0.7,), (1.0, -0.4)])
def test_n5_equiangular_tokens_follow_the_scalar_equation(values):
    n, cosine, scores = 3, 0.2, (0.8, -1.1)[: len(values)]
    gram = (1 - cosine) * np.eye(n) + cosine
    x = torch.from_numpy(np.linalg.cholesky(gram))
    maps = [torch.stack([c * EYE for c in part]) for part in (scores, values)]
    system = on_sphere(*maps)
    assert held(system, x)["N5"].numbers["cosine"] == pytest.approx(cosine)

    def pace(_, c):
        pulls = [2 * v / (np.exp(b * (1 - c)) + n - 1) for b, v in zip(scores, values, strict=True)]
        return sum(pulls) * (1 - c) * (1 + (n - 1) * c)

    expected = solve_ivp(pace, (0, 4), [cosine], t_eval=TIMES, rtol=1e-10, atol=1e-12).y[0]
    y = path(system, x, TIMES)
    found = np.einsum("tid,tjd->tij", y, y)[:, ~np.eye(n, dtype=bool)]
    assert np.abs(found - expected[:, None]).max() < 1e-6
    x[0] = x[0] + 0.01
    assert "N5" not in held(system, x)


def test_tokens_at_one_angle_leave_it_under_another_score_map():
    """Control: with W no multiple of I, pairs part."""
    gram = 0.8 * np.eye(3) + 0.2
    x = torch.from_numpy(np.linalg.cholesky(gram))
    system = on_sphere(torch.diag(torch.tensor([2.0, -1.0, 0.1]).double()), EYE)
    assert "N5" not in held(system, x)
    y = path(system, x, TIMES)
    cosines = np.einsum("tid,tjd->tij", y, y)[1][np.triu_indices(3, 1)]
    assert np.ptp(cosines) > 1e-3


def energy(w, y):
    return np.exp(np.einsum("tid,de,tje->tij", y, w.numpy(), y)).sum(axis=(1, 2))


@pytest.mark.parametrize("factor", [0.7, -0.7])
def test_n6_the_energy_of_a_gradient_flow_moves_one_way(factor):
    m = score(0)
    w = (m + m.T) / 2
    system = on_sphere(w, factor * w)
    assert held(system, around(0))["N6"].numbers["sign"] == np.sign(factor)
    change = np.diff(energy(w, path(system, around(0), TIMES)))
    assert (np.sign(factor) * change > 0).all()


def test_without_a_symmetric_score_map_the_energy_can_turn():
    broken = 0
    for seed in range(12):
        w = score(seed)
        system = on_sphere(w, w)
        assert "N6" not in held(system, around(seed))
        change = np.diff(energy(w, path(system, around(seed), TIMES)))
        broken += bool((change < 0).any())
    assert broken > 0


@pytest.mark.parametrize("size", [1e2, 1e3, 1e9])
def test_scores_far_from_symmetric_get_no_energy_and_no_error(size):
    system = on_sphere(size * score(1), score(2))
    assert "N6" not in held(system, around(0))


def test_no_theorem_speaks_of_directions_that_nothing_is_known_of():
    outlook = predict(on_sphere(score(0), score(1)), around(0))
    assert outlook.source is Ground.NONE
    assert [c.name for c in outlook.certificates] == ["N1", "N1c", "N2", "N3", "N4", "N5", "N6"]
