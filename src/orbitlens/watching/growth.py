"""How fast readings grow, and when they will cross a threshold if they go on.

Enters: numbers at steps. Leaves: rates, d ln(x) / d step, fitted to the newest readings by least
squares; and steps until a threshold.
"""

import math
from collections import deque
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

Series = Float[Tensor, " any"]
READINGS = 8  # newest ones that a rate is fitted to
GROWING = (
    *(f"norm_{role}" for role in "qkvo"),
    *(f"top_{role}" for role in "qkvo"),
    "stable_rank_qk",
    "stable_rank_ov",
    "score_bound",
    "score_spread",
    "freezing",
)


class GrowthSeries:
    """The newest readings, and the rates at which they grow."""

    def __init__(self) -> None:
        """Start from nothing."""
        self._kept: deque[tuple[int, Mapping[str, Series]]] = deque(maxlen=READINGS)

    def add(self, step: int, numbers: Mapping[str, Series]) -> None:
        """Add a reading; one of the same or an earlier step than the last begins anew."""
        if self._kept and step <= self._kept[-1][0]:
            self._kept.clear()
        self._kept.append((step, numbers))

    def rates(self) -> dict[str, Series]:
        """Return d ln(x) / d step of each number in `GROWING`; NaN before there are two."""
        return {name: self._rate(name) for name in GROWING}

    def _rate(self, name: str) -> Series:
        values = torch.stack([numbers[name] for _, numbers in self._kept])
        if len(self._kept) < 2:
            return torch.full_like(values[0], math.nan)
        steps = torch.tensor([step for step, _ in self._kept], dtype=torch.float64)
        time = steps - steps.mean()
        logs = torch.where(values > 0, values, math.nan).log()
        return (time[:, None] * logs).sum(dim=0) / time.square().sum()


def steps_until(value: float, rate: float, threshold: float) -> float:
    """Return in how many steps a growing number reaches a threshold; infinite if it never does.

    >>> round(steps_until(1.0, 0.01, 2.0), 1)
    69.3
    >>> steps_until(3.0, 0.01, 2.0), steps_until(1.0, -0.01, 2.0)
    (0.0, inf)
    """
    if value >= threshold:
        return 0.0
    if not (value > 0 and rate > 0):  # NaN included
        return math.inf
    return math.log(threshold / value) / rate
