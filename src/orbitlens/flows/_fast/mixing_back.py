"""The way back through the attention of all heads, shared out to threads of compiled loops.

Enters: queries, keys and values side by side, the means that `HeadMixing.mix_rows` made of them,
and the gradient with respect to these. Leaves: gradients with respect to the rows, and to ALiBi's
slopes.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.flows._fast.back_tiles import (
    BackPacked,
    back_memory,
    mix_back,
    pack_back,
    rear_shape,
    unpack_back,
)
from orbitlens.flows._fast.head_mixing import HeadMixing, turns_of
from orbitlens.flows._fast.lanes import FULL_TERMS
from orbitlens.flows._fast.tiles import Packed, memory_for, pack_heads, tile_shape
from orbitlens.heads.rotary import Turning
from orbitlens.running.threads import do_parts, n_parts


@dataclass(kw_only=True)
class MixingBack:
    """The way back of a `HeadMixing`, in float64; one thread asks at a time."""

    mixing: HeadMixing
    biased: bool  # whether anybody asks for the gradient of slopes
    memory: tuple[Packed, BackPacked] | None = field(default=None)

    def __call__(
        self,
        rows: Float[Tensor, "tokens qkv"],
        means: Float[Tensor, "tokens mixed"],
        log_sums: Float[Tensor, "heads tokens"],
        given: Float[Tensor, "tokens mixed"],
        scale: float,
        turn: Turning | None,
    ) -> tuple[Float[Tensor, "tokens qkv"], Float[Tensor, " heads"]]:
        """Return the gradients with respect to rows and slopes from that of the means."""
        mixing, slopes = self.mixing, self.mixing.slopes.numpy()
        n, heads = mixing.n_tokens, len(slopes)
        r = rows.shape[1] // (3 * heads)
        if mixing.unnormalised:  # a mean over all tokens, whatever they weigh
            given = given / n
        shape = tile_shape(r)
        rear, group = rear_shape(r, shape), len(shape.outputs)
        packed, back = self._memory(heads, r)
        turns, still = turns_of(turn, np.float64), turns_of(None, np.float64)
        array, raw = rows.contiguous().numpy(), mixing.unnormalised
        pack_heads(array, r, scale, slopes, raw, group, turns, packed)
        asked = (given.contiguous().numpy(), means.numpy(), log_sums.numpy())
        pack_back(array, *asked, r, raw, group, still, packed, back)
        sees = (mixing.causal, mixing.window, raw, n)
        fixed = (packed, back, slopes, self.biased, *sees, shape, rear, FULL_TERMS)
        jobs = heads * len(back.keys_back)
        each = 1 if self._shared_out else jobs
        parts = [(begin, begin + each) for begin in range(0, jobs, each)]
        do_parts(lambda *some: mix_back(*fixed, *some), parts, mixing.n_threads)
        out = torch.empty_like(rows)
        unpack_back(back, r, scale, turns, out.numpy())
        return out, -torch.from_numpy(back.far.sum(axis=(1, 2, 3)))

    @property
    def _shared_out(self) -> bool:
        pairs = len(self.mixing.slopes) * self.mixing.n_tokens**2
        return n_parts(pairs, self.mixing.n_threads) > 1

    def _memory(self, n_heads: int, d_head: int) -> tuple[Packed, BackPacked]:
        if self.memory is None:
            n, shape = self.mixing.n_tokens, tile_shape(d_head)
            # A head's sums over queries are its own; threads beyond heads get copies of them.
            copies = -(-self.mixing.n_threads // n_heads) if self._shared_out else 1
            self.memory = (
                memory_for(n_heads, d_head, n, np.float64, shape),
                back_memory(n_heads, d_head, n, copies, shape),
            )
        return self.memory
