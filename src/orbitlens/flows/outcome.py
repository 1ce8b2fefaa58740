"""What became of the tokens: they ran away, settled, or gathered in clusters.

Enters: saved moments. Leaves: an `End` with a status, its time, and the number of clusters; and a
`Fate`, read off the size of the cloud where tokens are free, and off S = ln(1 - C), C the mean
cosine over pairs, where attention sees directions.
"""

import math
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
    # In NumPy: on a few small tokens an operation of torch takes longer than a step of the flow.
    moments, x, scale = times.numpy(), tokens.double().numpy(), log_scale.numpy()
    sizes = _log_sizes(x, scale)
    first = max(float(sizes[0]), 0.0)
    if geometry is Geometry.FREE and sizes[-1] - first > RUNAWAY:
        when = float(moments[np.argmax(sizes - first > RUNAWAY)])
        return End(status=Status.DIVERGED, time=when, n_clusters=_clusters(x[-1]))
    if scale[-1] != 0.0:  # on its way out, in the scaled chart: nothing has settled
        n_clusters = _clusters(x[-1])
        return End(status=Status.FINISHED, time=float(moments[-1]), n_clusters=n_clusters)
    return _settled_end(geometry, moments, x)


def _lengths(x: Array) -> Array:
    """Return the lengths of tokens, whose squares may be out of range."""
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


def _radius(start: Array, geometry: Geometry) -> float:
    if geometry is not Geometry.FREE:
        return CLUSTER
    spread = float(_lengths(start - start.mean(axis=0)).max())
    size = float(_lengths(start).max())
    if spread > 1e-12 * size:
        return CLUSTER * spread
    return CLUSTER * size if size > 0 else CLUSTER  # tokens that start as one


def _directions(x: Array, geometry: Geometry) -> Array:
    """Return what clusters: directions where normalisation makes length irrelevant."""
    return x if geometry is Geometry.FREE else x / np.maximum(_lengths(x), 1e-300)[:, None]


def _clusters(x: Array) -> int:
    size = float(_lengths(x).max())
    return _count(x, CLUSTER * size) if size > 0 else 1


def _settled_end(geometry: Geometry, times: Array, tokens: Array) -> End:
    """Look for the moment from which on tokens stay in as many clusters as at the end."""
    n = tokens.shape[1]
    radius = _radius(tokens[0], geometry)
    last = _directions(tokens[-1], geometry)
    clusters = _count(last, radius)
    finished = End(status=Status.FINISHED, time=float(times[-1]), n_clusters=clusters)
    if clusters == n and n > 1:
        return finished
    gaps = [_lengths(_directions(x, geometry) - last).max() for x in tokens]
    moving = np.flatnonzero(np.array(gaps) > radius)
    settled = int(moving[-1]) + 1 if len(moving) else 0
    if settled >= len(times) - 1 and len(times) > 2:
        return finished
    status = Status.CONVERGED if clusters == 1 else Status.COLLAPSED
    return End(status=status, time=float(times[settled]), n_clusters=clusters)


def log_spreads(tokens: Float[Tensor, "steps tokens d_model"]) -> Float[Tensor, " steps"]:
    """Return S = ln(1 - C) at each moment, C the mean cosine over pairs; 0 for a single token.

    1 - C is half the mean squared distance between directions: no difference of near numbers.
    """
    x = tokens.double().numpy()
    y = x / np.maximum(_lengths(x), 1e-300)[..., None]
    apart = np.square(y - y.mean(axis=1, keepdims=True)).sum(axis=(1, 2))
    return torch.from_numpy(np.log(np.maximum(apart / max(x.shape[1] - 1, 1), NO_SPREAD)))


def course(trajectory: Trajectory, geometry: Geometry) -> Array:
    """Return what a fate is read off, at each moment: ln of the largest length, or S."""
    if geometry is Geometry.FREE:
        return _log_sizes(trajectory.unit_tokens.numpy(), trajectory.log_scale.numpy())
    values: Array = log_spreads(trajectory.unit_tokens).numpy()
    return values


def fate(trajectory: Trajectory, geometry: Geometry = Geometry.FREE) -> Fate:
    """Return where the cloud went.

    Its size doubled and grows, halved and shrinks, or neither; of directions, S rose or fell by
    more than theory's bound for a sign.
    """
    values = course(trajectory, geometry)
    change = values[-1] - values[0]
    if geometry is not Geometry.FREE:
        if abs(change) <= TURN:
            return Fate.MIXED
        return Fate.DIVERGING if change > 0 else Fate.CONVERGING
    slope = values[-1] - values[-2] if len(values) > 1 else 0.0
    if trajectory.status is Status.DIVERGED or (change > TREND and slope > 0):
        return Fate.DIVERGING
    if change < -TREND and slope <= 0:
        return Fate.CONVERGING
    return Fate.MIXED
