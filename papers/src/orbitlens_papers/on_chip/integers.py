"""The attention layer in whole numbers, as a chip with narrow synapses would do it.

Enters: queries, keys, values and a readout as floats, and a number of bits. Leaves: answers that
were computed with integers alone. Keys, queries, values, readout and the state each have `bits`
bits and saturate; a write is a product, shifted right and rounded; sums of a read are wide, as
accumulators are. The encoder in front stays in floats: what is asked is whether the memory may be
narrow.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens_papers.on_chip.episodes import Episodes
from orbitlens_papers.on_chip.judging import accuracy
from orbitlens_papers.on_chip.model import Parts

SHARE = 0.999  # of entries that a scale covers; those beyond saturate
SHIFTS = range(16)

Whole = Int[Tensor, "..."]


@dataclass(frozen=True, kw_only=True)
class Chip:
    """Widths and scales of one layer, settled before it is used."""

    bits: int
    key_scale: float  # floats a step
    query_scale: float
    value_scale: float
    readout: Int[Tensor, "value_width labels"]
    shift: int = 0  # bits that a write drops

    @property
    def top(self) -> int:
        """The largest number a synapse holds."""
        return top_of(self.bits)

    def write(self, state: Whole, k: Whole, v: Whole) -> Whole:
        """Return the state after one token: both factors of a synapse, shifted, added, held."""
        product = v[..., :, None] * k[..., None, :]
        return (state + rounded_shift(product, self.shift)).clamp(-self.top, self.top)

    def answers(self, parts: Parts) -> Int[Tensor, "episodes queries labels"]:
        """Return logits of all queries after the whole context, as whole numbers."""
        k = quantised(parts.k, self.key_scale, self.bits)
        v = quantised(parts.v, self.value_scale, self.bits)
        q = quantised(parts.q, self.query_scale, self.bits)
        state = torch.zeros(len(k), v.shape[-1], k.shape[-1], dtype=torch.int64)
        for t in range(k.shape[1]):
            state = self.write(state, k[:, t], v[:, t])
        return (q @ state.mT) @ self.readout


def top_of(bits: int) -> int:
    """Return the largest number of that many bits, one of them the sign.

    >>> top_of(8)
    127
    """
    return 2 ** (bits - 1) - 1


def quantised(x: Float[Tensor, "*any"], scale: float, bits: int) -> Int[Tensor, "*any"]:
    """Return the nearest whole numbers of steps, held at the largest."""
    top = top_of(bits)
    return (x / scale).round().clamp(-top, top).long()


def rounded_shift(x: Whole, shift: int) -> Whole:
    """Return x / 2^shift, rounded to the nearest whole number; halves go up.

    >>> rounded_shift(torch.tensor([5, 6, -6, 7]), 2)
    tensor([ 1,  2, -1,  2])
    """
    return (x + (1 << shift >> 1)) >> shift


def scale_of(x: Float[Tensor, "*any"], bits: int) -> float:
    """Return the step that lets nearly all entries fit."""
    size = x.abs().flatten()
    rank = min(len(size) - 1, int(SHARE * len(size)))
    return max(float(size.kthvalue(rank + 1).values), 1e-12) / top_of(bits)


def settle(
    parts: Parts,
    readout: Float[Tensor, "value_width labels"],
    episodes: Episodes,
    *,
    bits: int,
) -> Chip:
    """Return a chip whose scales and shift suit these episodes, which must not be judged later."""
    step = float(readout.abs().max()) / top_of(bits)
    chip = Chip(
        bits=bits,
        key_scale=scale_of(parts.k, bits),
        query_scale=scale_of(parts.q, bits),
        value_scale=float(parts.v.abs().max()) / top_of(bits),
        readout=quantised(readout, step, bits),
    )
    tried = [replace(chip, shift=shift) for shift in SHIFTS[: 2 * bits]]
    right = [accuracy(c.answers(parts), episodes) for c in tried]
    return tried[right.index(max(right))]
