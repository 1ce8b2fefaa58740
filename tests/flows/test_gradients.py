"""Gradients through the flow against central differences, and against a graph of the whole run."""

from dataclasses import fields, replace

import pytest
import torch
from scipy.integrate import DOP853

from orbitlens.errors import InputError
from orbitlens.flows import gradients as gradients_module
from orbitlens.flows.examples import example_system
from orbitlens.flows.fields import make_field
from orbitlens.flows.gradients import simulate_with_gradients
from orbitlens.flows.integrate import IntegrateOptions, integrate_flow
from orbitlens.flows.system import Geometry, Mask
from slow_flow import random_system

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


def plain_step(field, x, h):
    """Take one step of SciPy's DOP853, all of it in one graph."""
    stages = []
    for row in DOP853.A:
        pairs = zip(row, stages, strict=False)
        stages.append(field(x + h * sum((w * k for w, k in pairs if w), torch.zeros_like(x))))
    return x + h * sum(w * k for w, k in zip(DOP853.B, stages, strict=True))


@pytest.mark.parametrize("encoding", ["none", "reinjected", "rotary", "alibi"])
def test_gradients_of_all_tensors_are_those_of_autograd_through_the_same_steps(encoding):
    """The way back keeps one step in memory; a graph of the whole run says the same."""
    system, start = random_system(5, heads=2, d=4, r=2, n=6, encoding=encoding, biased=True)
    names = [f.name for f in fields(system) if isinstance(getattr(system, f.name), torch.Tensor)]
    assert {"w_q", "w_k", "w_v", "w_o", "b_q", "b_k"} <= set(names)
    target = drawn(6, 4, seed=1)

    def gradients(run):
        tensors = [getattr(system, name).clone().requires_grad_(True) for name in names]
        x = start.clone().requires_grad_(True)
        end = run(replace(system, **dict(zip(names, tensors, strict=True))), x)
        return torch.autograd.grad((end * target).sum(), [x, *tensors])

    def whole_graph(moving, x):
        taken = gradients_module._steps(system, x.detach(), 1.0, 1e-8, 1000)
        field = make_field(moving, len(x))
        for h in taken.lengths:
            x = plain_step(field, x, h)
        return x

    found = gradients(lambda moving, x: simulate_with_gradients(moving, x, until=1.0))
    expected = gradients(whole_graph)
    for name, one, other in zip(["start", *names], found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12), name
        # A shift of all keys changes no softmax, unless each is turned its own way.
        assert other.abs().max() > 1e-6 or (name == "b_k" and encoding != "rotary"), name


def test_what_needs_no_gradient_gets_none():
    system, start = random_system(5, n=6)
    x = start.clone().requires_grad_(True)
    simulate_with_gradients(system, x, until=0.5).sum().backward()
    assert x.grad is not None and system.w_q.grad is None
    assert not simulate_with_gradients(system, start, until=0.5).requires_grad
