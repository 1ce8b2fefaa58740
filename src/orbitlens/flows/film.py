"""A flow's picture in numbers -> a film: colours of clusters, curves beside it, words.

Enters: a `FlowPicture`. Leaves: a `Film`, which `orbitlens.draw` plays on a page or writes as an
image. Colours are those of Okabe and Ito (2008), which colour-blind readers tell apart.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.draw.figure import GREY, PALETTE, Curve, Panel
from orbitlens.draw.film import Film
from orbitlens.flows.picture import ALONE, FlowPicture
from orbitlens.flows.plane import Guide, Plane, Ticks, decades_between, power_of_ten

CURVE = "#7C8593"
SYMBOLS = ("circle", "diamond", "square", "triangle-up")  # a new one a round of colours
MOST_LISTED = 6  # clusters named in the legend


def flow_film(picture: FlowPicture) -> Film:
    """Return a picture as a film."""
    labels = picture.labels.tolist()
    return Film(
        title=picture.title,
        subtitle=_as_sentence(picture.ending),
        legend=tuple(legend_entries(picture)),
        notes=_as_sentence("; ".join(picture.notes)),
        times=picture.times.numpy(),
        positions=picture.plane.positions.numpy(),
        depth=None if picture.plane.depth is None else picture.plane.depth.numpy(),
        colours=tuple(token_colours(picture)),
        symbols=tuple(_cluster_symbol(label) for label in labels),
        texts=tuple(_token_names(picture)),
        plane=plane_panel(picture.plane),
        sides=tuple(side_panels(picture)),
    )


def _as_sentence(words: str) -> str:
    """Return words with a capital and a full stop."""
    return f"{words[:1].upper()}{words[1:]}." if words else ""


# --- tokens ------------------------------------------------------------------------------------


def token_colours(picture: FlowPicture) -> list[str]:
    """Return the colour of each token drawn."""
    alone = GREY if picture.cluster_sizes else PALETTE[0]
    return [alone if k == ALONE else _cluster_colour(k) for k in picture.labels.tolist()]


def _cluster_colour(label: int) -> str:
    return PALETTE[label % len(PALETTE)]


def _cluster_symbol(label: int) -> str:
    return SYMBOLS[label // len(PALETTE) % len(SYMBOLS)] if label != ALONE else SYMBOLS[0]


def _token_names(picture: FlowPicture) -> list[str]:
    """Return what is shown when a reader points at a token."""
    pairs = zip(picture.token_index.tolist(), picture.labels.tolist(), strict=True)
    sizes = picture.cluster_sizes
    return [
        f"token {i}\n" + ("ends alone" if k == ALONE else f"cluster {k + 1}, of {sizes[k]} tokens")
        for i, k in pairs
    ]


def legend_entries(picture: FlowPicture) -> list[tuple[str, str]]:
    """Return colour and words of each entry of the legend."""
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


# --- panels ------------------------------------------------------------------------------------


def plane_panel(plane: Plane) -> Panel:
    """Return the axes and guides behind the tokens."""
    x_range, y_range = plane_limits(plane)
    return Panel(
        layers=[_guide_lines(plane.guides)] if plane.guides else [],
        x_label=plane.axes[0],
        y_label=plane.axes[1],
        x_range=x_range,
        y_range=y_range,
        y_ticks=plane.y_ticks,
        square=plane.is_map,
        bare=not any(plane.axes),
        notes=[(*guide.points[0].tolist(), guide.label) for guide in plane.guides if guide.label],
    )


def _guide_lines(guides: tuple[Guide, ...]) -> Curve:
    """Return all guides as one line with gaps."""
    gap = torch.full((1, 2), math.nan, dtype=torch.float64)
    points = torch.cat([part for guide in guides for part in (guide.points, gap)])
    x, y = points.T.tolist()
    return Curve(x=x, y=y, colour=GREY, width=1.0, opacity=0.3, silent=True)


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


def side_panels(picture: FlowPicture) -> list[Panel]:
    """Return the cosine or the distance; the energy where there is one, or the largest length."""
    times, panels = picture.times.tolist(), []
    if picture.cosine is not None:
        title = "mean cosine of pairs (1: one direction)"
        panels.append(_plain_panel(title, times, picture.cosine))
    elif picture.log_distance is not None:
        title = "mean squared distance of pairs"
        panels.append(_log_panel(title, times, picture.log_distance))
    if picture.energy is not None:
        title = "energy (1: all tokens in one point)"
        panels.append(_plain_panel(title, times, picture.energy))
    elif picture.cosine is None or not _is_constant(picture.log_norm):
        panels.append(_log_panel("length of the largest token", times, picture.log_norm))
    return panels


def _is_constant(values: Float[Tensor, " steps"]) -> bool:
    return bool((values - values[0]).abs().max() < 1e-6)


def _side(title: str, x: list[float], y: Float[Tensor, " steps"], limits: tuple[float, float],
          ticks: Ticks) -> Panel:  # fmt: skip
    values = [v if math.isfinite(v) else None for v in y.tolist()]
    line = Curve(x=x, y=values, colour=CURVE, width=2.0, silent=True)
    return Panel(layers=[line], title=title, x_label="time", y_range=limits, y_ticks=ticks)


def _plain_panel(title: str, times: list[float], values: Float[Tensor, " steps"]) -> Panel:
    """Return a chart on the values' own range: their steps may be small against 1."""
    low, high = _padded(values, least=0.01)
    ticks = tuple((v, f"{v:.6g}") for v in _round_numbers(low, high))
    return _side(title, times, values, (low, high), ticks)


def _log_panel(title: str, times: list[float], exponents: Float[Tensor, " steps"]) -> Panel:
    """Return a chart of 10**exponents on a logarithmic scale; zeros become gaps."""
    limits = _padded(exponents[torch.isfinite(exponents)], least=0.02)
    return _side(f"{title} (log)", times, exponents, limits, _log_ticks(*limits))


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
