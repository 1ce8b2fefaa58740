"""Heads of all widths, shared out to threads of compiled loops.

Enters: queries, keys and values of all heads. Leaves: sum_j p_ij v_j, as `mixing.py` computes it.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from orbitlens.flows._fast.lanes import FULL_TERMS, WIDEST_LANES, mix_lanes_of_heads, padded_width
from orbitlens.flows._fast.tiles import (
    Packed,
    Shape,
    Turns,
    memory_for,
    mix_tiles,
    pack_heads,
    tile_shape,
)
from orbitlens.flows.system import Mask, System
from orbitlens.heads.rotary import Turning
from orbitlens.running._compiled.powers import LANES, power_tables
from orbitlens.running._compiled.tile_vectors import SINGLE
from orbitlens.running.threads import do_parts, n_parts

Headed = Float[Tensor, "heads tokens d_head"]
EXACT = power_tables(0.0)
SINGLE_TERMS = (0,) * len(SINGLE)  # numba reads the number of coefficients off the type


@dataclass(kw_only=True)
class HeadMixing:
    """How the tokens of a system see each other, for compiled loops; one thread asks at a time."""

    n_tokens: int
    causal: bool
    window: int  # 0: none
    unnormalised: bool
    slopes: Float[Tensor, " heads"]  # ALiBi's, times beta
    n_threads: int = field(default_factory=lambda: torch.get_num_threads())
    memory: Packed | None = None  # of tiles: fetching it anew would cost a fifth of a run

    @classmethod
    def of(cls, system: System, n_tokens: int) -> "HeadMixing":
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

    def takes_rows(self, d_head: int, dtype: torch.dtype) -> bool:
        """Whether heads so wide are mixed by `mix_rows`, as they come from their products."""
        return d_head > WIDEST_LANES or dtype != torch.float64

    def __call__(self, q: Headed, k: Headed, v: Headed, scale: float) -> Headed:
        """Return the weighted means, in each head; scores are scale q k - slope |i - j|."""
        h, n, r = q.shape
        if not self.takes_rows(r, q.dtype):
            return self._by_lanes(q, k, v, scale)
        rows = torch.stack([q, k, v]).permute(2, 0, 1, 3).reshape(n, 3 * h * r)
        return self.mix_rows(rows, scale, None).view(n, h, r).transpose(0, 1)

    def _by_lanes(self, q: Headed, k: Headed, v: Headed, scale: float) -> Headed:
        columns = [_columns(x) for x in (q, k, v)]
        out = torch.empty_like(columns[0])
        fixed = (*(x.numpy() for x in columns), scale, self.slopes.numpy(), *self._sees, EXACT)
        mixed, n_rows = out.numpy(), len(q) * out.shape[-1]
        parts = self._parts(n_rows, n_rows * self.n_tokens, LANES)
        do_parts(lambda *rows: mix_lanes_of_heads(*fixed, *rows, mixed), parts, self.n_threads)
        return out[:, : q.shape[-1], : self.n_tokens].mT

    def mix_rows(
        self, rows: Float[Tensor, "tokens qkv"], scale: float, turn: Turning | None
    ) -> Float[Tensor, "tokens mixed"]:
        """Return the means of all heads side by side, as their output maps take them.

        Columns are queries of all heads, keys of all, values of all; queries and keys are turned.
        """
        n, slopes = self.n_tokens, self.slopes.numpy()
        h, r = len(slopes), rows.shape[1] // (3 * len(slopes))
        shape = tile_shape(r)
        terms = FULL_TERMS if rows.dtype == torch.float64 else SINGLE_TERMS
        array, group = rows.contiguous().numpy(), len(shape.outputs)
        memory, turns = self._memory(h, r, array.dtype.type, shape), turns_of(turn, array.dtype)
        pack_heads(array, r, scale, slopes, self.unnormalised, group, turns, memory)
        out = rows.new_empty(n, h * r)
        fixed = (memory, slopes, *self._sees, shape, terms)
        n_blocks, mixed = h * memory.queries.shape[1], out.numpy()
        parts = self._parts(n_blocks, h * n * n, 1)
        do_parts(lambda *blocks: mix_tiles(*fixed, *blocks, mixed), parts, self.n_threads)
        return out

    def log_sums(self) -> Float[Tensor, "heads tokens"]:
        """Return how much the last rows' weights came to, to base 2: what its way back needs."""
        if self.memory is None:
            raise RuntimeError("nothing was mixed yet")
        n, heads = self.n_tokens, len(self.slopes)
        totals, tops = (
            part.reshape(heads, -1)[:, :n] for part in (self.memory.totals, self.memory.tops)
        )
        return torch.from_numpy(tops.copy() if self.unnormalised else np.log2(totals) + tops)

    @property
    def _sees(self) -> tuple[bool, int, bool, int]:
        return self.causal, self.window, self.unnormalised, self.n_tokens

    def _memory(self, n_heads: int, d_head: int, dtype: Any, shape: Shape) -> Packed:  # noqa: ANN401
        if self.memory is None or self.memory.queries.dtype != np.dtype(dtype):
            self.memory = memory_for(n_heads, d_head, self.n_tokens, dtype, shape)
        return self.memory

    def _parts(self, n_rows: int, n_pairs: int, together: int) -> list[tuple[int, int]]:
        """Cut rows into parts for the threads: causal rows differ in length, the last see most."""
        count = min(n_parts(n_pairs, self.n_threads, uneven=self.causal), n_rows)
        cuts = [n_rows * part // count // together * together for part in range(count)]
        return list(pairwise([*cuts, n_rows]))[::-1]


def turns_of(turn: Turning | None, dtype: Any) -> Turns:  # noqa: ANN401 - NumPy's own
    """Return how coordinates turn by token, as compiled loops read it."""
    if turn is None:
        none = np.empty((0, 0), dtype)
        return Turns(none, none, np.empty(0, dtype=np.uint64))
    return Turns(turn.cosine.numpy(), turn.sine.numpy(), turn.partner.numpy().astype(np.uint64))


def _columns(x: Headed) -> Float[Tensor, "heads width columns"]:
    """Return tokens as columns, filled up with zeros: the head's width, and lanes."""
    more, extra = -x.shape[-2] % LANES, padded_width(x.shape[-1]) - x.shape[-1]
    return F.pad(x.mT, (0, more, 0, extra)) if extra or more else x.mT.contiguous()
