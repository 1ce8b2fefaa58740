"""The two-layer model of arXiv 2409.10559: copier, selector, classifier.

Enters: contexts as counts over windows. Leaves: predictions and losses. Layer one has a head h that
averages earlier tokens, v_h = sum_i softmax(w_h)_i x_{l-i}, scaled to length one: the *copier*. For
every set S of at most D heads there is a feature, the product of its heads' similarities, with the
share p_S = c_S^2 / sum c^2: the *selector*. Layer two attends with softmax(a sum_S p_S feature_S):
the *classifier*.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens_papers.induction_heads.chains import Chain, Counts, windows

AHEAD, BEHIND = 3.0, 0.1  # first weights of a head: on its own lag, on the others
START = 0.01  # of c and a
FLOOR = 1e-3  # added to the probability of the right token


@dataclass(frozen=True, kw_only=True)
class Weights:
    """All that is learnt."""

    w: Float[Tensor, "head lags"]
    c: Float[Tensor, " sets"]
    a: Float[Tensor, ""]


def head_sets(n_heads: int, degree: int) -> tuple[tuple[int, ...], ...]:
    """Return all sets of at most `degree` heads, the empty one first; heads count from 1.

    >>> head_sets(2, 2)
    ((), (1,), (2,), (1, 2))
    """
    return tuple(s for size in range(degree + 1) for s in combinations(range(1, n_heads + 1), size))


def first_weights(chain: Chain, degree: int, *, alike: bool = False) -> Weights:
    """Return the weights before training; alike: no head is ahead of the others at any lag."""
    lags = chain.window
    w = torch.full((lags, lags), BEHIND, dtype=torch.float64)
    if not alike:
        w.fill_diagonal_(AHEAD)
    c = torch.full((len(head_sets(lags, degree)),), START, dtype=torch.float64)
    return Weights(w=w, c=c, a=torch.tensor(START, dtype=torch.float64))


def lag_weights(w: Float[Tensor, "head lags"]) -> Float[Tensor, "head lags"]:
    """Return where each head of the first layer looks."""
    return w.softmax(dim=-1)


def shares(c: Float[Tensor, " sets"]) -> Float[Tensor, " sets"]:
    """Return c_S^2 / sum c^2."""
    return c.square() / c.square().sum()


def features(
    chain: Chain, w: Float[Tensor, "head lags"], sets: Sequence[tuple[int, ...]]
) -> Float[Tensor, "sets windows windows"]:
    """Return, for every set, the product of its heads' similarities between any two windows."""
    one_hot = torch.nn.functional.one_hot(windows(chain), chain.vocabulary).to(w.dtype)
    seen = torch.einsum("hi,kiv->hkv", lag_weights(w), one_hot)
    seen = seen / seen.norm(dim=-1, keepdim=True)
    alike = seen @ seen.mT
    nothing = torch.ones_like(alike[0])
    return torch.stack([_product([alike[h - 1] for h in s], nothing) for s in sets])


def similarity(
    p: Float[Tensor, " sets"], products: Float[Tensor, "sets windows windows"]
) -> Float[Tensor, "windows windows"]:
    """Return the similarity that the second layer sees between any two windows."""
    return torch.einsum("s,sqk->qk", p, products)


def loss_of(
    seen: Float[Tensor, "windows windows"], a: Float[Tensor, ""], counts: Counts
) -> Float[Tensor, " batch"]:
    """Return -log of the attention on places that hold the right token.

    Similarities are at most 1, so that exp(a (similarity - 1)) cannot overflow.
    """
    weight = torch.exp(a * (seen - 1.0))[counts.query]
    right = (weight * counts.right).sum(dim=1) / (weight * counts.total).sum(dim=1)
    return -torch.log(right + FLOOR)


def mean_loss(chain: Chain, weights: Weights, degree: int, counts: Counts) -> Float[Tensor, ""]:
    """Return the loss of a model over contexts."""
    products = features(chain, weights.w, head_sets(chain.window, degree))
    return loss_of(similarity(shares(weights.c), products), weights.a, counts).mean()


def _product(parts: Sequence[Tensor], start: Tensor) -> Tensor:
    for part in parts:
        start = start * part
    return start
