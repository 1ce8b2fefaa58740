"""What became of the tokens: they ran away, settled, or gathered in clusters.

Enters: saved moments. Leaves: an `End` with a status, its time, and the number of clusters; and a
`Fate`, read off the size of the cloud where tokens are free, and off S = ln(1 - C), C the mean
cosine over pairs, where attention sees directions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from orbitlens._types import Tokens
from orbitlens.flows.charts import RUNAWAY
from orbitlens.flows.clusters import connected_labels
from orbitlens.flows.system import Geometry
from orbitlens.trajectory import Status, Trajectory

CLUSTER = 1e-3  # tokens this close, in units of the cloud's first size, are one cluster
TREND = math.log(2)  # change of the logarithm of size that makes a trend
TURN = 0.01  # change of S that makes one (theory section 7)
SAFE = 1e-250  # of squares: above, and below its reciprocal, none of their parts was lost
NO_SPREAD = 1e-300  # of 1 - C: below, a logarithm would be infinite

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class End:
    """How a trajectory ended."""

    status: Status
    time: float
    n_clusters: int


class Fate(StrEnum):
    """Which way the cloud went, for comparison with what theory predicts.

    Of free flows it is about size: of the others about directions, which spread (diverging), gather
    (converging), or do neither.
    """

    DIVERGING = "diverging"
    CONVERGING = "converging"
    MIXED = "mixed"

    def words(self, geometry: Geometry) -> str:
        """Return the fate as it is called in a geometry."""
        return self.value if geometry is Geometry.FREE else OF_DIRECTIONS[self]


OF_DIRECTIONS = {
    Fate.DIVERGING: "spreads directions",
    Fate.CONVERGING: "gathers directions",
    Fate.MIXED: "neither gathers nor spreads directions",
}


def cluster_labels(tokens: Tokens, radius: float) -> Int[Tensor, " tokens"]:
    """Label tokens so that those linked by gaps shorter than `radius` share a label.

    >>> points = torch.tensor([[0.0, 0.0], [0.05, 0.0], [1.0, 0.0]], dtype=torch.float64)
    >>> cluster_labels(points, 0.1).tolist()
    [0, 0, 1]
    """
    return torch.from_numpy(_labels(tokens.double().numpy(), radius))


def count_clusters(tokens: Tokens, radius: float) -> int:
    """Return the number of clusters at a gap of `radius`."""
    return _count(tokens.double().numpy(), radius)


def log_sizes(
    tokens: Float[Tensor, "steps tokens d_model"], log_scale: Float[Tensor, " steps"]
) -> Float[Tensor, " steps"]:
    """Return the logarithm of the largest token's length at each moment."""
    return torch.from_numpy(_log_sizes(tokens.numpy(), log_scale.numpy()))


def describe_end(geometry: Geometry, times: Tensor, tokens: Tensor, log_scale: Tensor) -> End:
    """Read off a trajectory's saved moments how it ended."""
    return describe_ends(geometry, times, tokens[None], log_scale[None])[0]


def describe_ends(
    geometry: Geometry,
    times: Float[Tensor, " steps"],
    tokens: Float[Tensor, "system steps tokens d_model"],
    log_scale: Float[Tensor, "system steps"],
) -> list[End]:
    """Read off the saved moments of many trajectories how each ended."""
    # In NumPy: on a few small tokens an operation of torch takes longer than a step of the flow.
    moments, x, scale = times.numpy(), tokens.double().numpy(), log_scale.numpy()
    sizes = _log_sizes(x, scale)
    first = np.maximum(sizes[:, :1], 0.0)
    away = sizes - first > RUNAWAY
    ran = away[:, -1] if geometry is Geometry.FREE else np.zeros(len(x), dtype=bool)
    inside = ~ran & (scale[:, -1] == 0.0)  # else on its way out, in the scaled chart: not settled
    ends: list[End | None] = [None] * len(x)
    for k in np.flatnonzero(~inside):
        status = Status.DIVERGED if ran[k] else Status.FINISHED
        when = float(moments[np.argmax(away[k])] if ran[k] else moments[-1])
        ends[k] = End(status=status, time=when, n_clusters=_clusters(x[k, -1]))
    settled = _settled_ends(geometry, moments, x[inside])
    for k, end in zip(np.flatnonzero(inside), settled, strict=True):
        ends[k] = end
    return [end for end in ends if end is not None]


def _lengths(x: Array) -> Array:
    """Return the lengths of tokens, whose squares may be out of range."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("...d,...d->...", x, x)
    if ((squares > SAFE) & (squares < 1 / SAFE)).all():
        plain: Array = np.sqrt(squares)
        return plain
    top = np.clip(np.abs(x).max(axis=-1, keepdims=True), 1e-300, 1e300)
    unit = x / top
    lengths: Array = np.sqrt(np.einsum("...d,...d->...", unit, unit)) * top[..., 0]
    return lengths


def _log_sizes(x: Array, log_scale: Array) -> Array:
    return np.log(np.maximum(_lengths(x).max(axis=-1), 1e-300)) + log_scale


def _labels(x: Array, radius: float) -> NDArray[np.int64]:
    """Return labels at a gap of `radius`, in units of it: squares of gaps may be out of range."""
    unit = max(radius, 1e-300)
    labels: NDArray[np.int64] = connected_labels(np.ascontiguousarray(x / unit), radius / unit)
    return labels


def _count(x: Array, radius: float) -> int:
    return int(_labels(x, radius).max()) + 1


def _radii(starts: Array, geometry: Geometry) -> Array:
    """Return how close tokens of each system have to be to count as one."""
    if geometry is not Geometry.FREE:
        return np.full(len(starts), CLUSTER)
    spread = _lengths(starts - starts.mean(axis=1, keepdims=True)).max(axis=1)
    size = _lengths(starts).max(axis=1)
    alone = np.where(size > 0, size, 1.0)  # tokens that start as one
    radii: Array = CLUSTER * np.where(spread > 1e-12 * size, spread, alone)
    return radii


def _directions(x: Array, geometry: Geometry) -> Array:
    """Return what clusters: directions where normalisation makes length irrelevant."""
    return x if geometry is Geometry.FREE else x / np.maximum(_lengths(x), 1e-300)[..., None]


def _clusters(x: Array) -> int:
    size = float(_lengths(x).max())
    return _count(x, CLUSTER * size) if size > 0 else 1


def _settled_ends(geometry: Geometry, times: Array, tokens: Array) -> list[End]:
    """Look for the moment from which on tokens stay in as many clusters as at the end."""
    if not len(tokens):
        return []
    n = tokens.shape[2]
    radii = _radii(tokens[:, 0], geometry)
    x = _directions(tokens, geometry)
    clusters = [_count(last, radius) for last, radius in zip(x[:, -1], radii, strict=True)]
    moving = _lengths(x - x[:, -1:]).max(axis=-1) > radii[:, None]
    # The last moment at which some token is elsewhere; the one after it, if there is none before.
    settled = np.where(moving.any(axis=1), moving.shape[1] - np.argmax(moving[:, ::-1], axis=1), 0)
    ends = []
    for n_clusters, begun in zip(clusters, settled, strict=True):
        scattered = n_clusters == n and n > 1
        if scattered or (begun >= len(times) - 1 and len(times) > 2):
            status, when = Status.FINISHED, float(times[-1])
        else:
            status = Status.CONVERGED if n_clusters == 1 else Status.COLLAPSED
            when = float(times[begun])
        ends.append(End(status=status, time=when, n_clusters=n_clusters))
    return ends


def log_spreads(tokens: Float[Tensor, "*system steps tokens d_model"]) -> Tensor:
    """Return S = ln(1 - C) at each moment, C the mean cosine over pairs; 0 for a single token.

    1 - C is half the mean squared distance between directions: no difference of near numbers.
    """
    x = tokens.double().numpy()
    y = x / np.maximum(_lengths(x), 1e-300)[..., None]
    apart = np.square(y - y.mean(axis=-2, keepdims=True)).sum(axis=(-2, -1))
    return torch.from_numpy(np.log(np.maximum(apart / max(x.shape[-2] - 1, 1), NO_SPREAD)))


def course(trajectory: Trajectory, geometry: Geometry) -> Array:
    """Return what a fate is read off, at each moment: ln of the largest length, or S."""
    return _courses(trajectory.unit_tokens, trajectory.log_scale, geometry)


def _courses(tokens: Tensor, log_scale: Tensor, geometry: Geometry) -> Array:
    if geometry is Geometry.FREE:
        return _log_sizes(tokens.numpy(), log_scale.numpy())
    values: Array = log_spreads(tokens).numpy()
    return values


def fate(trajectory: Trajectory, geometry: Geometry = Geometry.FREE) -> Fate:
    """Return where the cloud went.

    Its size doubled and grows, halved and shrinks, or neither; of directions, S rose or fell by
    more than theory's bound for a sign.
    """
    return _fate(course(trajectory, geometry), trajectory.status, geometry)


def fates(
    geometry: Geometry,
    tokens: Float[Tensor, "system steps tokens d_model"],
    log_scale: Float[Tensor, "system steps"],
    statuses: Sequence[Status],
) -> list[Fate]:
    """Return where each of many clouds went; see `fate`."""
    courses = _courses(tokens, log_scale, geometry)
    return [
        _fate(values, status, geometry) for values, status in zip(courses, statuses, strict=True)
    ]


def _fate(values: Array, status: Status, geometry: Geometry) -> Fate:
    change = values[-1] - values[0]
    if geometry is not Geometry.FREE:
        if abs(change) <= TURN:
            return Fate.MIXED
        return Fate.DIVERGING if change > 0 else Fate.CONVERGING
    slope = values[-1] - values[-2] if len(values) > 1 else 0.0
    if status is Status.DIVERGED or (change > TREND and slope > 0):
        return Fate.DIVERGING
    if change < -TREND and slope <= 0:
        return Fate.CONVERGING
    return Fate.MIXED
