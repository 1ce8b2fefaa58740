"""Gradients through the flow against central differences, and against a graph of the whole run."""

from dataclasses import fields, replace

import pytest
import torch
from scipy.integrate import DOP853

from orbitlens.errors import InputError
from orbitlens.flows import way_back
from orbitlens.flows._fast import fast_path
from orbitlens.flows._fast import way_back as compiled_way_back
from orbitlens.flows._fast.head_mixing import HeadMixing
from orbitlens.flows._fast.mixing_back import MixingBack
from orbitlens.flows._fast.way_back import WayBack
from orbitlens.flows.examples import example_system
from orbitlens.flows.fields import make_field
from orbitlens.flows.gradients import simulate_with_gradients
from orbitlens.flows.integrate import IntegrateOptions, integrate_flow
from orbitlens.flows.system import Geometry, Mask
from orbitlens.flows.way_back import StepsBack
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


def ways_back(system, n_tokens):
    """Return the ways there are: step by step and, for few narrow heads, compiled as a whole."""
    whole = fast_path(system, n_tokens).way_back
    steps = StepsBack(system=system, n_tokens=n_tokens, rtol=1e-8)
    return [steps] if whole is None else [whole(1e-8), steps]


def gradients_of(end, target, start, tensors):
    found = torch.autograd.grad((end * target).sum(), [start, *tensors.values()], allow_unused=True)
    return {
        name: torch.zeros(()) if gradient is None else gradient
        for name, gradient in zip(["start", *tensors], found, strict=True)
    }


def by_way(way, start, until):
    """Return the end of a run, and the gradients that a way back finds."""
    taken = way.follow(start, until, 1000)
    back, found = way.back(taken, drawn(*start.shape, seed=1))
    return taken, {"start": back} | {name: found[name] for name in tensors_of(way.system)}


def by_graph(system, start, lengths):
    """Return the end and the gradients of the same steps, all of them in one graph of autograd."""
    names = tensors_of(system)
    tensors = {name: getattr(system, name).clone().requires_grad_(True) for name in names}
    x = first = start.clone().requires_grad_(True)
    field = make_field(replace(system, **tensors), len(x))
    for h in lengths:
        x = plain_step(field, x, h)
        x = x / x.norm(dim=-1, keepdim=True) if system.geometry.on_sphere else x
    return x, gradients_of(x, drawn(*start.shape, seed=1), first, tensors)


BACK = {
    "free, full": {},
    "sphere, causal": {"geometry": Geometry.SPHERE, "mask": Mask.CAUSAL},
    "pre-ln, window": {"geometry": Geometry.PRE_LN, "window": 3},
    "sphere, causal, window": {"geometry": Geometry.POST_LN, "mask": Mask.CAUSAL, "window": 4},
    "large scores": {"geometry": Geometry.SPHERE, "beta": 400.0, "mask": Mask.CAUSAL},
    "nGPT": {"geometry": Geometry.NGPT, "beta": 3.0},
    "Peri-LN, causal": {"geometry": Geometry.PERI_LN, "mask": Mask.CAUSAL},
    "not normalised": {"unnormalised": True, "geometry": Geometry.PRE_LN},
}
HEADS = [
    (1, 11, "none"),
    (2, 11, "rotary"),
    (3, 11, "reinjected"),
    (4, 11, "alibi"),
    (8, 67, "none"),  # more tokens than a block of queries, and than a stretch of keys
    (10, 67, "rotary"),  # two vectors of coordinates
    (20, 27, "alibi"),
]


@pytest.mark.parametrize("name", BACK)
@pytest.mark.parametrize(("width", "n", "encoding"), HEADS)
def test_ways_back_are_that_of_autograd_through_the_same_steps(name, width, n, encoding):
    """Nothing is shared: the graph goes through torch's attention, SciPy's table and autograd."""
    system, start = random_system(
        7, heads=2, d=4, r=width, n=n, encoding=encoding, biased=True, **BACK[name]
    )
    start = start / start.norm(dim=-1, keepdim=True)
    for way in ways_back(system, n):
        taken, found = by_way(way, start, 0.2)
        end, expected = by_graph(system, start, taken.lengths)
        exact = name != "large scores"  # whose steps multiply what rounding leaves
        assert (end - taken.end).abs().max() < (1e-12 if exact else 1e-8)
        assert largest_difference(found, expected) < (1e-10 if exact else 1e-6)
        if name == "free, full":  # a gradient of zero would agree with anything
            # A shift of all keys changes no softmax, unless each is turned its own way.
            same = {"b_k"} if encoding != "rotary" else set()
            assert all(expected[k].abs().max() > 1e-6 for k in set(expected) - same)


def test_there_are_two_ways_back_for_narrow_heads_and_one_for_others():
    system, _ = random_system(7, n=6)
    assert [type(way) for way in ways_back(system, 6)] == [WayBack, StepsBack]
    changes = ({"geometry": Geometry.NGPT}, {"geometry": Geometry.PERI_LN}, {"unnormalised": True})
    for change in changes:
        assert [type(way) for way in ways_back(replace(system, **change), 6)] == [StepsBack]


def test_a_way_back_through_another_mask_would_be_noticed():
    for width in (2, 8):
        system, start = random_system(7, heads=2, d=4, r=width, n=11, biased=True)
        causal = all_gradients(replace(system, mask=Mask.CAUSAL), start)
        assert largest_difference(causal, all_gradients(system, start)) > 0.01


def test_stages_that_were_not_kept_are_taken_anew(monkeypatch):
    system, start = random_system(7, heads=2, d=4, r=2, n=11, encoding="rotary")
    kept = all_gradients(system, start)
    monkeypatch.setattr(compiled_way_back, "MOST_NUMBERS", 12 * start.numel())  # of one step
    taken = fast_path(system, 11).way_back(1e-8).follow(start, 1.0, 100)
    assert len(taken.stages) == 1 < len(taken.lengths) == len(taken.starts)
    assert largest_difference(all_gradients(system, start), kept) < 1e-12


def test_stages_of_wide_heads_that_were_not_kept_are_taken_anew(monkeypatch):
    system, start = random_system(7, heads=2, d=4, r=10, n=11, encoding="rotary")
    start = start / start.norm(dim=-1, keepdim=True)
    way = ways_back(system, 11)[-1]
    _, kept = by_way(way, start, 1.0)
    first = way.follow(start, 1.0, 100).steps[0].stages
    monkeypatch.setattr(way_back, "MOST_NUMBERS", sum(stage.n_numbers for stage in first))
    taken, again = by_way(way, start, 1.0)
    assert [step.stages is not None for step in taken.steps] == [True, False] + [False] * (
        len(taken.steps) - 2
    )
    assert largest_difference(again, kept) < 1e-12


@pytest.mark.parametrize("heads", [1, 3])
def test_threads_that_share_a_head_find_what_one_finds(heads):
    """Two threads on one head add up their own sums over queries."""
    n, r = 400, 6
    system, _ = random_system(7, heads=heads, d=4, r=r, n=n, mask=Mask.CAUSAL)
    rows, given = drawn(n, 3 * heads * r, seed=1), drawn(n, heads * r, seed=2)
    found = []
    for n_threads in (1, 2):
        mixing = HeadMixing.of(system, n)
        mixing.n_threads = n_threads
        means = mixing.mix_rows(rows, 0.4, None)
        back = MixingBack(mixing=mixing, biased=False)
        found.append(back(rows, means, mixing.log_sums(), given, 0.4, None)[0])
        copies = len(back.memory[1].keys_back)
        assert copies == (2 if n_threads == 2 and heads == 1 else 1)
    moving = rows.clone().requires_grad_(True)
    q, k, v = moving.view(n, 3, heads, r).permute(1, 2, 0, 3)
    scores = (0.4 * q @ k.mT).masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
    means = (scores.softmax(dim=-1) @ v).transpose(0, 1).reshape(n, -1)
    (expected,) = torch.autograd.grad((means * given).sum(), moving)
    assert all((each - expected).abs().max() < 1e-12 for each in found)


def test_positions_at_the_start_and_single_precision_get_their_gradients():
    system, start = random_system(7, heads=1, d=4, r=6, n=9)
    single = {name: getattr(system, name).float() for name in ("w_q", "w_k", "w_v", "w_o")}
    system = replace(system, positions=drawn(9, 4, seed=3), **single)
    found = all_gradients(system, start)
    assert torch.equal(found["positions"], found["start"])
    assert found["w_q"].dtype == torch.float32


def test_what_needs_no_gradient_gets_none():
    system, start = random_system(5, n=6)
    x = start.clone().requires_grad_(True)
    simulate_with_gradients(system, x, until=0.5).sum().backward()
    assert x.grad is not None and system.w_q.grad is None
    assert not simulate_with_gradients(system, start, until=0.5).requires_grad
