"""The compiled integrator's own parts, and ensembles of it."""

import numpy as np
import pytest
import torch

from orbitlens.errors import InputError
from orbitlens.simulate.ensemble import check_memory, simulate_ensemble
from orbitlens.simulate.examples import example_system
from orbitlens.simulate.integrate import SimulationOptions, simulate
from orbitlens.simulate.kernel import exp_in_place


def exponential(values):
    s = np.array(values, dtype=np.float64)
    t = np.empty_like(s)
    exp_in_place(s, t, t.view(np.int64), 0, s.size)
    return s


def test_the_exponential_is_exact_to_rounding():
    x = np.concatenate([np.linspace(-708, 0, 200_001), -np.logspace(-300, 2, 2001)])
    assert np.max(np.abs(exponential(x) / np.exp(x) - 1)) < 3e-16
    assert exponential([0.0, -0.0])[0] == 1.0
    assert exponential([-1e9])[0] < 1e-300


def test_an_ensemble_is_its_members_run_one_by_one():
    systems = [example_system(name, seed=seed) for name in ("pd", "nd") for seed in range(4)]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 10, 3, generator=generator, dtype=torch.float64)
    together = simulate_ensemble(systems, x, until=4.0, n_threads=2)
    for k, system in enumerate(systems):
        alone = simulate(system, x[k], until=4.0, options=SimulationOptions(n_saved=3))
        assert torch.equal(alone.unit_tokens[-1], together.unit_tokens[k])
        assert alone.n_evaluations == together.n_evaluations[k]


def test_ensembles_that_cannot_run_are_refused():
    x = torch.zeros(2, 5, 3, dtype=torch.float64)
    with pytest.raises(InputError, match="1 systems"):
        simulate_ensemble([example_system("pd")], x, until=1.0)
    with pytest.raises(InputError, match="too wide"):
        wide = example_system("pd", d_model=20)
        simulate_ensemble([wide], torch.zeros(1, 5, 20, dtype=torch.float64), until=1.0)
    with pytest.raises(InputError, match=r"needs about .* GB"):
        check_memory(10**13)
