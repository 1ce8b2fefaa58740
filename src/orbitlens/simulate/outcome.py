"""What became of the tokens: ran away, came to rest, or gathered in clusters.

Enters: saved moments. Leaves: an `End` with a status, its time, and the number of clusters.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens._types import Tokens
from orbitlens.simulate.clusters import flood
from orbitlens.simulate.system import Geometry
from orbitlens.trajectory import Status, Trajectory

ESCAPE = math.log(1e6)  # growth of the largest token at which it is said to have run away
CLUSTER = 1e-3  # tokens this close, in units of the cloud's first size, are one cluster
TREND = math.log(2)  # change of size that makes a trend


@dataclass(frozen=True, kw_only=True)
class End:
    """How a trajectory ended."""

    status: Status
    time: float
    n_clusters: int


class Fate(StrEnum):
    """Which way the size of the cloud went, for comparison with what theory predicts."""

    DIVERGING = "diverging"
    CONVERGING = "converging"
    MIXED = "mixed"


def cluster_labels(tokens: Tokens, radius: float) -> Int[Tensor, " tokens"]:
    """Label tokens so that those linked by gaps shorter than `radius` share a label.

    >>> points = torch.tensor([[0.0, 0.0], [0.05, 0.0], [1.0, 0.0]], dtype=torch.float64)
    >>> cluster_labels(points, 0.1).tolist()
    [0, 0, 1]
    """
    return torch.from_numpy(flood(np.ascontiguousarray(tokens.double().numpy()), radius))


def count_clusters(tokens: Tokens, radius: float) -> int:
    """Return the number of clusters at a gap of `radius`."""
    return int(cluster_labels(tokens, radius).max().item()) + 1


def log_sizes(
    tokens: Float[Tensor, "steps tokens d_model"], log_scale: Float[Tensor, " steps"]
) -> Float[Tensor, " steps"]:
    """Return the logarithm of the largest token's length at each moment."""
    return tokens.norm(dim=-1).amax(dim=-1).clamp(min=1e-300).log() + log_scale


def describe_end(geometry: Geometry, times: Tensor, tokens: Tensor, log_scale: Tensor) -> End:
    """Read off a trajectory's saved moments how it ended."""
    sizes = log_sizes(tokens, log_scale)
    first = max(sizes[0].item(), 0.0)
    if geometry is Geometry.FREE and sizes[-1].item() - first > ESCAPE:
        when = times[int((sizes - first > ESCAPE).nonzero()[0])].item()
        return End(status=Status.DIVERGED, time=when, n_clusters=_clusters(tokens[-1], geometry))
    if log_scale[-1].item() != 0.0:  # on its way out, in the scaled chart: nothing is at rest
        n_clusters = _clusters(tokens[-1], geometry)
        return End(status=Status.FINISHED, time=times[-1].item(), n_clusters=n_clusters)
    return _resting_end(geometry, times, tokens)


def _radius(start: Tokens, geometry: Geometry) -> float:
    if geometry is not Geometry.FREE:
        return CLUSTER
    spread = (start - start.mean(dim=0)).norm(dim=-1).max().item()
    size = start.norm(dim=-1).max().item()
    if spread > 1e-12 * size:
        return CLUSTER * spread
    return CLUSTER * size if size > 0 else CLUSTER  # tokens that start as one


def _directions(x: Tokens, geometry: Geometry) -> Tokens:
    """Return what clusters: directions where normalisation makes length irrelevant."""
    return x if geometry is Geometry.FREE else x / x.norm(dim=-1, keepdim=True).clamp(min=1e-300)


def _clusters(x: Tokens, geometry: Geometry) -> int:
    size = x.norm(dim=-1).max().item()
    return count_clusters(x, CLUSTER * size) if size > 0 else 1


def _resting_end(geometry: Geometry, times: Tensor, tokens: Tensor) -> End:
    """Look for the moment from which on tokens sat still in as many clusters as at the end."""
    n = tokens.shape[1]
    radius = _radius(tokens[0], geometry)
    last = _directions(tokens[-1], geometry)
    clusters = count_clusters(last, radius)
    finished = End(status=Status.FINISHED, time=times[-1].item(), n_clusters=clusters)
    if clusters == n and n > 1:
        return finished
    gaps = torch.stack([(_directions(x, geometry) - last).norm(dim=-1).max() for x in tokens])
    moving = (gaps > radius).nonzero()
    settled = int(moving[-1]) + 1 if len(moving) else 0
    if settled >= len(times) - 1 and len(times) > 2:
        return finished
    status = Status.CONVERGED if clusters == 1 else Status.COLLAPSED
    return End(status=status, time=times[settled].item(), n_clusters=clusters)


def fate(trajectory: Trajectory) -> Fate:
    """Return where the cloud's size went: doubled and growing, halved and shrinking, or neither."""
    sizes = log_sizes(trajectory.unit_tokens, trajectory.log_scale)
    change = (sizes[-1] - sizes[0]).item()
    slope = (sizes[-1] - sizes[-2]).item() if len(sizes) > 1 else 0.0
    if trajectory.status is Status.DIVERGED or (change > TREND and slope > 0):
        return Fate.DIVERGING
    if change < -TREND and slope <= 0:
        return Fate.CONVERGING
    return Fate.MIXED
