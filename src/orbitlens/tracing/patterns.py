"""How attention is shared out: sharpness, entropy, sinks, overlap.

Enters: attention weights p of any number of heads, rows that sum to 1. Leaves: one number a head,
means over the rows. The first row of a causal head sees one token only and is sharp by force; it
counts like the others, here and in the closures.
"""

from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

Patterns = Float[Tensor, "head tokens tokens"]
PerHead = Float[Tensor, " head"]


def sharpness(p: Patterns) -> PerHead:
    """Return the mean over rows of sum_j p_j^2: 1/n where attention is even, 1 where it chooses."""
    return p.square().sum(dim=-1).mean(dim=-1)


def attention_entropy(p: Patterns) -> PerHead:
    """Return the mean over rows of -sum_j p_j ln p_j, in nats."""
    return torch.special.entr(p).sum(dim=-1).mean(dim=-1)


def sink_share(p: Patterns) -> PerHead:
    """Return max_j of the mean of p_ij over the rows i that see j: the largest sink.

    Only tokens seen by at least half as many rows as the most seen one can be sinks: the last token
    of a causal context, seen by itself alone, is none.
    """
    rows = (p > 0).sum(dim=-2)
    most = rows.amax(dim=-1, keepdim=True)
    share = p.sum(dim=-2) / rows.clamp(min=1)
    return torch.where(2 * rows >= most, share, 0.0).amax(dim=-1)


def overlap(p: Patterns) -> PerHead:
    """Return the mean over pairs of rows i != k of sum_j p_ij p_kj: do tokens share targets?"""
    n = p.shape[-2]
    columns = p.sum(dim=-2)
    return (columns.square().sum(dim=-1) - p.square().sum(dim=(-1, -2))) / (n * (n - 1))


def is_monotone(values: list[float], *, tolerance: float = 1e-9) -> str:
    """Return "rising", "falling", "constant" or "neither": the course of an energy over depth."""
    size = tolerance * max((abs(v) for v in values), default=0.0)
    steps = [b - a for a, b in pairwise(values)]
    if all(abs(step) <= size for step in steps):
        return "constant"
    if all(step >= -size for step in steps):
        return "rising"
    return "falling" if all(step <= size for step in steps) else "neither"
