"""Rows of narrow heads, shared out to threads of compiled loops.

Enters: queries, keys and values of all heads. Leaves: sum_j p_ij v_j, as `mixing.py` computes it.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from orbitlens.flows._fast.rows import LANES, mix_heads
from orbitlens.flows.system import Mask, System

WORTH_A_THREAD = 50_000  # pairs of tokens

Headed = Float[Tensor, "heads tokens d_head"]


@dataclass(frozen=True, kw_only=True)
class RowMixing:
    """How the tokens of a system see each other, for compiled loops."""

    n_tokens: int
    causal: bool
    window: int  # 0: none
    unnormalised: bool
    slopes: Float[Tensor, " heads"]  # ALiBi's, times beta
    n_threads: int = field(default_factory=lambda: torch.get_num_threads())

    @classmethod
    def of(cls, system: System, n_tokens: int) -> "RowMixing":
        """Read off a system how its tokens mix."""
        slopes = system.alibi_slopes
        none = torch.zeros(system.n_heads, dtype=torch.float64)
        return cls(
            n_tokens=n_tokens,
            causal=system.mask is Mask.CAUSAL,
            window=system.window or 0,
            unnormalised=system.unnormalised,
            slopes=none if slopes is None else system.beta * slopes.double(),
        )

    def __call__(self, q: Headed, k: Headed, v: Headed, scale: float) -> Headed:
        """Return the weighted means, in each head; scores are scale q k - slope |i - j|."""
        columns = [_columns(x) for x in (q, k, v)]
        out = torch.empty_like(columns[0])
        arrays, mixed, slopes = [x.numpy() for x in columns], out.numpy(), self.slopes.numpy()
        sees = (self.causal, self.window, self.unnormalised)
        self._share(lambda *rows: mix_heads(*arrays, scale, slopes, *sees, *rows, mixed), len(q))
        return out[:, : q.shape[-1]].mT

    def _share(self, run: Callable[[int, int], None], n_heads: int) -> None:
        """Do all rows of so many heads: `run(begin, end)`, this thread a worker as well."""
        parts = self._parts(n_heads)
        waiting = iter(parts[::-1])  # of a causal mask the last rows see most
        n_others = min(self.n_threads, len(parts)) - 1
        others = [_threads(self.n_threads).submit(_work, run, waiting) for _ in range(n_others)]
        _work(run, waiting)
        for other in others:
            other.result()

    def _parts(self, n_heads: int) -> list[tuple[int, int]]:
        """Cut the rows of all heads into parts for the threads; causal rows differ in length."""
        n_rows = n_heads * self.n_tokens
        worth = n_rows * self.n_tokens // WORTH_A_THREAD
        wanted = self.n_threads * (4 if self.causal else 1)
        count = min(worth, wanted) if self.n_threads > 1 and worth > 1 else 1
        return list(pairwise(n_rows * part // count for part in range(count + 1)))


def _columns(x: Headed) -> Float[Tensor, "heads lanes tokens"]:
    """Return tokens as columns, the head's width filled up to whole lanes with zeros."""
    extra = -x.shape[-1] % LANES
    return F.pad(x.mT, (0, 0, 0, extra)) if extra else x.mT.contiguous()


def _work(run: Callable[[int, int], None], waiting: Iterator[tuple[int, int]]) -> None:
    for begin, end in waiting:  # a list's next item is taken by one thread only
        run(begin, end)


@cache
def _threads(n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads, thread_name_prefix="orbitlens-mixing")


if hasattr(os, "register_at_fork"):  # threads do not survive a fork; not every system has it
    os.register_at_fork(after_in_child=_threads.cache_clear)
