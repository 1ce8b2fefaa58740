"""How attention selects: how near a row is to choosing for good, and by how much it chooses.

Enters: scores, what the softmax is taken of, with -inf for tokens that a row does not see. Leaves:
one number a row, and means a head. Equal tokens have equal scores, and a row that chooses one of
them chooses all: the *selected* are all tokens within rounding of a row's largest score.

- Saturation, after arXiv 2106.16213: saturated attention is the limit of softmax(c * scores) for
  a growing c, even over the selected tokens. How far has the row come on the way from c = 0?
- Margin, after arXiv 2308.16898: the least gap between a selected token and any other, which is
  what the attention SVM makes large.

Both are about rows that choose. A row whose scores are all equal, one that sees a single token
among them, is saturated by force and has no other token: such rows are left out of the means.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Scores = Float[Tensor, "*any keys"]
PerRow = Float[Tensor, "*any"]
ROUNDING = 1e-6  # scores this near to each other, beside their size, are one: float32 forward runs
FEWEST_SEEN = 3  # tokens: between two, the margin is the whole range by force


def selected(scores: Scores) -> Bool[Tensor, "*any keys"]:
    """Return which tokens a row selects: those whose score is the largest, to rounding."""
    best = scores.amax(dim=-1, keepdim=True)
    return scores >= best - ROUNDING * (1 + best.abs())


def seen(scores: Scores) -> Int[Tensor, "*any"]:
    """Return how many tokens each row sees."""
    return scores.isfinite().sum(dim=-1)


def saturation(scores: Scores) -> PerRow:
    """Return (1 - TV - m/n) / (1 - m/n): 0 for even rows, 1 for saturated ones.

    TV is the total variation distance between the row's softmax and its saturated limit, which is
    1/m on each of the m selected tokens among the n seen. The same scores at c = 0 have 1 - TV =
    m/n, at c -> inf they have 1; in between it rises with c. A row of equal scores is 1.

    >>> saturation(torch.tensor([[0.0, 0.0, 0.0], [100.0, 0.0, 0.0], [1e-3, 0.0, 0.0]])).round()
    tensor([1., 1., 0.])
    """
    top, n = selected(scores), seen(scores).to(scores.dtype)
    m = top.sum(dim=-1).to(scores.dtype)
    shared = torch.minimum(scores.softmax(dim=-1), (1 / m)[..., None]) * top
    floor = m / n
    rest = torch.where(m < n, 1 - floor, 1.0)
    value = (shared.sum(dim=-1) - floor) / rest
    return torch.where(m < n, value, 1.0).clamp(0, 1)


def margin(scores: Scores) -> PerRow:
    """Return the largest score less the largest of those not selected, in nats; 0 if all are.

    e^margin is the factor by which a selected token is preferred to the next.

    >>> margin(torch.tensor([[3.0, 1.0, 3.0, -2.0]]))
    tensor([2.])
    """
    top = selected(scores)
    best = scores.amax(dim=-1)
    other = scores.masked_fill(top, -torch.inf).amax(dim=-1)
    return torch.where(other.isfinite(), best - other, 0.0)


def margin_share(scores: Scores) -> PerRow:
    """Return the margin over the range of the row's scores: 0 to 1, whatever their scale.

    1: the selected tokens stand out and all others are alike. The attention SVM speaks of
    directions, which scale does not change; neither does it change this.
    """
    hidden = ~scores.isfinite()
    least = scores.masked_fill(hidden, torch.inf).amin(dim=-1)
    size = scores.amax(dim=-1) - least
    return torch.where(size > 0, margin(scores) / size.clamp(min=1e-300), 0.0)


@dataclass
class SelectionSums:
    """Sums of the three over the rows of all contexts, head by head."""

    rows: Tensor
    saturation: Tensor
    margin: Tensor
    share: Tensor

    @classmethod
    def empty(cls, n_heads: int) -> "SelectionSums":
        """Return sums of nothing."""
        return cls(*(torch.zeros(n_heads, dtype=torch.float64) for _ in range(4)))

    def add(self, scores: Float[Tensor, "head tokens tokens"]) -> None:
        """Add the rows of one context that see enough tokens and do not find all of them equal."""
        n = seen(scores)
        judged = (n >= FEWEST_SEEN) & (selected(scores).sum(dim=-1) < n)
        self.rows += judged.sum(dim=-1)
        self.saturation += (saturation(scores) * judged).sum(dim=-1).double()
        self.margin += (margin(scores) * judged).sum(dim=-1).double()
        self.share += (margin_share(scores) * judged).sum(dim=-1).double()

    def means(self, head: int) -> tuple[float, float, float] | None:
        """Return a head's saturation, margin and its share; None where no row was judged."""
        n = self.rows[head].item()
        if n == 0:
            return None
        totals = (self.saturation[head], self.margin[head], self.share[head])
        first, second, third = (total.item() / n for total in totals)
        return first, second, third
