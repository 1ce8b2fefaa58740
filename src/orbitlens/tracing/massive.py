"""Massive tokens: those far longer than the rest of their context, such as attention sinks.

Enters: tokens of a batch. Leaves: the positions that hold massive tokens, how often and how long.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.tracing.streams import Contexts, Kept

MASSIVE = 10.0  # times the median length of its context from which on a token is massive


@dataclass(frozen=True, kw_only=True)
class MassiveToken:
    """A token far longer than its context: where it stands and how long it is."""

    position: int
    share: float  # of contexts in which the token at this position is massive
    ratio: float  # its mean length over the median of its context


class MassiveSums:
    """Which positions hold massive tokens, over contexts."""

    def __init__(self) -> None:
        """Start from nothing."""
        self.contexts = 0
        self.counts: dict[int, int] = {}
        self.ratios: dict[int, float] = {}

    def add(self, x: Contexts) -> Kept:
        """Add the tokens of a batch; return which of them are not massive."""
        ratios = length_ratios(x)
        self.contexts += x.shape[0]
        for context, position in (ratios >= MASSIVE).nonzero().tolist():
            self.counts[position] = self.counts.get(position, 0) + 1
            ratio = ratios[context, position].item()
            self.ratios[position] = self.ratios.get(position, 0.0) + ratio
        return ratios < MASSIVE

    def merged(self, other: "MassiveSums") -> "MassiveSums":
        """Return the sums of both."""
        total = MassiveSums()
        total.contexts = self.contexts + other.contexts
        for sums in (self, other):
            for place, count in sums.counts.items():
                total.counts[place] = total.counts.get(place, 0) + count
                total.ratios[place] = total.ratios.get(place, 0.0) + sums.ratios[place]
        return total

    @property
    def tokens(self) -> tuple[MassiveToken, ...]:
        """The positions that hold massive tokens, most frequent first."""
        ordered = sorted(self.counts, key=lambda place: (-self.counts[place], place))
        return tuple(
            MassiveToken(
                position=place,
                share=self.counts[place] / self.contexts,
                ratio=self.ratios[place] / self.counts[place],
            )
            for place in ordered
        )


def length_ratios(x: Contexts) -> Float[Tensor, "batch tokens"]:
    """Return each token's length over the median length of its context."""
    lengths = torch.linalg.vector_norm(x.double(), dim=-1)
    return lengths / lengths.median(dim=1, keepdim=True).values.clamp(min=1e-300)
