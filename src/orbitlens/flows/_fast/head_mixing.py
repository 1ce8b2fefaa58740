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
from orbitlens.flows._fast.powers import LANES, power_tables
from orbitlens.flows._fast.tile_vectors import SINGLE
from orbitlens.flows._fast.tiles import (
    Packed,
    Shape,
    length_of_groups,
    memory_for,
    mix_tiles,
    pack_heads,
    tile_shape,
)
from orbitlens.flows.system import Mask, System
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

    def __call__(self, q: Headed, k: Headed, v: Headed, scale: float) -> Headed:
        """Return the weighted means, in each head; scores are scale q k - slope |i - j|."""
        if q.shape[-1] <= WIDEST_LANES and q.dtype == torch.float64:
            return self._by_lanes(q, k, v, scale)
        return self._by_tiles(q, k, v, scale)

    def _by_lanes(self, q: Headed, k: Headed, v: Headed, scale: float) -> Headed:
        columns = [_columns(x) for x in (q, k, v)]
        out = torch.empty_like(columns[0])
        fixed = (*(x.numpy() for x in columns), scale, self.slopes.numpy(), *self._sees, EXACT)
        mixed, n_rows = out.numpy(), len(q) * out.shape[-1]
        parts = self._parts(n_rows, n_rows * self.n_tokens, LANES)
        do_parts(lambda *rows: mix_lanes_of_heads(*fixed, *rows, mixed), parts, self.n_threads)
        return out[:, : q.shape[-1], : self.n_tokens].mT

    def _by_tiles(self, q: Headed, k: Headed, v: Headed, scale: float) -> Headed:
        h, n, r = q.shape
        shape, terms = tile_shape(r), FULL_TERMS if q.dtype == torch.float64 else SINGLE_TERMS
        q, k, v = (x.mT.contiguous() for x in (q, k, v))
        memory, slopes = self._memory(h, r, q.numpy().dtype.type, shape), self.slopes.numpy()
        arrays = (q.numpy(), k.numpy(), v.numpy())
        pack_heads(*arrays, scale, slopes, self.unnormalised, length_of_groups(shape), memory)
        out = torch.empty_like(q)
        fixed = (memory, slopes, *self._sees, shape, terms)
        n_blocks, mixed = h * memory.queries.shape[1], out.numpy()
        parts = self._parts(n_blocks, h * n * n, 1)
        do_parts(lambda *rows: mix_tiles(*fixed, *rows, mixed), parts, self.n_threads)
        return out.mT

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


def _columns(x: Headed) -> Float[Tensor, "heads width columns"]:
    """Return tokens as columns, filled up with zeros: the head's width, and lanes."""
    more, extra = -x.shape[-2] % LANES, padded_width(x.shape[-1]) - x.shape[-1]
    return F.pad(x.mT, (0, more, 0, extra)) if extra or more else x.mT.contiguous()
