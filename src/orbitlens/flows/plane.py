"""Tokens of any width in the plane of a picture, by their width and by whether they run away.

Enters: tokens over time. Leaves: a `Plane`: positions, what its axes mean, and guides behind them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens._types import Tokens
from orbitlens.flows.outcome import log_sizes

MOST_FOR_DIRECTIONS = 2048  # tokens of all moments from which principal directions are taken
RUNAWAY = math.log(20)  # growth of the largest token beyond which radii are drawn as logarithms
CORE = 0.1  # share of the first cloud's radius within which a logarithmic radius is still linear
Ticks = tuple[tuple[float, str], ...]  # where on an axis, and what is written there
DIGITS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, kw_only=True)
class Guide:
    """A thin line behind the tokens: a ring, the rim of a sphere, a meridian."""

    points: Float[Tensor, "points 2"]
    label: str  # written at the first point


@dataclass(frozen=True, kw_only=True)
class Plane:
    """Where tokens are in the picture, and what its axes mean."""

    positions: Float[Tensor, "steps tokens 2"]
    depth: Float[Tensor, "steps tokens"] | None  # towards the viewer; of a sphere in 3 dimensions
    axes: tuple[str, str]  # empty where coordinates mean nothing by themselves
    guides: tuple[Guide, ...]
    notes: tuple[str, ...]
    is_map: bool  # whether both axes have the same unit
    y_ticks: Ticks = ()  # where plain numbers would mislead


def on_sphere(
    tokens: Float[Tensor, "steps tokens d_model"], log_scale: Float[Tensor, " steps"]
) -> bool:
    """Say whether all tokens are on the unit sphere at all times."""
    return bool((log_scale == 0).all() and ((tokens.norm(dim=-1) - 1).abs() < 1e-6).all())


def plane_of(
    times: Float[Tensor, " steps"],
    tokens: Float[Tensor, "steps tokens d_model"],
    log_scale: Float[Tensor, " steps"],
    labels: Int[Tensor, " tokens"],
) -> Plane:
    """Return tokens in the plane, by their width and by whether they run away."""
    d = tokens.shape[-1]
    sizes = log_sizes(tokens, log_scale)
    runs_away = bool(log_scale.max() > 0 or sizes.max() - sizes[0] > RUNAWAY)
    if d == 1:
        return _against_time(times, tokens, log_scale, runs_away)
    if d == 3 and on_sphere(tokens, log_scale):
        return _globe(tokens, labels)
    flat, axes = tokens, ("x₁", "x₂")
    if d > 2:
        weights = (-sizes + log_scale).exp() if runs_away else log_scale.exp()
        flat, axes = _principal(tokens, weights)
    if runs_away:
        return _compressed(flat, log_scale)
    round_world = (_circle(1.0),) if on_sphere(tokens, log_scale) else ()
    return Plane(
        positions=flat * log_scale.exp()[:, None, None],
        depth=None,
        axes=axes,
        guides=round_world,
        notes=(),
        is_map=True,
    )


def _against_time(
    times: Float[Tensor, " steps"],
    tokens: Float[Tensor, "steps tokens 1"],
    log_scale: Float[Tensor, " steps"],
    runs_away: bool,
) -> Plane:
    """Return world lines: tokens of width 1 need only one axis, and time takes the other."""
    x = tokens * log_scale.exp()[:, None, None]
    ticks: Ticks = ()
    notes: tuple[str, ...] = ()
    if runs_away:
        x, log_core = _log_radius(tokens, log_scale)
        rings = _rings(log_core, x.abs().max().item())
        above, below = (
            [(r, power_of_ten(k)) for k, r in rings],
            [(-r, f"−{power_of_ten(k)}") for k, r in rings],
        )
        ticks = (*below[::-1], (0.0, "0"), *above)
        notes = ("tokens run away: the axis is logarithmic on either side of 0",)
    across = times.double()[:, None, None].expand_as(x)
    return Plane(
        positions=torch.cat([across, x], dim=-1),
        depth=None,
        axes=("time", "x"),
        guides=(),
        notes=notes,
        is_map=False,
        y_ticks=ticks,
    )


def _principal(
    tokens: Float[Tensor, "steps tokens d_model"], weights: Float[Tensor, " steps"]
) -> tuple[Float[Tensor, "steps tokens 2"], tuple[str, str]]:
    """Return tokens along the two directions in which weighted tokens of all moments vary most.

    The origin stays where it is: it is a special point of the flow, the mean is not.
    """
    rows = (tokens * weights[:, None, None]).flatten(0, 1)
    rows = rows[:: max(1, math.ceil(len(rows) / MOST_FOR_DIRECTIONS))]
    _, spread, directions = torch.linalg.svd(rows - rows.mean(dim=0), full_matrices=False)
    frame = torch.zeros(2, tokens.shape[-1], dtype=torch.float64)
    frame[: len(directions[:2])] = directions[:2]
    # A singular vector's sign is arbitrary: fix it, so that the same run gives the same picture.
    signs = frame.gather(1, frame.abs().argmax(dim=1, keepdim=True)).sign()
    share = spread.square() / spread.square().sum().clamp(min=1e-300)
    names = [f"principal direction {k + 1} ({p:.0%})" for k, p in enumerate(share[:2].tolist())]
    return tokens @ (frame * signs).T, (names[0], names[1] if len(names) > 1 else "")


def _log_radius(
    flat: Float[Tensor, "steps tokens axes"], log_scale: Float[Tensor, " steps"]
) -> tuple[Float[Tensor, "steps tokens axes"], float]:
    """Return points at radius log(1 + r / r0) in place of r, and log r0."""
    radius = flat.norm(dim=-1, keepdim=True)
    log_radius = radius.clamp(min=1e-300).log() + log_scale[:, None, None]
    log_core = log_radius[0].max().item() + math.log(CORE)
    new = torch.logaddexp(torch.zeros_like(radius), log_radius - log_core)
    return flat / radius.clamp(min=1e-300) * new, log_core


def _compressed(flat: Float[Tensor, "steps tokens 2"], log_scale: Float[Tensor, " steps"]) -> Plane:
    """Return a plane with logarithmic radii and rings at powers of ten."""
    positions, log_core = _log_radius(flat, log_scale)
    rings = _rings(log_core, positions.norm(dim=-1).max().item())
    angle = _emptiest_angle(positions)
    return Plane(
        positions=positions,
        depth=None,
        axes=("", ""),
        guides=tuple(_circle(r, power_of_ten(k), angle) for k, r in rings),
        notes=("tokens run away: distance from 0 is on a logarithmic scale, marked by rings",),
        is_map=True,
    )


def _rings(log_core: float, outermost: float) -> list[tuple[int, float]]:
    """Return powers of ten that a logarithmic radius passes, and where it does."""
    decades = decades_between(
        log_core / math.log(10), (log_core + outermost) / math.log(10), most=4
    )
    rings = [(k, float(np.logaddexp(0.0, k * math.log(10) - log_core))) for k in decades]
    return [(k, radius) for k, radius in rings if radius > 0.12 * outermost]


def power_of_ten(k: int) -> str:
    """Return 10 to the k as it is written.

    >>> power_of_ten(-3)
    '10⁻³'
    """
    return {0: "1", 1: "10"}.get(k, f"10{str(k).translate(DIGITS)}")


def _emptiest_angle(positions: Float[Tensor, "steps tokens 2"]) -> float:
    """Return the direction, of twelve, that is farthest from the way of any token."""
    ways = torch.atan2(positions[..., 1], positions[..., 0]).flatten()
    angles = torch.arange(12, dtype=torch.float64) * math.pi / 6 + math.pi / 2
    apart = torch.stack(
        [torch.cos(ways - angle).sort().values[-len(ways) // 8 :].mean() for angle in angles]
    )
    return float(angles[apart.argmin()])


def decades_between(low: float, high: float, *, most: int) -> list[int]:
    """Return at most `most` evenly spaced whole numbers strictly between two bounds."""
    first, last = math.floor(low) + 1, math.ceil(high) - 1
    stride = max(1, math.ceil((last - first + 1) / most))
    start = last if stride == 1 else last - last % stride
    return sorted(range(start, first - 1, -stride))


def _circle(radius: float, label: str = "", start: float = 0.0) -> Guide:
    angle = torch.linspace(0, 2 * math.pi, 121, dtype=torch.float64) + start
    return Guide(points=radius * torch.stack([angle.cos(), angle.sin()], dim=-1), label=label)


def _globe(tokens: Float[Tensor, "steps tokens 3"], labels: Int[Tensor, " tokens"]) -> Plane:
    """Return the sphere as seen from far away, from the side that shows its clusters best."""
    view = _best_view(tokens[-1], labels)
    seen = tokens @ view.T
    return Plane(
        positions=seen[..., :2],
        depth=seen[..., 2],
        axes=("", ""),
        guides=(_circle(1.0), *(arc for arc in _graticule(view) if len(arc.points))),
        notes=("the unit sphere from outside: pale tokens are on the far side",),
        is_map=True,
    )


def _best_view(last: Tokens, labels: Int[Tensor, " tokens"]) -> Float[Tensor, "3 3"]:
    """Return right, up and towards-the-viewer, so that clusters are in front and far apart."""
    groups = [last[labels == k] for k in range(min(int(labels.max()) + 1, 8))]
    centres = torch.stack([group.mean(dim=0) for group in groups]) if groups else last
    sizes = torch.tensor([len(group) for group in groups] or [1.0] * len(last)).double()
    best, best_score = torch.eye(3, dtype=torch.float64), -math.inf
    for towards in _directions_around(200):
        view = _upright(towards)
        seen = centres @ view.T
        gap = torch.nn.functional.pdist(seen[:, :2]).min().item() if len(centres) > 1 else 0.0
        in_front = (sizes / sizes.sum()) @ seen[:, 2].clamp(max=0.5)
        score = min(gap, 0.4) + 3 * in_front.item()
        if score > best_score:
            best, best_score = view, score
    return best


def _directions_around(count: int) -> Float[Tensor, "count 3"]:
    """Return points spread evenly over the sphere: the golden spiral, without the polar caps."""
    k = torch.arange(count, dtype=torch.float64) + 0.5
    z, turn = 0.8 * (1 - 2 * k / count), math.pi * (1 + math.sqrt(5)) * k
    r = (1 - z.square()).sqrt()
    return torch.stack([r * turn.cos(), r * turn.sin(), z], dim=-1)


def _upright(towards: Float[Tensor, " 3"]) -> Float[Tensor, "3 3"]:
    """Return a viewer's axes with the third coordinate pointing up."""
    right = torch.linalg.cross(torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64), towards)
    right = right / right.norm()
    return torch.stack([right, torch.linalg.cross(towards, right), towards])


def _graticule(view: Float[Tensor, "3 3"]) -> Iterator[Guide]:
    """Yield the near side of meridians and parallels 30 degrees apart."""
    turn = torch.linspace(-math.pi, math.pi, 121, dtype=torch.float64)
    for degrees in range(-60, 90, 30):
        height = torch.full_like(turn, math.sin(math.radians(degrees)))
        r = math.cos(math.radians(degrees))
        yield _near_side(torch.stack([r * turn.cos(), r * turn.sin(), height], dim=-1), view)
    for degrees in range(0, 180, 30):
        east, north = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        ring = torch.stack([east * turn.cos(), north * turn.cos(), turn.sin()], dim=-1)
        yield _near_side(ring, view)


def _near_side(ring: Float[Tensor, "points 3"], view: Float[Tensor, "3 3"]) -> Guide:
    """Return the visible arc of a closed ring."""
    seen = ring[:-1] @ view.T
    hidden = (seen[:, 2] < 0).long()
    # Start where the arc comes into view, so that it is one line.
    start = int((hidden.roll(1) - hidden).argmax())
    seen = seen.roll(-start, 0)
    return Guide(points=seen[seen[:, 2] >= 0, :2], label="")
