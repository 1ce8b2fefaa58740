"""Pieces that the figures of the memorization study share: guides, ticks, marks with their mean.

Enters: numbers. Leaves: layers and ticks.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from orbitlens.draw.figure import GREY, Curve, Layer, Points

Rows = Sequence[Mapping[str, Any]]


def guide(x: Sequence[float], first: float, power: float, label: str) -> Curve:
    """Return a power law through the first point."""
    return Curve(
        x=x,
        y=[first * (value / x[0]) ** power for value in x],
        colour=GREY,
        dashed=True,
        width=1.2,
        label=label,
    )


def ticks(values: Sequence[float]) -> list[tuple[float, str]]:
    """Return a tick at each value."""
    return [(value, f"{value:,.0f}") for value in values]


def decades(*lines: Sequence[float]) -> list[tuple[float, str]]:
    """Return round numbers within reach of the values: 1, 2 and 5 times powers of ten."""
    values = [value for line in lines for value in line]
    low, high = min(values) / 1.3, max(values) * 1.3
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 200 else (1,)
    found = [step * 10.0**power for power in powers for step in steps]
    return [(value, f"{value:,.0f}") for value in found if low <= value <= high]


def marks(rows: Rows, x: str, colour: str, label: str) -> list[Layer]:
    """Return a mark a search, and a line through geometric means."""
    layers: list[Layer] = []
    for reached, symbol in ((True, "circle"), (False, "triangle-up")):
        chosen = [row for row in rows if row["reached"] is reached]
        if chosen:
            layers.append(
                Points(
                    x=[float(row[x]) for row in chosen],
                    y=[float(row["parameters"]) for row in chosen],
                    colour=colour,
                    symbol=symbol,
                    size=5.5,
                )
            )
    places = sorted({float(row[x]) for row in rows})
    means = []
    for place in places:
        logs = [math.log(row["parameters"]) for row in rows if row[x] == place]
        means.append(math.exp(sum(logs) / len(logs)))
    return [Curve(x=places, y=means, colour=colour, label=label), *layers]
