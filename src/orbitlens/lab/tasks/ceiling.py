"""The exact order-blind ceiling of addition.

Enters: a number of digits. Leaves: a `Ceiling`, by enumerating all pairs. A model with a full mask
and no position encoding, read at the last position, is a function of the last token and the
multiset of all tokens. Three numbers bound it:

    exact match      from the question's multiset, the whole answer: sum_M max_a n(M, a) / N
    token accuracy   each digit from the multiset of question and earlier digits, and the last token
    loss             the conditional entropy of each digit given the same, in nats

The first gives the predictor more than it has (it may recall its whole answer), so it is an upper
bound; the other two are what the best such function reaches.
"""

from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens.lab.tasks.base import Ceiling

Keys = Int[Tensor, " pairs"]


@cache
def addition_ceiling(digits: int, reversed_answer: bool) -> Ceiling:
    """Return the ceiling over all 10^(2 digits) pairs."""
    size = 10**digits
    number = torch.arange(size * size)
    places = 10 ** torch.arange(digits)
    question = torch.cat(
        [(number // size)[:, None] // places % 10, (number % size)[:, None] // places % 10], dim=1
    )
    total = number // size + number % size
    answer = total[:, None] // 10 ** torch.arange(digits + 1) % 10
    if not reversed_answer:
        answer = answer.flip(1)
    accuracies, losses = [], []
    for place in range(digits + 1):
        best, entropy = _best(_seen(question, answer[:, :place]), answer[:, place])
        accuracies.append(best)
        losses.append(entropy)
    return Ceiling(
        exact_match=_best(_multiset(question), total)[0],
        token_accuracy=sum(accuracies) / len(accuracies),
        loss=sum(losses) / len(losses),
    )


def _seen(question: Int[Tensor, "pairs digits"], before: Int[Tensor, "pairs some"]) -> Keys:
    """Return a number for what the predictor sees: the multiset, and the last token."""
    keys = _multiset(torch.cat([question, before], dim=1)) * 11
    return keys + (before[:, -1] if before.shape[1] else 10)


def _multiset(rows: Int[Tensor, "pairs digits"]) -> Keys:
    ordered = rows.sort(dim=1).values
    return ordered @ 10 ** torch.arange(rows.shape[1])


def _best(seen: Keys, wanted: Keys) -> tuple[float, float]:
    """Return the accuracy of the best guess from what is seen, and the entropy left, in nats."""
    _, group = seen.unique(return_inverse=True)
    width = int(wanted.max()) + 1
    joint, counts = (group * width + wanted).unique(return_counts=True)
    weights = counts.to(torch.float64)
    n_groups = int(group.max()) + 1
    most: Float[Tensor, " group"] = torch.zeros(n_groups, dtype=torch.float64)
    sums = torch.zeros(n_groups, dtype=torch.float64)
    place = joint // width
    most.scatter_reduce_(0, place, weights, "amax")
    sums.scatter_add_(0, place, weights)
    n = weights.sum()
    entropy = -(weights * (weights / sums[place]).log()).sum() / n
    return (most.sum() / n).item(), entropy.item()
