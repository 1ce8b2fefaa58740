"""Directions: what the next layer sees of its tokens, and what every part of a block does to them.

Enters: tokens before and after a step, and the parts of the step. Leaves: the mean cosine C over
pairs of a context, S = ln(1 - C), and each part's share of the change of S (theory section 7):

    y_i = x_i / |x_i|   (behind a LayerNorm: after the mean coordinate is taken away)
    1 - C is half the mean squared distance between directions; S falls where tokens gather.

Parts of a step x -> x + d, d = sum of parts, share its change by the integral of the first-order
change along x + s d, s from 0 to 1: linear in the parts, so that they add up, whatever the size of
the step (Aumann and Shapley). Gauss points do the integral; sums over contexts are kept for each.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.families.architecture import NormKind
from orbitlens.theory.clouds import cosine_clusters
from orbitlens.theory.ranks import entropy_rank
from orbitlens.tracing.streams import Contexts, Kept

Parts = Float[Tensor, "part batch tokens width"]
Inner = Float[Tensor, "part batch tokens"]  # inner products of parts with something
# Where a step is far longer than its token, the token turns at the very beginning of the path.
ENDS = (0.0, 1 / 256, 1 / 32, 1 / 4, 1.0)
PER_PANEL = 16  # Gauss points between two ends


def _gauss_panels() -> tuple[tuple[float, ...], tuple[float, ...]]:
    points, weights = np.polynomial.legendre.leggauss(PER_PANEL)
    panels = list(pairwise(ENDS))
    nodes = [a + (b - a) * (u + 1) / 2 for a, b in panels for u in points]
    return tuple(nodes), tuple((b - a) * w / 2 for a, b in panels for w in weights)


NODES, WEIGHTS = _gauss_panels()
N_NODES = len(NODES)


def centre(x: Float[Tensor, "*any width"]) -> Float[Tensor, "*any width"]:
    """Return tokens without their mean coordinate, as a LayerNorm sees them."""
    return x - x.mean(dim=-1, keepdim=True)


def as_norm_sees(
    x: Float[Tensor, "*any width"], norm: NormKind | None
) -> Float[Tensor, "*any width"]:
    """Return tokens as the norm in front of attention sees them, but for their length."""
    return centre(x) if norm is NormKind.LAYER else x


def unit_directions(x: Float[Tensor, "*any width"]) -> Float[Tensor, "*any width"]:
    """Return tokens at length one; a token of length zero stays zero."""
    lengths = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.where(lengths > 0, x / lengths.clamp(min=torch.finfo(x.dtype).tiny), 0.0)


@dataclass
class CosineSums:
    """The mean cosine over pairs of tokens of a context, pooled over contexts."""

    cosines: float = 0.0
    n_pairs: int = 0

    def add(self, x: Contexts, kept: Kept | None = None) -> None:
        """Add the tokens of a batch, or those of them that are kept."""
        y = unit_directions(x.double())
        if kept is None:
            self.cosines += _pair_products(y)
            self.n_pairs += x.shape[0] * x.shape[1] * (x.shape[1] - 1)
            return
        counts = kept.sum(dim=1)
        self.cosines += _pair_products(y * kept[..., None])
        self.n_pairs += int((counts * (counts - 1)).sum())

    def merged(self, other: "CosineSums") -> "CosineSums":
        """Return the sums of both."""
        return CosineSums(self.cosines + other.cosines, self.n_pairs + other.n_pairs)

    @property
    def value(self) -> float:
        """The mean cosine C."""
        return self.cosines / self.n_pairs if self.n_pairs else 0.0

    @property
    def log_spread(self) -> float:
        """S = ln(1 - C); minus infinity where all directions are one."""
        return log_spread(self.value)


@dataclass
class MomentSums:
    """Raw inner products over pairs of a context: what tokens share, and what each has alone."""

    products: float = 0.0
    squares: float = 0.0
    n_pairs: int = 0
    n_tokens: int = 0

    def add(self, x: Contexts) -> None:
        """Add the tokens of a batch."""
        raw = x.double()
        self.products += _pair_products(raw)
        self.squares += raw.square().sum().item()
        self.n_pairs += x.shape[0] * x.shape[1] * (x.shape[1] - 1)
        self.n_tokens += x.shape[0] * x.shape[1]

    def merged(self, other: "MomentSums") -> "MomentSums":
        """Return the sums of both."""
        return MomentSums(
            products=self.products + other.products,
            squares=self.squares + other.squares,
            n_pairs=self.n_pairs + other.n_pairs,
            n_tokens=self.n_tokens + other.n_tokens,
        )

    @property
    def shared(self) -> float:
        """M: the mean of x_i . x_j over pairs of a context."""
        return self.products / self.n_pairs if self.n_pairs else 0.0

    @property
    def own(self) -> float:
        """D: the mean of |x|^2, less M."""
        return self.squares / self.n_tokens - self.shared if self.n_tokens else 0.0


def context_ranks(contexts: Sequence[Tensor]) -> tuple[float, float]:
    """Return effective rank and number of clusters of the directions of a context, on average.

    The rank is that of Roy and Vetterli; clusters are linked by cosines of at least 0.9.
    """
    ranks, clusters = [], []
    for context in contexts:
        y = unit_directions(context.double())
        squares = torch.linalg.eigvalsh(y @ y.T).clamp(min=0)
        ranks.append(entropy_rank(squares.sqrt()))
        clusters.append(cosine_clusters(y))
    return sum(ranks) / len(ranks), sum(clusters) / len(clusters)


def log_spread(cosine: float) -> float:
    """Return S = ln(1 - C).

    >>> round(log_spread(0.5), 4)
    -0.6931
    """
    return math.log1p(-cosine) if cosine < 1 else -math.inf


@dataclass
class PathSums:
    """What the parts of a step do to S, summed over contexts at every Gauss point of the path."""

    n_parts: int
    before: CosineSums = field(default_factory=CosineSums)
    after: CosineSums = field(default_factory=CosineSums)
    alone: list[CosineSums] = field(default_factory=list)  # after one part alone
    sizes: Tensor = field(init=False)  # sum over tokens of |part| / |x|, for each part
    n_tokens: int = 0
    _cosines: Tensor = field(init=False)  # of pairs, at each node
    _slopes: Tensor = field(init=False)  # of the sum of cosines by each part, at each node

    def __post_init__(self) -> None:
        """Start from nothing."""
        self.sizes = torch.zeros(self.n_parts, dtype=torch.float64)
        self._cosines = torch.zeros(N_NODES, dtype=torch.float64)
        self._slopes = torch.zeros(N_NODES, self.n_parts, dtype=torch.float64)
        self.alone = [CosineSums() for _ in range(self.n_parts)]

    def add(self, x: Contexts, parts: Parts) -> None:
        """Add the tokens of a batch and the parts of what is added to them."""
        start, pieces = x.double(), parts.double()
        step = pieces.sum(dim=0)
        lengths = torch.linalg.vector_norm(start, dim=-1).clamp(min=1e-300)
        # What goes over all parts takes most of the time, and is worked out once.
        on_start, on_itself = _inner(pieces, start), _inner(pieces, pieces)
        self.sizes += (on_itself.sqrt() / lengths).sum(dim=(1, 2))
        self.n_tokens += lengths.numel()
        self.before.add(start)
        self.after.add(start + step)
        for alone, sums in zip(
            _each_alone(start, pieces, on_start, on_itself), self.alone, strict=True
        ):
            sums.cosines += alone
            sums.n_pairs += lengths.numel() * (start.shape[1] - 1)
        at_nodes, slopes = _along_path(start, step, pieces, on_start)
        self._cosines += at_nodes
        self._slopes += slopes

    def merged(self, other: "PathSums") -> "PathSums":
        """Return the sums of both."""
        total = PathSums(self.n_parts)
        total.before = self.before.merged(other.before)
        total.after = self.after.merged(other.after)
        total.alone = [a.merged(b) for a, b in zip(self.alone, other.alone, strict=True)]
        total.sizes = self.sizes + other.sizes
        total.n_tokens = self.n_tokens + other.n_tokens
        total._cosines = self._cosines + other._cosines
        total._slopes = self._slopes + other._slopes
        return total

    @property
    def change(self) -> float:
        """The change of S by the whole step."""
        return self.after.log_spread - self.before.log_spread

    @property
    def shares(self) -> list[float]:
        """Each part's share of the change; they sum to `change` to the error of the quadrature."""
        weights = torch.tensor(WEIGHTS, dtype=torch.float64)
        slopes = -self._slopes / (self.before.n_pairs - self._cosines)[:, None]
        return (weights @ slopes).tolist()

    @property
    def mean_sizes(self) -> list[float]:
        """Mean length of each part over that of its token."""
        return (self.sizes / max(self.n_tokens, 1)).tolist()

    @property
    def effects_alone(self) -> list[float]:
        """The change of S by each part alone: from x to x + part."""
        return [sums.log_spread - self.before.log_spread for sums in self.alone]


def _pair_products(y: Float[Tensor, "batch tokens width"]) -> float:
    """Return the sum of y_i . y_j over ordered pairs i != j of each context; y of any length."""
    return (y.sum(dim=1).square().sum() - y.square().sum()).item()


def _each_alone(x: Contexts, parts: Parts, on_x: Inner, on_itself: Inner) -> list[float]:
    """Return the sum of cosines over pairs of x + part, for each part; nothing so large is kept."""
    squares = _inner(x, x) + 2 * on_x + on_itself
    inverse = torch.where(squares > 0, squares.clamp(min=1e-300).rsqrt(), 0.0)
    # One product a context serves all parts; x is not copied for each of them.
    mean = (inverse.transpose(0, 1) @ x).transpose(0, 1)
    mean = mean + (inverse[..., None, :] @ parts).squeeze(-2)
    return (mean.square().sum(dim=(1, 2)) - (squares > 0).sum(dim=(1, 2))).tolist()


def _along_path(
    x: Contexts, step: Contexts, parts: Parts, on_x: Inner
) -> tuple[Float[Tensor, " node"], Float[Tensor, "node part"]]:
    """Return the sum of cosines at every node of x + s step, and its slope by each part.

    With y_i = (x_i + s d_i) / l_i and m = sum_j y_j of a context the slope is the sum over i of
    2 (m - (m . y_i) y_i) . part_i / l_i; of tokens only inner products are needed, so that all
    nodes are matrix products.
    """
    s = torch.tensor(NODES, dtype=torch.float64)[:, None]
    own, mixed, moved = (
        each[:, None, :] for each in (_inner(x, x), _inner(x, step), _inner(step, step))
    )
    squares = own + 2 * s * mixed + s.square() * moved  # batch x node x tokens
    inverse = torch.where(squares > 0, squares.clamp(min=1e-300).rsqrt(), 0.0)
    mean = inverse @ x + s * (inverse @ step)  # m
    along = inverse * (mean @ x.mT + s * (mean @ step.mT))  # m . y_i
    pulled = (inverse @ parts).mul_(mean).sum(dim=(1, 3))  # part x node: sum_i m . part_i / l_i
    weight = along * inverse.square()
    turned = torch.einsum("bnt,pbt->np", weight, on_x)
    turned += torch.einsum("bnt,pbt->np", s * weight, _inner(parts, step))
    units = (squares > 0).sum(dim=(0, 2))
    return mean.square().sum(dim=(0, 2)) - units, 2 * (pulled.T - turned)


def _inner(
    a: Float[Tensor, "*any tokens width"], b: Float[Tensor, "*some tokens width"]
) -> Float[Tensor, "*any tokens"]:
    return torch.einsum("...d,...d->...", a, b)
