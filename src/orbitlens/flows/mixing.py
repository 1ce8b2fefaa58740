"""Mixing: what each token takes up from the values of the tokens it sees.

Enters: queries, keys and values of all heads. Leaves: sum_j p_ij v_j, by one of three ways that
compute the same: compiled loops for narrow heads, which beat matrix products up to 16 coordinates;
compiled blocks of rows around two matrix products for wide ones; where gradients are wanted,
`scaled_dot_product_attention`. Each skips what nobody sees; memory is linear in the tokens.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, cached_property
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from orbitlens.flows import blocks, loops
from orbitlens.flows.system import Mask, System
from orbitlens.running.workers import numpy_threads, torch_threads

NARROW = 16  # widest head that the compiled loops take
BLOCK = 128  # rows that torch mixes together where tokens are hidden
WORTH_A_THREAD = 50_000  # pairs of tokens

Headed = Float[Tensor, "heads tokens d_head"]


class Way(StrEnum):
    """Who does the arithmetic."""

    LOOPS = "loops"  # compiled, tokens as columns
    BLOCKS = "blocks"  # compiled, tokens as rows
    TORCH = "torch"  # has gradients


@dataclass(frozen=True)
class Mixing:
    """How the tokens of a system see each other."""

    n_tokens: int
    mask: Mask
    window: int | None
    unnormalised: bool
    slopes: Float[Tensor, " heads"] | None  # ALiBi's, times beta
    way: Way
    n_threads: int = field(default_factory=lambda: torch.get_num_threads())
    _kept: dict[str, Tensor] = field(default_factory=dict)

    @cached_property
    def _band(self) -> Bool[Tensor, "block band"]:
        """Which tokens a block of rows sees, counted from its first: one table for all blocks."""
        around = slice(-self.n_tokens, self.n_tokens)
        return _may_see(_offsets(slice(0, BLOCK), around), self.mask, self.window)

    @classmethod
    def of(cls, system: System, n_tokens: int, *, compiled: bool) -> "Mixing":
        """Read off a system how its tokens mix."""
        slopes = system.alibi_slopes
        fitting = Way.LOOPS if system.d_head <= NARROW else Way.BLOCKS
        return cls(
            n_tokens=n_tokens,
            mask=system.mask,
            window=system.window,
            unnormalised=system.unnormalised,
            slopes=None if slopes is None else system.beta * slopes,
            way=fitting if compiled else Way.TORCH,
        )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep torch, and in blocks NumPy's products, to one thread: compiled code has its own.

        After a product their threads spin for milliseconds before they sleep, and would take the
        cores that the others are to run on.
        """
        if self.way is Way.TORCH:
            yield
            return
        products = numpy_threads(1) if self.way is Way.BLOCKS else nullcontext()
        with torch_threads(1), products:
            yield

    def __call__(self, q: Headed, k: Headed, v: Headed, scale: float) -> Headed:
        """Return what every token takes up, in each head; scores are scale q k - slope |i - j|.

        Compiled ways write it where the next call will write: use it before.
        """
        if self.way is not Way.TORCH:
            return self._compiled(q, k, v, scale)
        if self.unnormalised:
            return self._in_blocks(lambda rows, seen: self._exponential(q, k, v, scale, rows, seen))
        width = v.shape[-1]
        v = F.pad(v, (0, q.shape[-1] - width))  # the kernel wants equal widths
        return self._softmax(q[None], k[None], v[None], scale)[0, ..., :width]

    def _softmax(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        attend = F.scaled_dot_product_attention
        plain = self.window is None and self.slopes is None
        if plain and self.mask is Mask.FULL:
            return attend(q, k, v, scale=scale)
        if plain and self.n_tokens <= BLOCK:
            return attend(q, k, v, is_causal=True, scale=scale)
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
        blocks = []
        for begin in range(0, self.n_tokens, BLOCK):
            end = min(begin + BLOCK, self.n_tokens)
            low, high = 0, self.n_tokens
            if self.window is not None:
                low, high = max(0, begin - self.window + 1), min(high, end + self.window - 1)
            if self.mask is Mask.CAUSAL:
                high = end
            blocks.append(mix(slice(begin, end), slice(low, high)))
        return torch.cat(blocks, dim=-2)

    def _visible(self, rows: slice, seen: slice) -> Bool[Tensor, "rows seen"]:
        shift = self.n_tokens - rows.start
        return self._band[: rows.stop - rows.start, seen.start + shift : seen.stop + shift]

    def _compiled(self, q: Headed, k: Headed, v: Headed, scale: float) -> Headed:
        narrow = self.way is Way.LOOPS
        given = [_columns(x) if narrow else x.contiguous() for x in (q, k, v)]
        out = self.buffer("mixed", given[0].shape, q.dtype)
        q_k_v, mixed = [x.numpy() for x in given], out.numpy()
        slopes = torch.zeros(len(q)) if self.slopes is None else self.slopes
        how = (
            scale,
            slopes.double().numpy(),
            self.mask is Mask.CAUSAL,
            self.window or 0,
            self.unnormalised,
        )
        if narrow:
            width = q.shape[-1]
            self.share(lambda _, *rows: loops.mix_heads(*q_k_v, width, *how, *rows, mixed), len(q))
            return out[:, :width].mT
        memory = self.buffer("scores", (self.n_threads, blocks.ROWS * self.n_tokens), q.dtype)
        scores = memory.numpy()
        self.share(lambda i, *rows: blocks.mix_heads(*q_k_v, *how, *rows, scores[i], mixed), len(q))
        return out

    def buffer(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return memory that stays: what is given back after each use is slow to get again."""
        kept = self._kept.get(name)
        if kept is None or kept.shape != tuple(shape) or kept.dtype != dtype:
            kept = self._kept[name] = torch.empty(tuple(shape), dtype=dtype)
        return kept

    def share(self, run: Callable[[int, int, int], None], n_heads: int = 1) -> None:
        """Do all rows of so many heads: `run(worker, begin, end)`, this thread a worker as well."""
        parts = self._parts(n_heads)
        waiting = iter(parts[::-1])  # of a causal mask the last rows see most
        n_workers = min(self.n_threads, len(parts))
        others = [
            _threads(self.n_threads).submit(_work, run, waiting, each)
            for each in range(1, n_workers)
        ]
        _work(run, waiting, 0)
        for other in others:
            other.result()

    def _parts(self, n_heads: int) -> list[tuple[int, int]]:
        """Cut the rows of all heads into parts for the threads; causal rows differ in length."""
        n_rows = n_heads * self.n_tokens
        worth = n_rows * self.n_tokens // WORTH_A_THREAD
        wanted = self.n_threads * (4 if self.mask is Mask.CAUSAL else 1)
        count = min(worth, wanted) if self.n_threads > 1 and worth > 1 else 1
        return list(pairwise(n_rows * part // count for part in range(count + 1)))


def _columns(x: Headed) -> Float[Tensor, "heads lanes tokens"]:
    """Return tokens as columns, the head's width filled up to whole lanes with zeros."""
    extra = -x.shape[-1] % loops.LANES
    return F.pad(x.mT, (0, 0, 0, extra)) if extra else x.mT.contiguous()


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


def _work(
    run: Callable[[int, int, int], None], waiting: Iterator[tuple[int, int]], worker: int
) -> None:
    for begin, end in waiting:  # a list's next item is taken by one thread only
        run(worker, begin, end)


@cache
def _threads(n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads, thread_name_prefix="orbitlens-mixing")


if hasattr(os, "register_at_fork"):  # not where processes cannot fork
    os.register_at_fork(after_in_child=_threads.cache_clear)
