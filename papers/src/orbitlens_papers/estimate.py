"""Numbers with their intervals: what verdicts are made from.

Enters: one number a seed, or counts. Leaves: an `Estimate` with a 95 % interval and how it came.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from orbitlens.errors import InputError

LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number, its 95 % interval, and what it was made from."""

    value: float
    low: float  # -inf: the interval is not bounded, as with one seed
    high: float
    n: int  # seeds, systems or pairs behind it
    how: str

    def __post_init__(self) -> None:
        """Refuse what is no interval: NaN never decides anything silently."""
        ordered = self.low <= self.value <= self.high
        if not (ordered and math.isfinite(self.value)):
            raise InputError(
                f"an estimate of {self.value} with the interval {self.low} to {self.high}; "
                "expected a finite number inside it."
            )

    def to_json(self) -> dict[str, Any]:
        """Return plain data; an interval without a bound has None for it."""
        ends = [end if math.isfinite(end) else None for end in (self.low, self.high)]
        return {
            "value": self.value, "low": ends[0], "high": ends[1], "n": self.n, "how": self.how
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: object) -> "Estimate":
        """Return what `to_json` wrote.

        Raises:
            InputError: something is missing or of the wrong kind.
        """
        from orbitlens.results.codec import decode  # and with it torch, which a list needs not

        stored: _Stored = decode(_Stored, data, "estimate")
        return cls(
            value=stored.value,
            low=-math.inf if stored.low is None else stored.low,
            high=math.inf if stored.high is None else stored.high,
            n=stored.n,
            how=stored.how,
        )


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """An estimate as files have it: an end without a bound is None."""

    value: float
    low: float | None
    high: float | None
    n: int
    how: str


def mean(values: Sequence[float], *, of: str = "seeds") -> Estimate:
    """Return the mean with Student's interval; with one value the interval has no bounds.

    >>> mean([1.0, 2.0, 3.0]).value
    2.0
    """
    n = _some(values)
    middle = math.fsum(values) / n
    if n == 1:
        return Estimate(
            value=middle, low=-math.inf, high=math.inf, n=1, how=f"one of {of}: no interval"
        )
    from scipy.stats import t

    spread = math.sqrt(math.fsum((v - middle) ** 2 for v in values) / (n - 1))
    half = float(t.ppf((1 + LEVEL) / 2, n - 1)) * spread / math.sqrt(n)
    return Estimate(
        value=middle, low=middle - half, high=middle + half, n=n, how=f"mean over {n} {of}"
    )


def difference(first: Sequence[float], second: Sequence[float], *, of: str = "seeds") -> Estimate:
    """Return the mean of first - second, paired: both share seeds, data and order."""
    if len(first) != len(second):
        raise InputError(f"{len(first)} numbers cannot be paired with {len(second)}.")
    gap = mean([a - b for a, b in zip(first, second, strict=True)], of=of)
    return replace(gap, how=f"paired, {gap.how}")


def share(count: int, n: int, *, of: str) -> Estimate:
    """Return a share with Wilson's interval.

    >>> round(share(100, 100, of="systems").low, 3)
    0.963
    """
    if not 0 <= count <= n or n < 1:
        raise InputError(f"{count} of {n} is not a share; expected some of at least one.")
    from scipy.stats import binomtest

    p = count / n
    ends = binomtest(count, n).proportion_ci(LEVEL, method="wilson")
    # Rounding may leave an end of the interval a hair inside the share itself.
    low, high = min(p, float(ends.low)), max(p, float(ends.high))
    return Estimate(value=p, low=low, high=high, n=n, how=f"{count} of {n} {of}")


def largest(values: Sequence[float], *, of: str) -> Estimate:
    """Return the largest value, as a bound that every case must meet: an exact claim."""
    n = _some(values)
    top = max(values)
    return Estimate(value=top, low=top, high=top, n=n, how=f"largest of {n} {of}")


def smallest(values: Sequence[float], *, of: str) -> Estimate:
    """Return the smallest value, as a bound that every case must meet."""
    n = _some(values)
    bottom = min(values)
    return Estimate(value=bottom, low=bottom, high=bottom, n=n, how=f"smallest of {n} {of}")


def median(lows: Sequence[float], highs: Sequence[float], *, of: str = "seeds") -> Estimate:
    """Return the median of numbers that are known to lie between two ends each, as censored ones.

    The interval is that of order statistics, which asks nothing of a distribution: its lower end is
    made of lower ends alone and its upper end of upper ends, so that both bound what the exact
    numbers would have given. The value is the median of the lower ends. With fewer than six there
    is no interval of 95 %.

    >>> found = median([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 2.0, 3.0, 4.0, 5.0, math.inf])
    >>> found.value, found.low, found.high
    (3.5, 1.0, inf)
    """
    n = _some(lows)
    if len(highs) != n or any(a > b for a, b in zip(lows, highs, strict=True)):
        raise InputError(f"{n} lower and {len(highs)} upper ends; expected pairs in order.")
    from scipy.stats import binom

    least, most = sorted(lows), sorted(highs)
    place = int(binom.ppf((1 - LEVEL) / 2, n, 0.5))  # fewer than 2.5 % have so few on one side
    value = (least[(n - 1) // 2] + least[n // 2]) / 2
    if not place:
        return Estimate(
            value=value, low=-math.inf, high=math.inf, n=n, how=f"median of {n} {of}: no interval"
        )
    return Estimate(
        value=value, low=least[place - 1], high=most[n - place], n=n, how=f"median over {n} {of}"
    )


def correlation(first: Sequence[float], second: Sequence[float], *, of: str) -> Estimate:
    """Return Pearson's r with Fisher's interval."""
    n = _some(first)
    if n != len(second) or n < 4:
        raise InputError(f"a correlation needs at least 4 pairs; there are {n} and {len(second)}.")
    from scipy.stats import pearsonr

    fit = pearsonr(first, second)
    r, ends = float(fit.statistic), fit.confidence_interval(LEVEL)
    low, high = min(r, float(ends.low)), max(r, float(ends.high))
    return Estimate(value=r, low=low, high=high, n=n, how=f"Pearson's r over {n} {of}")


def _some(values: Sequence[float]) -> int:
    if not len(values):
        raise InputError("there are no values to estimate from; expected at least one.")
    return len(values)
