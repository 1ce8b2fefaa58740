"""Measured: what a model did to its tokens in one layer, beside its flow after one unit of time.

Enters: the tokens of a layer and a trajectory that starts from them. Leaves: a `MeasuredStep`: the
mean cosine C of both, S = ln(1 - C), and whether their signs agree.
"""

import math
from dataclasses import dataclass

import torch

from orbitlens._types import Tokens
from orbitlens.flows.normed import Norms
from orbitlens.flows.outcome import TURN, log_spreads
from orbitlens.flows.real_tokens import LayerTokens
from orbitlens.heads.head import Head
from orbitlens.heads.layers import AttentionLayer
from orbitlens.trajectory import Trajectory

ONE = math.log(1e-12)  # of S: below, all directions are one to rounding


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """What a part of a layer did to its tokens, and what the flow made of the same tokens."""

    part: str  # "head 0.3 alone", "the attention of layer 0"
    n_tokens: int
    cosine_before: float
    cosine_after: float
    log_change: float  # of 1 - C, measured
    simulated_cosine: float  # after one unit of time
    simulated_log_change: float

    @property
    def agreement(self) -> str:
        """Whether both have one sign, where both are beyond the bound for a sign."""
        pair = (self.log_change, self.simulated_log_change)
        if min(map(abs, pair)) <= TURN:
            return f"too small to tell (a change within {TURN:g})"
        return "the same sign" if pair[0] * pair[1] > 0 else "the opposite sign"

    def lines(self) -> list[tuple[str, str]]:
        """Return what there is to say, as pairs of a heading and its words."""
        model = _cosines(self.cosine_before, self.cosine_after)
        flow = _cosines(self.cosine_before, self.simulated_cosine)
        words = f"{self.part} {_words(self.log_change)} of the same tokens"
        return [
            ("measured", f"{words}: {model} ({self.log_change:+.3f})"),
            ("compared", f"{self.agreement}; the flow in one unit of time: {flow} "
             f"({self.simulated_log_change:+.3f})"),
        ]  # fmt: skip


def one_layer(
    target: Head | AttentionLayer, tokens: LayerTokens, trajectory: Trajectory
) -> MeasuredStep:
    """Set the model's own step beside a trajectory over one unit of time."""
    after, part = tokens.after(target)
    norms = Norms.of(target if isinstance(target, Head) else target.head(0))
    before = tokens.before
    if norms is not None:
        before, after = norms.seen(before), norms.seen(after)
    s = log_spreads(torch.stack([before, after]))
    simulated = log_spreads(trajectory.unit_tokens[[0, -1]])
    return MeasuredStep(
        part=part,
        n_tokens=len(before),
        cosine_before=_cosine(s[0].item()),
        cosine_after=_cosine(s[1].item()),
        log_change=(s[1] - s[0]).item(),
        simulated_cosine=_cosine(simulated[1].item()),
        simulated_log_change=(simulated[1] - simulated[0]).item(),
    )


def direction_change(before: Tokens, after: Tokens) -> str:
    """Return how the mean cosine changed, in words."""
    if len(before) < 2:
        return "a single token has no other to compare with"
    first, last = log_spreads(torch.stack([before, after])).tolist()
    if last < ONE:
        return f"mean cosine {_cosine(first):.3f} to 1: all directions become one"
    return f"{_cosines(_cosine(first), _cosine(last))} (change of ln(1 - C): {last - first:+.3f})"


def _cosines(first: float, last: float) -> str:
    return f"mean cosine C {first:.3f} to {last:.3f}"


def _cosine(log_spread: float) -> float:
    return -math.expm1(log_spread)


def _words(change: float) -> str:
    if abs(change) <= TURN:
        return "hardly changes directions"
    return "spreads directions" if change > 0 else "gathers directions"
