"""What the figures of the memorization study share: guides and ticks on logarithmic axes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from orbitlens.draw.figure import GREY, Curve

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
    places = [step * 10.0**power for power in powers for step in steps]
    return [(value, f"{value:,.0f}") for value in places if low <= value <= high]
