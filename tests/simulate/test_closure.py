"""The Gaussian closure against closed forms and against many tokens."""

from dataclasses import replace

import pytest
import torch

from orbitlens.errors import InputError
from orbitlens.simulate.closure import simulate_closure
from orbitlens.simulate.examples import example_system
from orbitlens.simulate.integrate import SimulationOptions, simulate
from orbitlens.simulate.system import Geometry, system_of_maps


def start(d):
    return torch.zeros(d, dtype=torch.float64), torch.eye(d, dtype=torch.float64)


def test_the_anti_aligned_cloud_shrinks_like_one_over_one_plus_two_t():
    found = simulate_closure(example_system("anti-aligned", d_model=2), *start(2), until=5.0)
    expected = 1 / (1 + 2 * found.times)
    assert found.blow_up is None
    assert torch.allclose(found.covariances[:, 0, 0], expected, rtol=1e-7)


def test_the_aligned_cloud_blows_up_at_one_half():
    found = simulate_closure(example_system("aligned", d_model=2), *start(2), until=5.0)
    assert found.blow_up == pytest.approx(0.5, abs=1e-6)


def test_many_tokens_follow_the_closure_and_few_do_not():
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(2, 2, generator=generator, dtype=torch.float64)
    system = system_of_maps(0.5 * torch.eye(2, dtype=torch.float64), 0.3 * a)
    mean, covariance = torch.tensor([0.4, -0.2], dtype=torch.float64), start(2)[1]
    closure = simulate_closure(system, mean, covariance, until=0.5)

    def gap(n):
        x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
        x = (x - x.mean(dim=0)) @ torch.linalg.inv(torch.linalg.cholesky(torch.cov(x.T)).T) + mean
        final = simulate(system, x, until=0.5, options=SimulationOptions(rtol=1e-4)).final
        return (torch.cov(final.T) - closure.covariances[-1]).norm() / covariance.norm()

    assert gap(4000) < 0.05
    assert gap(8) > 0.05


def test_other_geometries_are_refused():
    system = replace(example_system("aligned", d_model=2), geometry=Geometry.SPHERE)
    with pytest.raises(InputError, match="free flows"):
        simulate_closure(system, *start(2), until=1.0)
