"""Gradients through the flow against central differences."""

from dataclasses import replace

import pytest
import torch

from orbitlens.errors import InputError
from orbitlens.flows.examples import example_system
from orbitlens.flows.gradients import simulate_with_gradients
from orbitlens.flows.integrate import IntegrateOptions, integrate_flow
from orbitlens.flows.system import Geometry, Mask

SETTINGS = {
    "free": {},
    "causal": {"mask": Mask.CAUSAL},
    "sphere": {"geometry": Geometry.SPHERE},
    "pre-ln": {"geometry": Geometry.PRE_LN},
}


def drawn(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("name", SETTINGS)
def test_gradients_equal_central_differences(name):
    system = replace(example_system("random", d_model=3, seed=2), **SETTINGS[name])
    target = drawn(5, 3, seed=4)

    def loss(x, w):
        final = simulate_with_gradients(replace(system, w_q=w), x, until=1.0, rtol=1e-11)
        return (final * target).sum()

    x = drawn(5, 3, seed=3).requires_grad_(True)
    w = system.w_q.clone().requires_grad_(True)
    loss(x, w).backward()
    h = 1e-5
    with torch.no_grad():
        for variable, gradient in ((x, x.grad), (w, w.grad)):
            direction = drawn(*variable.shape, seed=5)
            plus, minus = (
                loss(*(v + s * h * direction if v is variable else v for v in (x, w)))
                for s in (1, -1)
            )
            expected = ((plus - minus) / (2 * h)).item()
            assert (gradient * direction).sum().item() == pytest.approx(expected, rel=1e-6)
            assert abs(expected) > 1e-3  # a gradient of zero would agree with anything


def test_the_value_is_that_of_the_plain_simulation():
    system, x = example_system("nd", d_model=3), drawn(6, 3, seed=1)
    plain = integrate_flow(system, x, until=2.0, options=IntegrateOptions(rtol=1e-10)).final
    assert torch.allclose(simulate_with_gradients(system, x, until=2.0), plain, atol=1e-7)


def test_tokens_that_run_away_are_refused():
    with pytest.raises(InputError, match="run away"):
        simulate_with_gradients(
            example_system("aligned"), drawn(8, 3, seed=1), until=1e4, max_steps=50
        )
