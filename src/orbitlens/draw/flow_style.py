"""What the page and the images share: colours, side charts, limits, trails.

Colours are those of Okabe and Ito (2008), which colour-blind readers tell apart.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from orbitlens.draw.flow_picture import (
    ALONE,
    FlowPicture,
    Plane,
    Ticks,
    decades_between,
    power_of_ten,
)

FAR_SIZE = 0.65  # of a token behind a globe


OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


GREY = "#8A8F98"  # of tokens that ended alone where others did not


INK, MUTED, GRID, PAPER = "#22262E", "#636A75", "#E3E6EA", "#FFFFFF"


CURVE = "#7C8593"


FEW = 150  # tokens that are drawn larger


SYMBOLS = (("circle", "o"), ("diamond", "D"), ("square", "s"), ("triangle-up", "^"))


FRAME_MS = 80


HOLD_FRAMES = 20  # the last frame stays this much longer before a loop starts again


TRAIL = 16  # frames that a trail goes back, fewer where there are many tokens


MOST_TRAIL_POINTS = 3000


MOST_HISTORY_POINTS = 8_000  # beyond, a page draws trails without the whole way behind them


MOST_LISTED = 6  # clusters named in the legend


@dataclass(frozen=True, kw_only=True)
class SideChart:
    """One curve over time beside the picture."""

    title: str
    values: Float[Tensor, " steps"]
    limits: tuple[float, float]
    ticks: Ticks


def side_charts(picture: FlowPicture) -> list[SideChart]:
    """Return the distance, and the energy where there is one or else the largest length."""
    charts = []
    if picture.log_distance is not None:
        charts.append(_log_chart("mean squared distance of pairs", picture.log_distance))
    if picture.energy is not None:
        charts.append(_energy_chart(picture.energy))
    else:
        charts.append(_log_chart("length of the largest token", picture.log_norm))
    return charts


def _energy_chart(energy: Float[Tensor, " steps"]) -> SideChart:
    """Return the energy on its own range: its steps may be small against a single point's."""
    low, high = _padded(energy, least=0.01)
    ticks = tuple((v, f"{v:.6g}") for v in _round_numbers(low, high))
    title = "energy (1: all tokens in one point)"
    return SideChart(title=title, values=energy, limits=(low, high), ticks=ticks)


def _log_chart(title: str, exponents: Float[Tensor, " steps"]) -> SideChart:
    """Return a chart of 10**exponents on a logarithmic scale; zeros become gaps."""
    limits = _padded(exponents[torch.isfinite(exponents)], least=0.02)
    title, ticks = f"{title} (log)", _log_ticks(*limits)
    return SideChart(title=title, values=exponents, limits=limits, ticks=ticks)


def _padded(values: Float[Tensor, " any"], *, least: float) -> tuple[float, float]:
    """Return the range of values with some room on both sides."""
    low, high = (values.min().item(), values.max().item()) if len(values) else (0.0, 0.0)
    pad = max(0.06 * (high - low), least)
    return low - pad, high + pad


def _log_ticks(low: float, high: float) -> Ticks:
    """Return ticks between two exponents of ten: powers where there are several, else numbers."""
    if high - low > 2.5:
        return tuple((float(k), power_of_ten(k)) for k in decades_between(low, high, most=5))
    numbers = [f * 10.0**k for k in range(math.floor(low), math.ceil(high)) for f in (1, 2, 5)]
    if high - low < 0.7:
        numbers = _round_numbers(10**low, 10**high)
    ticks = [(math.log10(v), f"{v:.6g}") for v in numbers if low <= math.log10(v) <= high]
    return tuple(ticks if len(ticks) <= 5 else ticks[::2])


def _round_numbers(low: float, high: float) -> list[float]:
    """Return the multiples, between two bounds, of a step of 1, 2 or 5 that gives up to five.

    >>> _round_numbers(4.5, 10.5)
    [6.0, 8.0, 10.0]
    """
    size = 10.0 ** math.floor(math.log10(high - low))
    step = next(f * size for f in (0.2, 0.5, 1, 2, 5) if (high - low) / (f * size) < 5)
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def token_colours(picture: FlowPicture) -> list[str]:
    """Return the colour of each token drawn."""
    alone = GREY if picture.cluster_sizes else OKABE_ITO[0]
    return [alone if k == ALONE else _cluster_colour(k) for k in picture.labels.tolist()]


def _cluster_colour(label: int) -> str:
    return OKABE_ITO[label % len(OKABE_ITO)]


def cluster_symbol(label: int) -> tuple[str, str]:
    """Return plotly's and matplotlib's name of a cluster's marker: a new one a round of colours."""
    return SYMBOLS[label // len(OKABE_ITO) % len(SYMBOLS)] if label != ALONE else SYMBOLS[0]


def legend_entries(picture: FlowPicture) -> list[tuple[str, str]]:
    """Return colour and words of each line of the legend."""
    sizes = picture.cluster_sizes
    if not sizes:
        return []
    lines = [("", "clusters at the end:")]
    lines += [(_cluster_colour(k), f"{n} tokens") for k, n in enumerate(sizes[:MOST_LISTED])]
    if len(sizes) > MOST_LISTED:
        lines.append(("", f"and {len(sizes) - MOST_LISTED} more clusters"))
    if (picture.labels == ALONE).any():
        lines.append((GREY, "alone"))
    return lines


def plane_limits(plane: Plane) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the ranges of both axes; a map is square."""
    points = torch.cat([plane.positions.reshape(-1, 2), *(g.points for g in plane.guides)])
    low, high = points.amin(dim=0), points.amax(dim=0)
    half = (high - low) / 2
    if plane.is_map:
        half = half.max().expand(2)
    half = torch.where(half > 0, half, 1.0)
    middle = (low + high) / 2
    (left, bottom), (right, top) = (middle - 1.06 * half).tolist(), (middle + 1.06 * half).tolist()
    return (left, right), (bottom, top)


def nearness(depth: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """Return 0 behind a globe, 1 in front of it, and between them at its rim."""
    return ((depth + 0.15) / 0.3).clamp(0, 1)


def trail_length(picture: FlowPicture) -> int:
    """Return how many frames a trail goes back."""
    return max(2, min(TRAIL, MOST_TRAIL_POINTS // len(picture.labels)))


def history_opacity(picture: FlowPicture) -> float:
    """Return the opacity of tokens' whole ways: the longer they are in all, the paler."""
    (low, high), (bottom, top) = plane_limits(picture.plane)
    steps = picture.plane.positions.diff(dim=0) / torch.tensor([high - low, top - bottom])
    widths = steps.norm(dim=-1).sum().item()
    return min(0.5, max(0.1, 0.5 * math.sqrt(10 / max(widths, 1e-9))))


def plane_sides(plane: Plane) -> Iterator[tuple[NDArray[Any], float]]:
    """Yield all positions, gone where the other side is drawn, and how opaque that side is."""
    if plane.depth is None:
        yield plane.positions.numpy(), 1.0
        return
    far = (plane.depth < 0)[..., None]
    yield plane.positions.masked_fill(~far, math.nan).numpy(), 0.35
    yield plane.positions.masked_fill(far, math.nan).numpy(), 1.0


def as_sentence(words: str) -> str:
    """Return words with a capital and a full stop."""
    return f"{words[:1].upper()}{words[1:]}." if words else ""
