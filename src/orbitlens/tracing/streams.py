"""Running sums over tokens: statistics of any number of batches in the memory of one.

Enters: tokens of one batch, (contexts, tokens, width). Leaves: means, covariances, norms, cosines
and pair distances of all that came by. A *context* is one sequence: tokens that can see each other.
Pairs are pairs within a context; covariances are pooled within contexts,

    S = sum_contexts sum_i (x_i - mean_c)(x_i - mean_c)^T / sum_contexts (n_c - 1),

so that the mean squared pair distance is exactly 2 tr S. Sums are kept in float64; products are
formed in the type of the tokens. Two accumulators of disjoint texts add up to that of both.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Contexts = Float[Tensor, "batch tokens width"]
Kept = Bool[Tensor, "batch tokens"]


def split_padding(x: Contexts, kept: Kept | None) -> Iterator[Contexts]:
    """Yield the batch as it is, or, where it has padding, one context after another without it."""
    if kept is None or bool(kept.all()):
        yield x
        return
    for context, real in zip(x, kept, strict=True):
        yield context[real][None]


class CovarianceSums:
    """Within-context covariance of two kinds of vectors of the same tokens (or of one kind)."""

    def __init__(self) -> None:
        """Start from nothing."""
        self.scatter: Tensor | None = None
        self.freedom = 0  # sum over contexts of n - 1

    def add(self, x: Contexts, y: Float[Tensor, "batch tokens other"]) -> None:
        """Add the tokens of a batch; the caller has centred both within contexts."""
        block = (x.flatten(0, 1).T @ y.flatten(0, 1)).double()
        self.scatter = block if self.scatter is None else self.scatter.add_(block)
        self.freedom += x.shape[0] * (x.shape[1] - 1)

    def merged(self, other: "CovarianceSums") -> "CovarianceSums":
        """Return the sums of both."""
        total = CovarianceSums()
        parts = [s.scatter for s in (self, other) if s.scatter is not None]
        total.scatter = torch.stack(parts).sum(dim=0) if parts else None
        total.freedom = self.freedom + other.freedom
        return total

    @property
    def value(self) -> Float[Tensor, "left right"]:
        """The covariance."""
        if self.scatter is None or self.freedom == 0:
            raise ValueError("no pair of tokens was added")
        return self.scatter / self.freedom


@dataclass
class SpreadSums:
    """The mean squared pair distance of one point of the network; one pass over the tokens."""

    within: float = 0.0
    freedom: int = 0

    def add(self, x: Contexts) -> None:
        """Add the tokens of a batch."""
        # sum |x|^2 - n |mean|^2 would be quicker, and cancel where the mean is large.
        self.add_centred(x - x.mean(dim=1, keepdim=True))

    def add_centred(self, centred: Contexts) -> None:
        """Add tokens that are centred within their contexts."""
        self.within += torch.linalg.vector_norm(centred).double().square().item()
        self.freedom += centred.shape[0] * (centred.shape[1] - 1)

    def merged(self, other: "SpreadSums") -> "SpreadSums":
        """Return the sums of both."""
        return SpreadSums(self.within + other.within, self.freedom + other.freedom)

    @property
    def mean_squared_distance(self) -> float:
        """The mean of |x_i - x_j|^2 over pairs of a context: 2 tr S."""
        return 2 * self.within / self.freedom if self.freedom else 0.0


class StateSums:
    """What the tokens at one point of the network look like."""

    def __init__(self) -> None:
        """Start from nothing."""
        self.spread = SpreadSums()
        self.covariance = CovarianceSums()
        self.n_tokens = 0
        self.n_pairs = 0
        self.norms = 0.0
        self.largest_norm = 0.0
        self.squares = 0.0
        self.cosines = 0.0
        self.centred_cosines = 0.0
        self.total: Tensor | None = None  # sum of tokens
        self.total_unit: Tensor | None = None  # sum of unit tokens, of all contexts
        self.means: Tensor | None = None  # sum of outer products of context means, times n

    def add(self, x: Contexts) -> Contexts:
        """Add the tokens of a batch; return them centred within contexts."""
        n = x.shape[1]
        mean = x.mean(dim=1, keepdim=True)
        centred = x - mean
        lengths = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        self.spread.add_centred(centred)
        self.covariance.add(centred, centred)
        self.n_tokens += x.shape[0] * n
        self.n_pairs += x.shape[0] * n * (n - 1)
        self.norms += lengths.double().sum().item()
        self.largest_norm = max(self.largest_norm, lengths.max().item())
        self.squares += lengths.double().square().sum().item()
        unit_sums = torch.einsum("btd,bt->bd", x, _inverse(lengths[..., 0])).double()
        self.cosines += _pair_sum(unit_sums, x.shape[0] * n)
        small = torch.linalg.vector_norm(centred, dim=-1)
        centred_sums = torch.einsum("btd,bt->bd", centred, _inverse(small)).double()
        self.centred_cosines += _pair_sum(centred_sums, int((small > 0).sum()))
        self.total = _plus(self.total, mean.sum(dim=(0, 1)).double() * n)
        self.total_unit = _plus(self.total_unit, unit_sums.sum(dim=0))
        flat = mean[:, 0].double()
        self.means = _plus(self.means, n * flat.T @ flat)
        return centred

    def merged(self, other: "StateSums") -> "StateSums":
        """Return the sums of both."""
        result = StateSums()
        result.spread = self.spread.merged(other.spread)
        result.covariance = self.covariance.merged(other.covariance)
        for name in ("n_tokens", "n_pairs", "norms", "squares", "cosines", "centred_cosines"):
            setattr(result, name, getattr(self, name) + getattr(other, name))
        result.largest_norm = max(self.largest_norm, other.largest_norm)
        for name in ("total", "total_unit", "means"):
            parts = [p for p in (getattr(self, name), getattr(other, name)) if p is not None]
            setattr(result, name, torch.stack(parts).sum(dim=0) if parts else None)
        return result

    @property
    def mean(self) -> Float[Tensor, " width"]:
        """The mean token."""
        if self.total is None:
            raise ValueError("no token was added")
        return self.total / self.n_tokens

    @property
    def second_moment(self) -> Float[Tensor, "width width"]:
        """The mean of x x^T over all tokens, of all contexts."""
        if self.means is None or self.covariance.scatter is None:
            raise ValueError("no token was added")
        return (self.covariance.scatter + self.means) / self.n_tokens


def _inverse(lengths: Tensor) -> Tensor:
    return torch.where(lengths > 0, 1 / lengths.clamp(min=torch.finfo(lengths.dtype).tiny), 0.0)


def _pair_sum(unit_sums: Float[Tensor, "batch width"], n_units: int) -> float:
    """Return the sum of cosines over ordered pairs i != j of each context."""
    return unit_sums.square().sum().item() - n_units


def _plus(total: Tensor | None, part: Tensor) -> Tensor:
    return part if total is None else total + part
