"""What carries a rotary head's scores: planes by their period, and the kernel over distance.

Enters: a `Head`, mean and covariance of the tokens it sees. Leaves: the share of each plane in its
scores, the share in planes that never complete a turn within a context (beyond it they meet angles
that no training text had), and mean and deviation of scores at each offset. Tokens of query and key
are taken to be independent draws (theory section 3).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from orbitlens._types import Covariance, HeadMatrix, ModelVector
from orbitlens.heads.head import Head
from orbitlens.heads.rotary import Rotation, Turning, plane_indices, resolve_rotary

Offsets = Int[Tensor, " offset"]


@dataclass(frozen=True, kw_only=True)
class ScoreMoments:
    """First and second moments of a head's queries and keys before they are turned."""

    query_mean: Float[Tensor, " d_head"]  # the scale of scores included
    query_second: HeadMatrix  # E q q^T
    key_mean: Float[Tensor, " d_head"]
    key_covariance: HeadMatrix

    @property
    def key_second(self) -> HeadMatrix:
        """E k k^T."""
        return self.key_covariance + torch.outer(self.key_mean, self.key_mean)


def score_factors_and_shifts(head: Head) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what makes queries and keys of tokens: two maps and two shifts, the scale included."""
    left, right = head.score_factors
    norm = head.qk_norm
    shift = (head.b_q if norm is None else norm.q_shift) * head.scale
    return left, shift, right, head.b_k if norm is None else norm.k_shift


def score_moments(head: Head, mean: ModelVector, covariance: Covariance) -> ScoreMoments:
    """Return the moments of queries and keys of tokens with a mean and a covariance."""
    left, q_shift, right, k_shift = score_factors_and_shifts(head)
    query_mean = mean @ left + q_shift
    return ScoreMoments(
        query_mean=query_mean,
        query_second=left.T @ covariance @ left + torch.outer(query_mean, query_mean),
        key_mean=mean @ right + k_shift,
        key_covariance=right.T @ covariance @ right,
    )


@dataclass(frozen=True, kw_only=True)
class PlaneShares:
    """How much of a head's scores each plane carries; with the rest they sum to 1."""

    periods: Float[Tensor, " pair"]  # tokens of one turn; infinite where a plane is not turned
    shares: Float[Tensor, " pair"]
    rest: float  # of coordinates that belong to no plane

    def unfinished(self, n_context: int) -> Bool[Tensor, " pair"]:
        """Say which planes turn, but not once within a context."""
        return (self.periods > n_context) & self.periods.isfinite()

    def unfinished_share(self, n_context: int) -> float:
        """Return the share in planes that turn, but not once within a context."""
        return float(self.shares[self.unfinished(n_context)].sum())


def plane_shares(moments: ScoreMoments, rotation: Rotation) -> PlaneShares:
    """Return the share of each plane in the mean square of scores, all angles alike.

    Over angles that are spread evenly the mean square of a plane's part of the score is half the
    product of the mean squares of its part of queries and of keys; parts of two planes are then
    uncorrelated.
    """
    first, second = plane_indices(rotation)
    queries, keys = moments.query_second.diagonal(), moments.key_second.diagonal()
    energy = (queries[first] + queries[second]) * (keys[first] + keys[second]) / 2
    others = torch.ones(rotation.d_head, dtype=torch.bool)
    others[torch.cat([first, second])] = False
    rest = (moments.query_second[others][:, others] * moments.key_second[others][:, others]).sum()
    total = (energy.sum() + rest).clamp(min=1e-300)
    still = rotation.frequencies <= 0
    periods = 2 * math.pi / rotation.frequencies.masked_fill(still, 1.0)
    return PlaneShares(
        periods=periods.masked_fill(still, math.inf),
        shares=energy / total,
        rest=float(rest / total),
    )


def turned_queries(
    queries: Float[Tensor, "some d_head"], rotation: Rotation | None, offsets: Offsets
) -> Float[Tensor, "some offset d_head"]:
    """Return q T(m) for every query and offset: with a key it gives the score at that offset."""
    if rotation is None:
        return queries[:, None, :].expand(-1, len(offsets), -1)
    table = Turning.of(rotation, int(offsets.max()) + 1, rotation.d_head)
    turned = table.partner != torch.arange(rotation.d_head)
    again = torch.where(turned, rotation.factor, 1.0)  # scores carry the factor twice
    cosine, sine = table.cosine[offsets] * again, table.sine[offsets] * again
    return queries[:, None, :] * cosine + queries[:, table.partner][:, None, :] * sine


@dataclass(frozen=True, kw_only=True)
class ScoreKernel:
    """Scores of queries at each offset: what keys of unknown content give them."""

    mean: Float[Tensor, "some offset"]
    variance: Float[Tensor, "some offset"]  # over keys


def query_kernel(
    head: Head, moments: ScoreMoments, queries: Float[Tensor, "some d_head"], offsets: Offsets
) -> ScoreKernel:
    """Return mean and variance of the scores of each query with keys at each offset.

    Positional biases are included; offsets outside of a window have the mean minus infinity.
    """
    rotation = None
    if head.rotary is not None:
        rotation = resolve_rotary(head.rotary, int(offsets.max()) + 1)
    turned = turned_queries(queries, rotation, offsets)
    mean = turned @ moments.key_mean - head.alibi_slope * offsets
    variance = ((turned @ moments.key_covariance) * turned).sum(dim=-1)
    if head.window is not None:
        mean = mean.masked_fill(offsets >= head.window, -math.inf)
    return ScoreKernel(mean=mean, variance=variance)


def mean_kernel(
    head: Head, moments: ScoreMoments, offsets: Offsets
) -> tuple[Float[Tensor, " offset"], Float[Tensor, " offset"]]:
    """Return mean and deviation of scores at each offset, over queries and keys.

    Mean: q T(m) k of the mean query and key. Deviation: of keys, for the mean square of queries,
    tr(E[q q^T] T(m) Cov(k) T(m)^T).
    """
    of_mean = query_kernel(head, moments, moments.query_mean[None], offsets)
    values, vectors = torch.linalg.eigh(moments.query_second)
    roots = (vectors * values.clamp(min=0).sqrt()).T
    spread = query_kernel(head, moments, roots, offsets).variance.sum(dim=0)
    return of_mean.mean[0], spread.clamp(min=0).sqrt()
