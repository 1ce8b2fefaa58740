"""What a flow will cost, before it is run.

Enters: a `System` and a number of tokens. Leaves: seconds an evaluation, measured on fewer tokens
and scaled by the pairs that see each other, and the bytes that a run holds.
"""

import time
from dataclasses import dataclass, replace

import torch

from orbitlens.flows.fields import make_field
from orbitlens.flows.steps import DOP853
from orbitlens.flows.system import Mask, System

SAMPLE = 2048  # tokens that are timed; more are scaled up to
WORTH_SAYING = 1.0  # seconds an evaluation from which on a run is announced
LEAST_STEPS = 5  # of most runs


@dataclass(frozen=True, kw_only=True)
class FlowCost:
    """What one evaluation of a flow takes, and what a whole run holds in memory."""

    seconds: float  # an evaluation
    n_bytes: int  # of a run: its stages and what it keeps

    @property
    def is_worth_saying(self) -> bool:
        """Whether someone who waits would like to know."""
        return self.seconds >= WORTH_SAYING

    def words(self) -> str:
        """Return the cost in a sentence."""
        least = LEAST_STEPS * DOP853.n_stages
        return (
            f"one evaluation takes about {self.seconds:.2g} s and a run at least {least} of them, "
            f"so {self.seconds * least / 60:.0f} minutes or more; memory about "
            f"{self.n_bytes / 1e9:.1g} GB"
        )


def visible_pairs(system: System, n_tokens: int) -> int:
    """Return how many pairs of tokens see each other, in each head.

    >>> from orbitlens.flows.examples import example_system
    >>> visible_pairs(example_system("aligned"), 10)
    100
    """
    causal = system.mask is Mask.CAUSAL
    reach = min(system.window or n_tokens, n_tokens)
    behind = n_tokens * reach - reach * (reach - 1) // 2  # each sees itself and reach - 1 before it
    return behind if causal else 2 * behind - n_tokens


def expected_cost(system: System, n_tokens: int, *, n_saved: int = 65) -> FlowCost:
    """Time a few tokens of a system, and scale to `n_tokens`."""
    few = min(n_tokens, SAMPLE)
    x = torch.randn(few, system.d_model, dtype=torch.float64, generator=torch.Generator())
    sample = system if system.positions is None else _without_positions(system)
    field = make_field(sample, few, compiled=True)
    field(x)  # compiles, or reads what was compiled
    begun = time.perf_counter()
    field(x)
    taken = time.perf_counter() - begun
    more = visible_pairs(system, n_tokens) / visible_pairs(system, few)
    n_bytes = 8 * n_tokens * system.d_model * (2 * DOP853.n_stages + 2 * n_saved)
    return FlowCost(seconds=taken * more, n_bytes=n_bytes)


def _without_positions(system: System) -> System:
    """Return a system whose positions, one a token, are left out: they cost next to nothing."""
    return replace(system, positions=None, reinjected=False)
