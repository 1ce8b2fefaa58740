"""Attention that acts on the mean of values: layers without it, and layers of nothing else.

Enters: tokens, as for `PlainAttention`. Leaves: what attention adds to each. "centred" takes alpha
times the mean of the values a token sees away from what each head found, alpha learned from 0 or
fixed at 1; "averaging" lets every head of every layer find nothing but that mean.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import Cache

from orbitlens.orbit.attention import (
    BatchTokens,
    Given,
    PlainAttention,
    attend,
    side_by_side,
    split_heads,
)
from orbitlens.orbit.config import OrbitConfig
from orbitlens.orbit.position import turn


class HeadScalars(nn.Module):
    """One learned number a head, or one vector."""

    def __init__(self, *shape: int, start: float) -> None:
        """Start all at one value."""
        super().__init__()
        self.start = start
        self.weight = nn.Parameter(torch.full(shape, start))


def seen_mean(
    v: Float[Tensor, "batch head keys width"], given: Given, n_queries: int
) -> Float[Tensor, "batch head queries width"]:
    """Return the mean of the values that each query may see, whatever positions add to scores."""
    if given.bias is not None:
        seen = (given.bias > torch.finfo(given.bias.dtype).min / 2).to(v.dtype)
        return (seen / seen.sum(dim=-1, keepdim=True).clamp(min=1)) @ v
    if given.causal:
        counts = torch.arange(1, v.shape[-2] + 1, device=v.device, dtype=v.dtype)
        return v.cumsum(dim=-2) / counts[:, None]
    return v.mean(dim=-2, keepdim=True).expand(-1, -1, n_queries, -1)


class CentredAttention(PlainAttention):
    """A head's output less alpha_h times the mean of the values its query may see."""

    def __init__(self, config: OrbitConfig, *, learned: bool = True) -> None:
        """Make a plain layer and one alpha a head, learned from 0; or alpha = 1."""
        super().__init__(config)
        self.centring = HeadScalars(self.n_heads, start=0.0) if learned else None

    def forward(
        self, x: BatchTokens, given: Given, cache: Cache | None = None, layer: int = 0
    ) -> tuple[BatchTokens, Tensor | None]:
        """Return what attention adds to each token; the pattern is that of the softmax."""
        q, k, v = split_heads(self.qkv_proj(x), self.n_heads)
        if given.angles is not None:
            q, k = turn(q, given.angles), turn(k, given.angles)
        if cache is not None:
            k, v = cache.update(k, v, layer)
        mixed, pattern = attend(q, k, v, given)
        mean = seen_mean(v, given, x.shape[1])
        if self.centring is not None:
            mean = self.centring.weight[:, None, None] * mean
        return self.o_proj(side_by_side(mixed - mean)), pattern


class AveragingAttention(PlainAttention):
    """Every head finds the mean of the values its query may see: queries and keys are idle.

    Known to hurt where a token must find another: the positive control of experiments that ask
    whether a change of attention matters.
    """

    def forward(
        self, x: BatchTokens, given: Given, cache: Cache | None = None, layer: int = 0
    ) -> tuple[BatchTokens, Tensor | None]:
        """Return what attention adds to each token, and the even pattern or None."""
        _, k, v = split_heads(self.qkv_proj(x), self.n_heads)
        if cache is not None:
            _, v = cache.update(k, v, layer)
        pattern = None
        if given.patterns:
            ones = torch.eye(v.shape[-2], dtype=v.dtype, device=v.device)
            pattern = seen_mean(ones.expand(*v.shape[:2], -1, -1), given, x.shape[1])
        return self.o_proj(side_by_side(seen_mean(v, given, x.shape[1]))), pattern
