"""Gradients through the flow against central differences, and against a graph of the whole run."""

from dataclasses import fields, replace

import pytest
import torch
from scipy.integrate import DOP853

from orbitlens.errors import InputError
from orbitlens.flows import gradients as gradients_module
from orbitlens.flows._fast import fast_path
from orbitlens.flows._fast import way_back as way_back_module
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


def tensors_of(system):
    return [f.name for f in fields(system) if isinstance(getattr(system, f.name), torch.Tensor)]


def all_gradients(system, start, **how):
    """Return the gradients of a loss with respect to the start and to every tensor."""
    names = tensors_of(system)
    tensors = [getattr(system, name).clone().requires_grad_(True) for name in names]
    x = start.clone().requires_grad_(True)
    moving = replace(system, **dict(zip(names, tensors, strict=True)))
    end = simulate_with_gradients(moving, x, until=1.0, **how)
    found = torch.autograd.grad((end * drawn(*start.shape, seed=1)).sum(), [x, *tensors])
    return dict(zip(["start", *names], found, strict=True))


def largest_difference(one, other):
    """Return how far gradients are apart, each in units of its largest entry."""
    return max(float((one[k] - v).abs().max() / (1e-3 + v.abs().max())) for k, v in other.items())


def through_torch(monkeypatch):
    """Let gradients go back through torch, by the steps that compiled code takes."""
    nothing = replace(fast_path(random_system(5, n=3)[0], 3), way_back=None)

    def same_steps(system, x, until, rtol, max_steps):
        taken = fast_path(system, len(x)).way_back(rtol).follow(x, until, max_steps)
        starts = [torch.from_numpy(y.reshape(x.shape)) for y in taken.starts]
        return gradients_module.Steps(starts=starts, lengths=list(taken.lengths), end=taken.end)

    monkeypatch.setattr(gradients_module, "_steps", same_steps)
    monkeypatch.setattr(gradients_module, "fast_path", lambda *_: nothing)


BACK = {
    "free, full": {},
    "sphere, causal": {"geometry": Geometry.SPHERE, "mask": Mask.CAUSAL},
    "pre-ln, window": {"geometry": Geometry.PRE_LN, "window": 3},
    "sphere, causal, window": {"geometry": Geometry.POST_LN, "mask": Mask.CAUSAL, "window": 4},
    "large scores": {"geometry": Geometry.SPHERE, "beta": 400.0, "mask": Mask.CAUSAL},
}


@pytest.mark.parametrize("name", BACK)
@pytest.mark.parametrize(("width", "encoding"), [(1, "none"), (2, "rotary"), (3, "reinjected")])
def test_the_compiled_way_back_is_torchs(name, width, encoding, monkeypatch):
    system, start = random_system(7, heads=2, d=4, r=width, n=11, encoding=encoding, biased=True)
    system = replace(system, **BACK[name])
    compiled = all_gradients(system, start)
    through_torch(monkeypatch)
    assert largest_difference(compiled, all_gradients(system, start)) < 1e-8


def test_a_way_back_through_another_mask_would_be_noticed():
    system, start = random_system(7, heads=2, d=4, r=2, n=11, biased=True)
    causal = all_gradients(replace(system, mask=Mask.CAUSAL), start)
    assert largest_difference(causal, all_gradients(system, start)) > 0.01


def test_stages_that_were_not_kept_are_taken_anew(monkeypatch):
    system, start = random_system(7, heads=2, d=4, r=2, n=11, encoding="rotary")
    kept = all_gradients(system, start)
    monkeypatch.setattr(way_back_module, "MOST_NUMBERS", 12 * start.numel())  # of one step
    taken = fast_path(system, 11).way_back(1e-8).follow(start, 1.0, 100)
    assert len(taken.stages) == 1 < len(taken.lengths) == len(taken.starts)
    assert largest_difference(all_gradients(system, start), kept) < 1e-12


@pytest.mark.parametrize(
    "change", [{"geometry": Geometry.NGPT}, {"geometry": Geometry.PERI_LN}, {"unnormalised": True}]
)
def test_what_compiled_code_leaves_out_goes_back_through_torch(change):
    system, start = random_system(7, n=6)
    changed = replace(system, **change)
    assert fast_path(system, 6).way_back is not None
    assert fast_path(changed, 6).way_back is None
    assert torch.isfinite(all_gradients(changed, 0.3 * start)["w_q"]).all()


@pytest.mark.parametrize("encoding", ["none", "reinjected", "rotary", "alibi"])
def test_gradients_of_all_tensors_are_those_of_autograd_through_the_same_steps(encoding):
    """The way back keeps one step in memory; a graph of the whole run says the same."""
    system, start = random_system(5, heads=2, d=4, r=2, n=6, encoding=encoding, biased=True)
    names = tensors_of(system)
    assert {"w_q", "w_k", "w_v", "w_o", "b_q", "b_k"} <= set(names)
    target = drawn(6, 4, seed=1)

    def gradients(run):
        tensors = [getattr(system, name).clone().requires_grad_(True) for name in names]
        x = start.clone().requires_grad_(True)
        end = run(replace(system, **dict(zip(names, tensors, strict=True))), x)
        return torch.autograd.grad((end * target).sum(), [x, *tensors])

    compiled = fast_path(system, 6).way_back
    assert (compiled is None) is (encoding == "alibi")

    def whole_graph(moving, x):
        torchs = gradients_module._steps(system, x.detach(), 1.0, 1e-8, 1000)
        taken = torchs if compiled is None else compiled(1e-8).follow(x.detach(), 1.0, 1000)
        assert len(taken.lengths) == len(torchs.lengths)
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
