"""What a flow will cost is said before it is run, and many tokens are followed exactly."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from orbitlens.flows.cost import FlowCost, expected_cost, visible_pairs
from orbitlens.flows.examples import example_system
from orbitlens.flows.fields import make_field
from orbitlens.flows.mixing import visible_tokens
from orbitlens.flows.system import Mask
from slow_flow import normal, seeded

VIEWS = [(mask, window) for mask in Mask for window in (None, 1, 4, 100)]


@pytest.mark.parametrize(("mask", "window"), VIEWS)
def test_pairs_that_see_each_other_are_counted(mask, window):
    system = replace(example_system("random"), mask=mask, window=window)
    for n in (1, 3, 9):
        assert visible_pairs(system, n) == visible_tokens(n, mask, window).sum().item()


def test_cost_grows_with_the_pairs_and_memory_with_the_tokens():
    system = example_system("random", d_model=2)
    small, large = (expected_cost(system, n, n_saved=2) for n in (4096, 409_600))
    assert large.n_bytes == 100 * small.n_bytes
    assert large.seconds > 1000 * small.seconds  # 10,000 times, and the machine's noise
    assert not small.is_worth_saying or small.seconds > 1


def test_cost_is_said_in_minutes_and_bytes():
    said = FlowCost(seconds=12.0, n_bytes=2 * 10**9).words()
    assert "12 s" in said and "12 minutes" in said and "2 GB" in said


def exact_flow(system, x, i):
    """Return the flow of one token, from the definition."""
    seen = visible_row(system, len(x), i)
    scores = x[seen] @ system.w_k[0].numpy() @ (x[i] @ system.w_q[0].numpy())
    weights = np.exp(scores - scores.max())
    return (weights / weights.sum()) @ x[seen] @ system.w_v[0].numpy() @ system.w_o[0].numpy()


def visible_row(system, n, i):
    offsets = i - np.arange(n)
    seen = offsets >= 0 if system.mask is Mask.CAUSAL else np.ones(n, dtype=bool)
    return seen if system.window is None else seen & (np.abs(offsets) < system.window)


@pytest.mark.parametrize(
    ("mask", "window"),
    [(Mask.FULL, None), (Mask.CAUSAL, None), (Mask.CAUSAL, 700), (Mask.FULL, 50)],
)
@pytest.mark.parametrize("d", [2, 3, 5, 20])
def test_a_sample_of_many_tokens_moves_as_the_definition_says(mask, window, d):
    system = replace(example_system("random", d_model=d), mask=mask, window=window)
    x = normal(seeded(1), 2003, d) / d**0.5
    found = make_field(system, len(x), compiled=True)(x)
    for i in (0, 1, 777, 2002):
        expected = torch.from_numpy(exact_flow(system, x.numpy(), i))
        assert torch.allclose(found[i], expected, rtol=0, atol=1e-12)
