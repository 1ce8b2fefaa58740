"""Which token attention selects: all of the best equally, or the leftmost of the best.

Enters: scores, one a token. Leaves: weights that sum to one. With `torch.softmax` these are the
three kinds of attention that theory speaks of: soft, saturated (the limit of softmax(c * scores)
for a growing c) and hard. Definitions as in arXiv 2106.16213.
"""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor


def saturated(scores: Shaped[Tensor, "*any"], dim: int = -1) -> Float[Tensor, "*any"]:
    """Return weights that are uniform over the largest scores: lim softmax(c * scores), c -> inf.

    Scores of -inf are masked; where all are, all are equal.

    >>> saturated(torch.tensor([1, 3, 3, 0]))
    tensor([0.0000, 0.5000, 0.5000, 0.0000], dtype=torch.float64)
    """
    best = (scores == scores.amax(dim=dim, keepdim=True)).to(_kind(scores))
    return best / best.sum(dim=dim, keepdim=True)


def hard(scores: Shaped[Tensor, "*any"], dim: int = -1) -> Float[Tensor, "*any"]:
    """Return weights that are one at the leftmost of the largest scores, zero elsewhere.

    >>> hard(torch.tensor([1, 3, 3, 0]))
    tensor([0., 1., 0., 0.], dtype=torch.float64)
    """
    # argmax names the first of equal maxima.
    first = scores.argmax(dim=dim, keepdim=True)
    return torch.zeros_like(scores, dtype=_kind(scores)).scatter(dim, first, 1.0)


def _kind(scores: Tensor) -> torch.dtype:
    """Return the type of the weights: that of the scores, or float64 where those are integers."""
    return scores.dtype if scores.dtype.is_floating_point else torch.float64
