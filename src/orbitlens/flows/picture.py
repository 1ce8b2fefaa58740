"""A flow as a picture in numbers: where tokens are drawn, moment by moment, and series beside it.

Enters: a `Trajectory`. Leaves: a `FlowPicture`, plain numbers; `flow_film` makes it a film to draw.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.flows.outcome import CLUSTER, cluster_labels, log_sizes, log_spreads
from orbitlens.flows.plane import Plane, on_sphere, plane_of
from orbitlens.flows.system import Geometry, System
from orbitlens.theory.clouds import interaction_energy, mean_squared_distance
from orbitlens.trajectory import Status, Trajectory

MOST_DRAWN = 300  # tokens; a browser moves this many without a stutter
MOST_FOR_ENERGY = 4096  # tokens; the energy is a sum over pairs
ALONE = -1  # the label of a token that shares its place with no other


@dataclass(frozen=True, kw_only=True)
class FlowPicture:
    """What a picture of a flow shows, frame by frame."""

    title: str
    ending: str  # what happened, in words
    times: Float[Tensor, " steps"]
    plane: Plane
    token_index: Int[Tensor, " tokens"]  # of the tokens drawn, in the trajectory
    labels: Int[Tensor, " tokens"]  # clusters at the end, 0 the largest; or ALONE
    cluster_sizes: tuple[int, ...]  # of the clusters of two tokens or more, drawn or not
    log_distance: Float[Tensor, " steps"] | None  # log10 of the mean of |x_i - x_j|^2 over pairs
    log_norm: Float[Tensor, " steps"]  # log10 of the largest |x_i|
    energy: Float[Tensor, " steps"] | None  # interaction energy, over that of a single point
    cosine: Float[Tensor, " steps"] | None  # mean over pairs, where attention sees directions
    notes: tuple[str, ...]  # what a reader must know to read the picture


def flow_picture(
    trajectory: Trajectory, *, title: str, n_frames: int = 60, system: System | None = None
) -> FlowPicture:
    """Return the picture of a trajectory in about `n_frames` of its saved moments.

    Moments are taken at an equal stride, never invented between saved ones. Tokens of width 2 are
    drawn as they are, of width 1 against time, on the sphere in 3 dimensions as seen from outside,
    and others along the two directions in which they vary most. Where attention sees tokens divided
    by their length, they are drawn so.

    Args:
        trajectory: the tokens over time.
        title: of the picture; `trajectory.ending` is written below it.
        n_frames: moments to show.
        system: the flow that moved the tokens. Tells what clusters (tokens or directions), and
            gives the energy its temperature.

    Raises:
        InputError: too few frames, or no finite token.
    """
    if n_frames < 2:
        raise InputError(f"{n_frames} frames were asked for; a moving picture needs at least 2.")
    moments, notes = _moments(trajectory, n_frames)
    # A trajectory may be on a GPU, in single precision, or carry gradients.
    times, tokens, log_scale = (
        values.detach()[moments].cpu().double()
        for values in (trajectory.times, trajectory.unit_tokens, trajectory.log_scale)
    )
    geometry = system.geometry if system is not None else Geometry.FREE
    ran_away = trajectory.status is Status.DIVERGED or bool(log_scale[-1] > 0)
    labels, sizes = _clusters(tokens, geometry, ran_away=ran_away)
    shown = _shown(tokens.shape[1])
    seen = _directions(tokens) if geometry.normalises_input else tokens
    plane = plane_of(times, seen[:, shown], log_scale, labels[shown])
    if geometry.normalises_input:
        notes += ["tokens are drawn at length 1, as attention sees them"]
    log_distance, distance_notes = _log_distance(tokens, log_scale)
    energy, energy_notes = _energy(tokens, log_scale, system)
    if len(shown) < tokens.shape[1]:
        notes += [f"{len(shown)} of {tokens.shape[1]} tokens are drawn"]
    return FlowPicture(
        title=title,
        ending=trajectory.ending,
        times=times,
        plane=plane,
        token_index=shown,
        labels=labels[shown],
        cluster_sizes=sizes,
        log_distance=log_distance,
        log_norm=log_sizes(tokens, log_scale) / math.log(10),
        energy=energy,
        cosine=_cosine(tokens, geometry),
        notes=(*plane.notes, *notes, *distance_notes, *energy_notes),
    )


def _moments(trajectory: Trajectory, n_frames: int) -> tuple[Int[Tensor, " frames"], list[str]]:
    """Return the saved moments to show: finite, at an equal stride, the last one included."""
    finite = torch.isfinite(trajectory.unit_tokens).all(dim=-1).all(dim=-1)
    finite &= torch.isfinite(trajectory.log_scale)
    usable = finite.nonzero()[:, 0]
    if not len(usable) or not trajectory.unit_tokens.shape[1]:
        raise InputError(
            "no moment of this trajectory has finite tokens: there is nothing to draw."
        )
    stride = max(1, round(len(usable) / n_frames))
    moments = usable.flip(0)[::stride].flip(0)
    if moments[0] != usable[0]:
        moments = torch.cat([usable[:1], moments])
    lost = int((~finite).sum())
    return moments, [f"{lost} moments without finite tokens are left out"] if lost else []


def _shown(n_tokens: int) -> Int[Tensor, " shown"]:
    return torch.linspace(0, n_tokens - 1, min(n_tokens, MOST_DRAWN)).round().long()


def _clusters(
    tokens: Float[Tensor, "steps tokens d_model"], geometry: Geometry, *, ran_away: bool
) -> tuple[Int[Tensor, " tokens"], tuple[int, ...]]:
    """Return each token's cluster at the end, and the clusters' sizes, largest first."""
    last = tokens[-1]
    radius = CLUSTER * max((tokens[0] - tokens[0].mean(dim=0)).norm(dim=-1).max().item(), 1e-300)
    if ran_away:  # gaps count in units of the cloud at the end
        radius = CLUSTER * max(last.norm(dim=-1).max().item(), 1e-300)
    elif geometry is not Geometry.FREE:
        last = _directions(last)
        radius = CLUSTER
    found = cluster_labels(last, radius)
    counts = found.bincount()
    order = counts.argsort(descending=True, stable=True)
    sizes = [int(n) for n in counts[order] if n > 1]
    rank = torch.full_like(counts, ALONE)
    rank[order[: len(sizes)]] = torch.arange(len(sizes))
    return rank[found], tuple(sizes)


def _directions(x: Float[Tensor, "*any d_model"]) -> Float[Tensor, "*any d_model"]:
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-300)


def _cosine(
    tokens: Float[Tensor, "steps tokens d_model"], geometry: Geometry
) -> Float[Tensor, " steps"] | None:
    if geometry is Geometry.FREE or tokens.shape[1] < 2:
        return None
    return -torch.expm1(log_spreads(tokens))


def _log_distance(
    tokens: Float[Tensor, "steps tokens d_model"], log_scale: Float[Tensor, " steps"]
) -> tuple[Float[Tensor, " steps"] | None, list[str]]:
    if tokens.shape[1] < 2:
        return None, ["one token has no distance to another"]
    squares = torch.tensor([mean_squared_distance(x) for x in tokens], dtype=torch.float64)
    return squares.log10() + 2 * log_scale / math.log(10), []


def _energy(
    tokens: Float[Tensor, "steps tokens d_model"],
    log_scale: Float[Tensor, " steps"],
    system: System | None,
) -> tuple[Float[Tensor, " steps"] | None, list[str]]:
    """Return the interaction energy over exp(beta) / (2 beta), that of tokens in one point."""
    if not on_sphere(tokens, log_scale):
        return None, ["no energy: it is defined for tokens on the sphere"]
    if system is None or system.beta <= 0:
        return None, ["no energy: it needs a system with a positive beta"]
    if not _has_identity_scores(system):
        return None, []  # it is another flow's: of one head whose scores are x_i . x_j
    if tokens.shape[1] > MOST_FOR_ENERGY:
        return None, [f"no energy: it is left out beyond {MOST_FOR_ENERGY} tokens"]
    beta = system.beta
    energy = torch.tensor([interaction_energy(x, beta) for x in tokens], dtype=torch.float64)
    share = energy * 2 * beta * math.exp(-beta)
    if not torch.isfinite(share).all():
        return None, [f"no energy: exp(beta) is beyond float64 for beta = {beta:g}"]
    return share, []


def _has_identity_scores(system: System) -> bool:
    """Say whether scores are inner products of tokens, without positions or biases."""
    if system.n_heads != 1 or system.rotary is not None or system.alibi_slopes is not None:
        return False
    shifted = any(b is not None and bool(b.any()) for b in (system.b_q, system.b_k))
    score = system.w_q[0] @ system.w_k[0].T
    eye = torch.eye(system.d_model, dtype=torch.float64)
    return not shifted and not system.reinjected and torch.allclose(score, eye, atol=1e-9)
