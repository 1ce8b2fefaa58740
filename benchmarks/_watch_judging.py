"""What counts as failed, when it began, and how well a detector told it beforehand.

Enters: logged runs. Leaves: outcomes, scores, thresholds and times of warning. All of this was
written down before any run was judged by it.

A run **failed** if a loss was not finite, or if its mean loss over the last `LAST` steps is not
`MARGIN` nats below that of a unigram model on the same batches. With s(t) the mean of the last
`WINDOW` differences between the two and m its minimum, a failed run **broke** if it ended more
than `LEVEL` nats above m: it had learned, and lost it. Its onset is the step after the last one
with s ≤ m + `LEVEL`. Otherwise it **stalled**: it never learned more, and its onset is the first
step with s ≤ m + `LEVEL`.

A detector is a number by step, larger for worse. It warns at the first step at which it exceeds
its threshold; a value that is not finite exceeds all. A false alarm is a warning at any step of a
run that did not fail. **AUROC in time**: the largest value up to the onset in failed runs against
the largest value ever in the others, which is hard on detectors, as the others are watched for
longer.
"""

import bisect
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WINDOW = 10  # steps that s(t) is a mean of
LAST = 20  # steps that the end of a run is a mean of
MARGIN = 0.05  # nats
LEVEL = 0.1  # nats
FALSE_ALARMS = 0.05
DRAWS = 1000  # of a bootstrap


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended."""

    kind: str  # "well", "broke" or "stalled"
    onset: int | None  # step; None where it went well

    @property
    def failed(self) -> bool:
        """Whether the run went wrong."""
        return self.onset is not None


def smoothed(losses: Sequence[float]) -> list[float]:
    """Return the mean of the last `WINDOW` losses, of fewer in the beginning."""
    return [statistics.fmean(losses[max(0, t + 1 - WINDOW) : t + 1]) for t in range(len(losses))]


def outcome(losses: Sequence[float | None], unigram: Sequence[float]) -> Outcome:
    """Return how a run ended, from its losses and those of a unigram model on the same batches.

    None is a loss that is not finite. What both share, easy and hard batches, is taken away.
    """
    pairs = zip(losses, unigram, strict=True)
    finite = [loss - known for loss, known in pairs if loss is not None]
    exploded = len(finite) < len(losses)
    if not exploded and statistics.fmean(finite[-LAST:]) < -MARGIN:
        return Outcome(kind="well", onset=None)
    if not finite:
        return Outcome(kind="broke", onset=0)
    course = smoothed(finite)
    near = [t for t, s in enumerate(course) if s <= min(course) + LEVEL]
    if exploded or course[-1] > min(course) + LEVEL:
        return Outcome(kind="broke", onset=near[-1] + 1)
    return Outcome(kind="stalled", onset=near[0])


@dataclass(frozen=True, kw_only=True)
class Course:
    """A detector's values in one run, by steps taken."""

    steps: Sequence[int]
    values: Sequence[float]  # infinite where a reading was not finite

    def largest(self, until: int | None = None) -> float:
        """Return the largest value, up to a step if one is given."""
        end = len(self.steps) if until is None else bisect.bisect_right(self.steps, until)
        return max(self.values[:end], default=-math.inf)

    def first_above(self, threshold: float) -> int | None:
        """Return the step of the first warning."""
        pairs = zip(self.steps, self.values, strict=True)
        return next((step for step, value in pairs if value > threshold), None)


def auroc(failed: Sequence[float], well: Sequence[float]) -> float:
    """Return the chance that a failed run scores above one that went well; ties count half."""
    if not failed or not well:
        return math.nan
    ordered = sorted(well)
    wins = sum(
        (bisect.bisect_left(ordered, x) + bisect.bisect_right(ordered, x)) / 2 for x in failed
    )
    return wins / (len(failed) * len(well))


def threshold_at(well: Sequence[float], share: float = FALSE_ALARMS) -> float:
    """Return the least threshold that at most this share of runs that went well exceeds."""
    allowed = math.floor(share * len(well))
    return sorted(well, reverse=True)[allowed]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One run as one detector saw it."""

    setting: int
    rate: float  # peak learning rate
    outcome: Outcome
    in_time: float  # largest value up to the onset; ever, where the run went well
    ever: float
    warned: int | None  # step of the first warning

    @property
    def ahead(self) -> float:
        """By how many steps the warning came before the onset; -inf without a warning."""
        assert self.outcome.onset is not None
        return -math.inf if self.warned is None else self.outcome.onset - self.warned


def judged(run: Mapping[str, Any], found: Outcome, course: Course, threshold: float) -> Judged:
    """Return what a detector with a threshold made of a run."""
    return Judged(
        setting=run["setting"],
        rate=run["chosen"]["lr"],
        outcome=found,
        in_time=course.largest(found.onset),
        ever=course.largest(),
        warned=course.first_above(threshold),
    )


Statistic = Callable[[Sequence[Judged]], float]


def auroc_in_time(runs: Sequence[Judged]) -> float:
    """Return the AUROC of largest values up to the onset."""
    return auroc(
        [r.in_time for r in runs if r.outcome.failed],
        [r.in_time for r in runs if not r.outcome.failed],
    )


def auroc_at_one_rate(runs: Sequence[Judged]) -> float:
    """Return the same over pairs of runs with one peak rate: what is known beyond the rate."""
    wins, pairs = 0.0, 0
    for rate in {r.rate for r in runs}:
        failed = [r.in_time for r in runs if r.rate == rate and r.outcome.failed]
        well = [r.in_time for r in runs if r.rate == rate and not r.outcome.failed]
        if failed and well:
            wins += auroc(failed, well) * len(failed) * len(well)
            pairs += len(failed) * len(well)
    return wins / pairs if pairs else math.nan


def auroc_ever(runs: Sequence[Judged]) -> float:
    """Return the AUROC of largest values over whole runs: whether it tells failure at all."""
    return auroc(
        [r.ever for r in runs if r.outcome.failed],
        [r.ever for r in runs if not r.outcome.failed],
    )


def median_ahead(runs: Sequence[Judged]) -> float:
    """Return the median over failed runs of the steps from warning to onset."""
    times = sorted(r.ahead for r in runs if r.outcome.failed)
    return times[(len(times) - 1) // 2] if times else math.nan  # the lower one of two: -inf stays


def share_in_time(runs: Sequence[Judged]) -> float:
    """Return the share of failed runs that were warned of before their onset."""
    times = [r.ahead for r in runs if r.outcome.failed]
    return sum(t > 0 for t in times) / len(times) if times else math.nan


def false_alarms(runs: Sequence[Judged]) -> float:
    """Return the share of runs that went well in which there was a warning."""
    warned = [r.warned is not None for r in runs if not r.outcome.failed]
    return sum(warned) / len(warned) if warned else math.nan


def interval(runs: Sequence[Judged], statistic: Statistic) -> tuple[float, float]:
    """Return a 95 % interval of a statistic, by drawing settings with all their seeds."""
    chance = random.Random("interval")
    by_setting: dict[int, list[Judged]] = {}
    for run in runs:
        by_setting.setdefault(run.setting, []).append(run)
    groups = list(by_setting.values())
    found = []
    for _ in range(DRAWS):
        drawn = [run for group in chance.choices(groups, k=len(groups)) for run in group]
        value = statistic(drawn)
        if not math.isnan(value):
            found.append(value)
    if not found:
        return math.nan, math.nan
    found.sort()
    return found[int(0.025 * len(found))], found[int(0.975 * len(found)) - 1]


def summary(runs: Sequence[Judged]) -> dict[str, Any]:
    """Return all statistics of a detector with their intervals, as plain data."""
    parts: dict[str, Statistic] = {
        "auroc": auroc_in_time,
        "auroc_at_one_rate": auroc_at_one_rate,
        "auroc_ever": auroc_ever,
        "ahead": median_ahead,
        "in_time": share_in_time,
        "false_alarms": false_alarms,
    }
    return {
        name: {"value": plain(part(runs)), "interval": [plain(v) for v in interval(runs, part)]}
        for name, part in parts.items()
    }


def plain(value: float) -> float | None:
    """Return a number that JSON has; None is "never"."""
    return round(value, 4) if math.isfinite(value) else None


def significant(value: float) -> float | None:
    """Return six digits of a number, whatever its size."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
