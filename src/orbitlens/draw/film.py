"""Films as data: points that move over a panel, and curves over time beside them.

Enters: positions moment by moment. Leaves: a `Film`, which `film_html` plays on a page and
`film_image` writes as a still or moving image.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orbitlens.draw.figure import Curve, Panel

FAR_SIZE = 0.65  # of a point behind a globe
FEW = 150  # points that are drawn larger
FRAME_MS = 80
HOLD_FRAMES = 20  # the last frame stays this much longer before a loop starts again
TRAIL = 16  # frames that a trail goes back, fewer where there are many points
MOST_TRAIL_POINTS = 3000


@dataclass(frozen=True, kw_only=True)
class Film:
    """What a moving picture shows, frame by frame."""

    title: str
    subtitle: str
    legend: tuple[tuple[str, str], ...]  # colour (or none) and words
    notes: str
    times: Float[np.ndarray, " frames"]
    positions: Float[np.ndarray, "frames points 2"]
    depth: Float[np.ndarray, "frames points"] | None  # towards the viewer; of a globe
    colours: tuple[str, ...]  # of points
    symbols: tuple[str, ...]  # names of symbols of `Points`
    texts: tuple[str, ...]  # shown when a point is pointed at
    plane: Panel  # behind the points: axes with both ranges, and guides
    sides: tuple[Panel, ...]  # the first layer of each is a curve over `times`

    def __post_init__(self) -> None:
        """Hold on to what the drawings rely on."""
        assert self.plane.x_range is not None and self.plane.y_range is not None
        assert all(isinstance(side.layers[0], Curve) for side in self.sides)

    @property
    def trail_length(self) -> int:
        """How many frames a trail goes back."""
        return max(2, min(TRAIL, MOST_TRAIL_POINTS // len(self.colours)))

    @property
    def history_opacity(self) -> float:
        """The opacity of points' whole ways: the longer they are in all, the paler."""
        assert self.plane.x_range is not None and self.plane.y_range is not None
        (low, high), (bottom, top) = self.plane.x_range, self.plane.y_range
        steps = np.diff(self.positions, axis=0) / [high - low, top - bottom]
        widths = float(np.linalg.norm(steps, axis=-1).sum())
        return min(0.5, max(0.1, 0.5 * math.sqrt(10 / max(widths, 1e-9))))

    def curve_of(self, side: Panel) -> Curve:
        """Return the curve of a panel beside the picture."""
        curve = side.layers[0]
        assert isinstance(curve, Curve)
        return curve


def nearness(depth: Float[np.ndarray, "*any"]) -> Float[np.ndarray, "*any"]:
    """Return 0 behind a globe, 1 in front of it, and between them at its rim."""
    return np.clip((depth + 0.15) / 0.3, 0, 1)


def both_sides(film: Film) -> Iterator[tuple[NDArray[Any], float]]:
    """Yield all positions, gone where the other side is drawn, and how opaque that side is."""
    if film.depth is None:
        yield film.positions, 1.0
        return
    far = (film.depth < 0)[..., None]
    yield np.where(far, film.positions, math.nan), 0.35
    yield np.where(far, math.nan, film.positions), 1.0
