"""A graph over tokens as curves and points of a panel: tokens on a circle, marks at the ends.

Enters: edges with marks as plain data. Leaves: layers. An arrowhead says "no cause of the other",
a ring "either", and a bare end "a cause".
"""

import math
from collections.abc import Sequence

from orbitlens.draw.figure import INK, Curve

Place = tuple[float, float]
NODE, HEAD, RING = 0.13, 0.085, 0.032  # radius kept free around a token; sizes of marks


def on_circle(n_tokens: int) -> list[Place]:
    """Return places on the unit circle, from the top and clockwise."""
    angles = [math.pi / 2 - 2 * math.pi * k / n_tokens for k in range(n_tokens)]
    return [(math.cos(angle), math.sin(angle)) for angle in angles]


def edge_curves(start: Place, end: Place, marks: tuple[str, str]) -> list[Curve]:
    """Return the line of an edge and its marks."""
    length = math.dist(start, end)
    along = ((end[0] - start[0]) / length, (end[1] - start[1]) / length)
    near = (start[0] + NODE * along[0], start[1] + NODE * along[1])
    far = (end[0] - NODE * along[0], end[1] - NODE * along[1])
    curves = [_line([near, far])]
    for tip, mark, towards in ((near, marks[0], (-along[0], -along[1])), (far, marks[1], along)):
        if mark == ">":
            curves.append(_head(tip, towards))
        elif mark == "o":
            curves.append(_ring(tip))
    return curves


def _line(places: Sequence[Place]) -> Curve:
    return Curve(x=[p[0] for p in places], y=[p[1] for p in places], colour=INK, width=1.2)


def _head(tip: Place, towards: Place) -> Curve:
    """Return two short lines that meet at the tip."""
    ends = []
    for turn in (math.radians(155), math.radians(-155)):
        x = towards[0] * math.cos(turn) - towards[1] * math.sin(turn)
        y = towards[0] * math.sin(turn) + towards[1] * math.cos(turn)
        ends.append((tip[0] + HEAD * x, tip[1] + HEAD * y))
    return _line([ends[0], tip, ends[1]])


def _ring(tip: Place) -> Curve:
    steps = [2 * math.pi * k / 16 for k in range(17)]
    return _line([(tip[0] + RING * math.cos(s), tip[1] + RING * math.sin(s)) for s in steps])
