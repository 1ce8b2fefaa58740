"""Mixing: the mean of the values that each token sees, weighted by attention.

Enters: queries, keys and values of all heads. Leaves: sum_j p_ij v_j, by torch's
`scaled_dot_product_attention`, which has gradients. Where tokens are hidden or biased, rows go in
blocks, each with the stretch of tokens that it sees; memory is linear in the tokens.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from orbitlens.flows.system import Mask, System

BLOCK = 128  # rows that are mixed together where tokens are hidden
BLOCK_ENTRIES = 2**19  # scores of one block, at most: rows get fewer as contexts get longer
WHOLE = 1024  # tokens up to which all pairs may be in memory at once

Headed = Float[Tensor, "heads tokens d_head"]


@dataclass(frozen=True)
class Mixing:
    """How the tokens of a system see each other."""

    n_tokens: int
    mask: Mask
    window: int | None
    unnormalised: bool
    slopes: Float[Tensor, " heads"] | None  # ALiBi's, times beta

    @classmethod
    def of(cls, system: System, n_tokens: int) -> "Mixing":
        """Read off a system how its tokens mix."""
        slopes = system.alibi_slopes
        return cls(
            n_tokens=n_tokens,
            mask=system.mask,
            window=system.window,
            unnormalised=system.unnormalised,
            slopes=None if slopes is None else system.beta * slopes,
        )

    @cached_property
    def _band(self) -> Bool[Tensor, "block band"]:
        """Which tokens a block of rows sees, counted from its first: one table for all blocks."""
        around = slice(-self.n_tokens, self.n_tokens)
        return _may_see(_offsets(slice(0, BLOCK), around), self.mask, self.window)

    def __call__(self, q: Headed, k: Headed, v: Headed, scale: float) -> Headed:
        """Return the weighted means, in each head; scores are scale q k - slope |i - j|."""
        if self.unnormalised:
            return self._in_blocks(lambda rows, seen: self._exponential(q, k, v, scale, rows, seen))
        return self._softmax(q[None], k[None], v[None], scale)[0]

    def _softmax(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        attend = F.scaled_dot_product_attention
        plain = self.window is None and self.slopes is None
        if plain and self.n_tokens <= (WHOLE if self.mask is Mask.FULL else BLOCK):
            return attend(q, k, v, is_causal=self.mask is Mask.CAUSAL, scale=scale)
        return self._in_blocks(
            lambda rows, seen: attend(
                q[..., rows, :],
                k[..., seen, :],
                v[..., seen, :],
                self._bias(rows, seen, q),
                scale=scale,
            )
        )

    def _bias(self, rows: slice, seen: slice, like: Tensor) -> Tensor:
        """Return what is added to scores (which tokens are visible, where nothing is)."""
        visible = self._visible(rows, seen)
        if self.slopes is None:
            return visible
        bias = -self.slopes.to(like)[:, None, None] * _offsets(rows, seen).abs()
        return bias.masked_fill(~visible, -math.inf)

    def _exponential(
        self, q: Headed, k: Headed, v: Headed, scale: float, rows: slice, seen: slice
    ) -> Float[Tensor, "heads rows d_head"]:
        """Return sum_j exp(score_ij) v_j / n for some rows."""
        scores = scale * (q[:, rows] @ k[:, seen].mT)
        if self.slopes is not None:
            scores = scores - self.slopes.to(q)[:, None, None] * _offsets(rows, seen).abs()
        weights = torch.exp(scores) * self._visible(rows, seen)
        return weights @ v[:, seen] / self.n_tokens

    def _in_blocks(self, mix: Callable[[slice, slice], Tensor]) -> Tensor:
        """Mix block after block of rows; each looks at the stretch of tokens that it sees."""
        stretches = list(self._stretches())
        first = mix(*stretches[0])
        if first.requires_grad:
            return torch.cat([first, *(mix(*each) for each in stretches[1:])], dim=-2)
        # Small results kept between large scores would leave holes in memory that nothing fits in.
        mixed = first.new_empty(*first.shape[:-2], self.n_tokens, first.shape[-1])
        mixed[..., stretches[0][0], :] = first
        for rows, seen in stretches[1:]:
            mixed[..., rows, :] = mix(rows, seen)
        return mixed

    def _stretches(self) -> Iterator[tuple[slice, slice]]:
        """Yield blocks of rows, each with the tokens that some of its rows see."""
        n_rows = max(1, min(BLOCK, BLOCK_ENTRIES // self.n_tokens))
        for begin in range(0, self.n_tokens, n_rows):
            end = min(begin + n_rows, self.n_tokens)
            low, high = 0, self.n_tokens
            if self.window is not None:
                low, high = max(0, begin - self.window + 1), min(high, end + self.window - 1)
            if self.mask is Mask.CAUSAL:
                high = end
            yield slice(begin, end), slice(low, high)

    def _visible(self, rows: slice, seen: slice) -> Bool[Tensor, "rows seen"]:
        shift = self.n_tokens - rows.start
        return self._band[: rows.stop - rows.start, seen.start + shift : seen.stop + shift]


def visible_tokens(n_tokens: int, mask: Mask, window: int | None) -> Bool[Tensor, "tokens tokens"]:
    """Return which tokens j each token i sees.

    >>> visible_tokens(3, Mask.CAUSAL, 2).int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    everyone = slice(0, n_tokens)
    return _may_see(_offsets(everyone, everyone), mask, window)


def _offsets(rows: slice, columns: slice) -> Int[Tensor, "rows columns"]:
    return torch.arange(rows.start, rows.stop)[:, None] - torch.arange(columns.start, columns.stop)


def _may_see(
    offsets: Int[Tensor, "rows columns"], mask: Mask, window: int | None
) -> Bool[Tensor, "rows columns"]:
    visible = offsets >= 0 if mask is Mask.CAUSAL else torch.ones_like(offsets, dtype=torch.bool)
    return visible if window is None else visible & (offsets.abs() < window)
