"""Positions as points: the mean token at each position, as far as it is more than chance.

Enters: contexts of one length. Leaves: a mean a position, and the variance that content has there.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

Contexts = Float[Tensor, "batch tokens width"]


@dataclass(frozen=True, kw_only=True)
class PositionPoints:
    """What positions account for, and what is left as content."""

    mean: Float[Tensor, "tokens width"]
    content: Contexts  # tokens without the mean of their position

    @classmethod
    def of(cls, x: Contexts) -> "PositionPoints":
        """Return the points of contexts; of one context alone, its mean at every position.

        Means over few contexts are noise for the most part: each is drawn towards the mean of all
        by the share of its gap that chance accounts for (James and Stein).
        """
        mean = x.mean(dim=(0, 1))
        gap = x.mean(dim=0) - mean
        count = len(x)
        if count == 1:
            return cls(mean=mean.expand_as(gap), content=x - mean)
        chance = (x - mean - gap).square().sum(dim=(0, 2)) / (count - 1) / count
        kept = (1 - chance / gap.square().sum(dim=-1).clamp(min=1e-300)).clamp(min=0)
        placed = mean + kept[:, None] * gap
        return cls(mean=placed, content=x - placed)


def relative_size(content: Contexts) -> Float[Tensor, " tokens"]:
    """Return the variance of content at each position, over the mean of all."""
    variance = content.square().sum(dim=-1).mean(dim=0)
    return variance / variance.mean().clamp(min=1e-300)
