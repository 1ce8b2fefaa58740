"""The falsifier: it finds what is false, and nothing where certificates are as they should be."""

from dataclasses import replace

import jaxtyping
import numpy as np
import pytest
import torch

from orbitlens.errors import InputError
from orbitlens.flows.system import Geometry, system_of_maps
from orbitlens.theory.certificates import certify
from orbitlens.verifying.episodes import printed_certificates, run_trials
from orbitlens.verifying.falsifier import verify
from orbitlens.verifying.ledger import Ledger
from orbitlens.verifying.recipes import FAMILIES, N_NUMBERS, draw_recipe
from orbitlens.verifying.reference import Maps, SystemBatch, start_of
from slow_flow import normal, random_system, seeded, slow_field, slow_start

SMOKE = 400  # systems


@pytest.fixture(autouse=True, scope="module")
def unchecked_shapes():
    """Hundreds of systems go without the tests' own check of shapes: other tests have it on."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def entries(ledger):
    return {entry.name: entry for entry in ledger.entries}


@pytest.fixture(scope="module")
def smoke():
    return verify(SMOKE, seed=1)


def test_no_certificate_is_broken(smoke):
    assert smoke.n_systems == SMOKE
    assert smoke.n_violations == 0
    assert sum(entry.checked for entry in smoke.entries) > SMOKE


def test_systems_lie_in_every_setting(smoke):
    assert set(smoke.settings["geometry"]) == {g.value for g in Geometry}
    assert set(smoke.settings["family"]) <= set(FAMILIES)
    assert len(smoke.settings["mask"]) == len(smoke.settings["encoding"]) == 4
    assert len(smoke.settings["n_heads"]) > 1


def test_a_ledger_is_saved_and_loaded(smoke, tmp_path):
    assert Ledger.load(smoke.save(tmp_path / "ledger.json")) == smoke
    assert "0 violations" in smoke.summary()
    assert list(smoke.to_pandas()["name"]) == [entry.name for entry in smoke.entries]


def test_no_systems_are_no_evidence():
    with pytest.raises(InputError, match="at least 1"):
        verify(0)


# --- planted falsehoods ----------------------------------------------------------------------


def planted(name, numbers, wanted):
    """Print one false certificate of every system that `wanted` picks."""
    false = certify(name, [], margin=1.0, conclusion="false", numbers=numbers)
    return lambda system, tokens: [false] if wanted(system) else []


def free(system):
    return system.geometry is Geometry.FREE


def sphere(system):
    return system.geometry is Geometry.SPHERE


FALSE = {
    "T3": ({"rate": 5.0, "start": 1e-3}, free),
    "T4": ({"rate": 5.0, "start": 1e-3, "less": 0.0}, free),
    "T5": ({"rate": 1e-3, "drift": 0.0}, free),
    "N1": ({"spread": 1e-3, "rate": 3.0}, sphere),
    "N1c": ({"spread": 1e-3, "rate": 3.0}, sphere),
    "N2": ({"spread": 1e-3, "rate": 3.0}, sphere),
    "N3": ({}, sphere),
    "N4": ({"spread": 0.0, "entropy": 0.69, "weight": 0.5}, sphere),
    "N5": ({"cosine": 0.5, "tolerance": 1e-12, "growth": 0.0}, sphere),
    "N6": ({"loss": 0.0, "sign": 1.0}, sphere),
    "T1": ({"radius": 1e9, "slack": 1e-3, "sign": 1.0}, free),
    "T2": ({"within": 1e-6, "sign": 1.0}, free),
}


@pytest.mark.parametrize("name", FALSE)
def test_a_false_certificate_is_caught(name):
    numbers, wanted = FALSE[name]
    found = entries(verify(120, seed=2, printed=planted(name, numbers, wanted)))[name]
    assert found.held > 10
    assert found.violations > 0
    assert found.smallest_slack < 0


def recipes(n, **changes):
    """Return systems of two tokens under one head, with some choices made."""
    random = np.random.default_rng(0)
    made = [replace(draw_recipe(random, (2, 3, 1)), **changes) for _ in range(n)]
    return [(recipe, random.normal(size=N_NUMBERS)) for recipe in made]


PLAIN = {"geometry": Geometry.FREE, "encoding": "none", "biased": False, "mask": "full"}


def slacks(made, name, **numbers):
    """Return the slack of one certificate whose numbers were changed, where it is printed."""

    def changed(system, tokens):
        printed = [c for c in printed_certificates(system, tokens) if c.name == name and c.holds]
        return [replace(c, numbers=_changed(c.numbers, numbers)) for c in printed]

    trials = run_trials(made, printed=changed, with_ends=False)
    return [trial.slacks[name] for trial in trials if name in trial.slacks]


def _changed(old, factors):
    return {key: value * factors.get(key, 1.0) for key, value in old.items()}


def test_a_speed_limit_that_drops_the_drift_is_caught():
    """T5 as it once was: the drift left out of the bound."""
    made = recipes(8, family="random", start="normal", drift="random", size=1e-3, **PLAIN)
    assert min(slacks(made, "T5")) > -1e-6
    assert min(slacks(made, "T5", drift=0.0)) < -0.1


def test_a_rate_that_is_a_little_too_large_is_caught():
    """T3 with 1.2 times its rate, which equal tokens reach."""
    choices = {"start": "cluster", "drift": "none", "size": 1.0, "edge": 1, **PLAIN}
    made = recipes(8, family="scalar", **choices)
    assert min(slacks(made, "T3")) > -1e-6
    assert min(slacks(made, "T3", rate=1.2)) < -0.1


# --- the reference ---------------------------------------------------------------------------


@pytest.mark.parametrize("geometry", list(Geometry))
@pytest.mark.parametrize("encoding", ["none", "absolute", "rotary", "alibi"])
def test_the_reference_agrees_with_the_loops_over_tokens(geometry, encoding):
    """Two right-hand sides that share nothing: whole tensors here, loops in tests/slow_flow.py."""
    system, tokens = random_system(
        5, heads=2, d=3, r=2, n=4, mask="causal-window", encoding=encoding, biased=True,
        geometry=geometry,
    )  # fmt: skip
    start = start_of(system, tokens.numpy())
    assert np.abs(start - slow_start(system, tokens)).max() < 1e-14
    found = SystemBatch([Maps.of(system, 4)]).velocity(start[None])[0]
    assert np.abs(found - slow_field(system, start)).max() < 1e-12


def test_a_trajectory_of_the_reference_is_exact_where_the_flow_is_linear():
    v = torch.tensor([[0.3, -1.0], [1.0, 0.3]], dtype=torch.float64)
    maps = Maps.of(system_of_maps(torch.zeros(2, 2, dtype=torch.float64), v), 1)
    x = normal(seeded(0), 1, 2).numpy()
    path = SystemBatch([maps]).solve(x[None], np.array([0.0, 1.0]), np.ones(1))
    turn = np.exp(0.3) * np.array([[np.cos(1), -np.sin(1)], [np.sin(1), np.cos(1)]])
    assert np.abs(path[-1, 0, 0] - turn @ x[0]).max() < 1e-7


def test_a_recipe_is_a_function_of_its_numbers():
    random = np.random.default_rng(0)
    for _ in range(30):
        recipe = draw_recipe(random, (5, 4, 3 if random.random() < 0.5 else 1))
        theta = random.normal(size=N_NUMBERS)
        (one, x), (two, y) = recipe.build(theta), recipe.build(theta)
        assert torch.equal(x, y)
        assert torch.equal(one.w_o, two.w_o)
        assert not torch.equal(one.w_q, recipe.build(theta + 0.1)[0].w_q)
