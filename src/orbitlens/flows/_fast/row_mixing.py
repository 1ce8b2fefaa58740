"""Rows of narrow heads, shared out to threads of compiled loops.

Enters: queries, keys and values of all heads. Leaves: sum_j p_ij v_j, as `mixing.py` computes it.
"""

from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from orbitlens.flows._fast.lanes import WIDEST_LANES, mix_lanes_of_heads, padded_width
from orbitlens.flows._fast.powers import LANES, power_tables
from orbitlens.flows._fast.rows import LANES as ROW_LANES
from orbitlens.flows._fast.rows import mix_heads
from orbitlens.flows.system import Mask, System
from orbitlens.running.threads import do_parts, n_parts

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
        in_lanes = q.shape[-1] <= WIDEST_LANES and q.dtype == torch.float64
        columns = [_columns(x, in_lanes) for x in (q, k, v)]
        out = torch.empty_like(columns[0])
        arrays, mixed, slopes = [x.numpy() for x in columns], out.numpy(), self.slopes.numpy()
        sees = (self.causal, self.window, self.unnormalised)
        parts = self._parts(len(q) * out.shape[-1])[::-1]  # the last causal rows see most
        if in_lanes:
            fixed = (*arrays, scale, slopes, *sees, self.n_tokens, power_tables(0.0))
            do_parts(lambda *rows: mix_lanes_of_heads(*fixed, *rows, mixed), parts, self.n_threads)
        else:
            run = (*arrays, scale, slopes, *sees)
            do_parts(lambda *rows: mix_heads(*run, *rows, mixed), parts, self.n_threads)
        return out[:, : q.shape[-1], : self.n_tokens].mT

    def _parts(self, n_rows: int) -> list[tuple[int, int]]:
        """Cut the rows of all heads into parts for the threads; causal rows differ in length."""
        count = n_parts(n_rows * self.n_tokens, self.n_threads, uneven=self.causal)
        cuts = [n_rows * part // count // LANES * LANES for part in range(count)]
        return list(pairwise([*cuts, n_rows]))


def _columns(x: Headed, in_lanes: bool) -> Float[Tensor, "heads width columns"]:
    """Return tokens as columns, filled up with zeros: the head's width, and lanes."""
    wider = padded_width(x.shape[-1]) if in_lanes else x.shape[-1] + -x.shape[-1] % ROW_LANES
    more = -x.shape[-2] % LANES if in_lanes else 0
    extra = wider - x.shape[-1]
    return F.pad(x.mT, (0, more, 0, extra)) if extra or more else x.mT.contiguous()
