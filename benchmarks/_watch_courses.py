"""Detectors: from a logged run to numbers by step, larger for worse.

Enters: a run as `watch_detectors.py run` wrote it. Leaves: a `Course` a detector. A detector sees
a step only after it, and nothing later. Three kinds: what is known before a run (its peak rate),
what others watch (loss, gradient, largest logit, spectral norm, alignment of signs), and readings
of `Watch`.

    NAME            the reading itself; "-NAME" where little is worse
    NAME held 4     its least value over the last 4 readings: a passing peak does not count
    NAME rise       how far it is above the least value it ever had
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from _watch_judging import Course, smoothed

RECENT = 20  # steps that a spike is measured against
FROM = 40  # step from which the loss itself counts: every run begins with a large one
BASELINES = (
    "peak rate",
    "loss",
    "loss rise",
    "loss spike",
    "gradient",
    "gradient spike",
    "-gradient",
    "max_logit",
    "spectral_norm",
    "sign_alignment",
    "sign_alignment held 4",
    "sign_alignment_max held 4",
)
SMALL_IS_WORSE = (
    "entropy_floor",
    "stable_rank_qk",
    "stable_rank_ov",
    "log_spread",
    "effective_rank",
    "direction_rank",
    "block_update_least",
    "written_least",
)
SLOW = ("max_logit", "spectral_norm", "sign_alignment", "sign_alignment_max")
Values = Sequence[float]


def courses(run: Mapping[str, Any]) -> dict[str, Course]:
    """Return every detector's course in a run."""
    return courses_of_steps(run) | _of_readings(run)


def finite(values: Sequence[float | None]) -> list[float]:
    """Return numbers, infinite where JSON had none."""
    return [math.inf if v is None else v for v in values]


def courses_of_steps(run: Mapping[str, Any]) -> dict[str, Course]:
    """Return the courses of loss and gradient, which every training loop has."""
    losses, gradients = finite(run["losses"]), finite(run["gradients"])
    every = range(1, len(losses) + 1)
    level = smoothed(losses)
    found = {
        "peak rate": Course(steps=[0], values=[run["chosen"]["lr"]]),
        "loss": Course(steps=every[FROM:], values=level[FROM:]),
        "loss level": Course(steps=every, values=level),
        "loss rise": Course(steps=every, values=_rise(level)),
        "loss spike": Course(steps=every, values=spikes(losses)),
    }
    steps = range(1, len(gradients) + 1)
    found["gradient"] = Course(steps=steps, values=gradients)
    found["gradient level"] = Course(steps=steps, values=smoothed(gradients))
    found["gradient spike"] = Course(steps=steps, values=ratios(gradients))
    found["-gradient"] = Course(steps=steps, values=[-g for g in _most(gradients, RECENT)])
    return found


def _of_readings(run: Mapping[str, Any]) -> dict[str, Course]:
    found = {}
    for name, stored in run["readings"].items():
        values, label = finite(stored), name
        if name in SMALL_IS_WORSE:
            values, label = [v if v == math.inf else -v for v in values], f"-{name}"
        for suffix, change in CHANGES.items():
            found[f"{label}{suffix}"] = Course(steps=run["at"], values=change(values))
    return found


def _rise(values: Values) -> list[float]:
    """Return how far each value is above the least one so far."""
    least = math.inf
    found = []
    for value in values:
        least = min(least, value)
        found.append(math.inf if value == math.inf else value - least)
    return found


def held(values: Values, n: int) -> list[float]:
    """Return the least of the last `n` values; nothing, -inf, before there are so many.

    >>> held([1.0, 5.0, 2.0, 3.0], n=2)
    [-inf, 1.0, 2.0, 2.0]
    """
    return [
        -math.inf if k + 1 < n and values[k] < math.inf else min(values[max(0, k + 1 - n) : k + 1])
        for k in range(len(values))
    ]


def _most(values: Values, n: int) -> list[float]:
    """Return the largest of the last `n` values; infinite before there are so many."""
    return [math.inf if k + 1 < n else max(values[k + 1 - n : k + 1]) for k in range(len(values))]


def spikes(losses: Values) -> list[float]:
    """Return how many standard deviations each loss is above the mean of the `RECENT` before it."""
    found = [0.0] * min(len(losses), RECENT)
    for t in range(RECENT, len(losses)):
        before = losses[t - RECENT : t]
        spread = statistics.stdev(before)
        found.append((losses[t] - statistics.fmean(before)) / max(spread, 1e-6))
    return found


def ratios(gradients: Values) -> list[float]:
    """Return each norm over the median of the `RECENT` before it."""
    found = [0.0] * min(len(gradients), RECENT)
    for t in range(RECENT, len(gradients)):
        found.append(gradients[t] / max(statistics.median(gradients[t - RECENT : t]), 1e-12))
    return found


CHANGES: dict[str, Callable[[Values], list[float]]] = {
    "": list,
    " held 2": partial(held, n=2),
    " held 4": partial(held, n=4),
    " rise": _rise,
}
