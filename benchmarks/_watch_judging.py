"""What counts as failed, when it began, and how well a detector told it beforehand.

Enters: logged runs. Leaves: outcomes, scores, thresholds and times of warning. All of this was
written down before any run was judged by it.

A run **failed** if a loss was not finite, or if its mean loss over the last `LAST` steps is not
`MARGIN` nats below that of a unigram model on the same batches. With s(t) the mean of the last
`WINDOW` differences between the two and m its minimum, a failed run **broke** if it ended more
than `LEVEL` nats above m: it had learned, and lost it. Its onset is the step after the last one
with s ≤ m + `LEVEL`. Otherwise it **stalled**: it never got away from the unigram model. All runs
pass through that loss, so a stall has no step of its own; its onset is the step at which it is
overdue: by then all but a share `LATE` of the runs that went well, of the half that is learned
on, had got `MARGIN` nats below.

A detector is a number by step, larger for worse. It warns at the first step at which it exceeds
its threshold; a value that is not finite exceeds all. A false alarm is a warning at any step of a
run that did not fail. **AUROC in time**: over pairs of a failed run and one that went well, how
often the largest value up to the failed run's onset is larger in the failed run. *Strict*: against
the largest value ever in the run that went well, which is watched for longer.
"""

import bisect
import itertools
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

WINDOW = 10  # steps that s(t) is a mean of
LAST = 20  # steps that the end of a run is a mean of
MARGIN = 0.05  # nats
LEVEL = 0.1  # nats
LATE = 0.05  # share of sound runs
FALSE_ALARMS = 0.05
DRAWS = 200  # of a bootstrap


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


Losses = Sequence[float | None]


def left_at(losses: Losses, unigram: Sequence[float]) -> int | None:
    """Return the first step at which s is `MARGIN` nats below the unigram model."""
    pairs = zip(losses, unigram, strict=True)
    course = smoothed([loss - known for loss, known in pairs if loss is not None])
    return next((t for t, s in enumerate(course) if s < -MARGIN), None)


def overdue_at(left: Sequence[int | None]) -> int:
    """Return the step by which all but a share `LATE` of sound runs had left the unigram model."""
    steps = sorted(step for step in left if step is not None)
    return steps[math.ceil((1 - LATE) * len(steps)) - 1]


def outcome(losses: Losses, unigram: Sequence[float], overdue: int = 0) -> Outcome:
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
    return Outcome(kind="stalled", onset=max(near[0], overdue))


@dataclass(frozen=True, kw_only=True)
class Course:
    """A detector's values in one run, by steps taken."""

    steps: Sequence[int]
    values: Sequence[float]  # infinite where a reading was not finite

    @cached_property
    def _so_far(self) -> list[float]:
        return list(itertools.accumulate(self.values, max))

    def largest(self, until: int | None = None) -> float:
        """Return the largest value, up to a step if one is given."""
        end = len(self.steps) if until is None else bisect.bisect_right(self.steps, until)
        return self._so_far[end - 1] if end else -math.inf

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


def largest_by_setting(well: Iterable[tuple[int, float]]) -> list[float]:
    """Return the largest value of each setting, from large to small: its runs are alike."""
    found: dict[int, float] = {}
    for setting, value in well:
        found[setting] = max(value, found.get(setting, -math.inf))
    return sorted(found.values(), reverse=True)


def threshold_at(sound: Sequence[float], share: float = FALSE_ALARMS) -> float:
    """Return the least threshold that a new sound setting exceeds with a chance of `share` at most.

    Of n values, from large to small, and a new one drawn as they were, the new one is above the
    k-th with a chance of k / (n + 1) at most (split conformal prediction). Of few it is the first.
    """
    return sound[max(1, math.floor(share * (len(sound) + 1))) - 1]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One run as one detector saw it."""

    setting: int
    rate: float  # peak learning rate
    outcome: Outcome
    course: Course
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
        course=course,
        warned=course.first_above(threshold),
    )


Statistic = Callable[[Sequence[Judged]], float]


def auroc_in_time(runs: Sequence[Judged]) -> float:
    """Return the AUROC of largest values up to the failed run's onset, in both runs of a pair."""
    well = [r.course for r in runs if not r.outcome.failed]
    failed = [r for r in runs if r.outcome.failed]
    if not failed or not well:
        return math.nan
    shares = [
        auroc([r.course.largest(r.outcome.onset)], [w.largest(r.outcome.onset) for w in well])
        for r in failed
    ]
    return statistics.fmean(shares)


def auroc_at_one_rate(runs: Sequence[Judged]) -> float:
    """Return the same over pairs of runs with one peak rate: what is known beyond the rate."""
    wins, pairs = 0.0, 0
    for rate in {r.rate for r in runs}:
        same = [r for r in runs if r.rate == rate]
        n_failed = sum(r.outcome.failed for r in same)
        n_pairs = n_failed * (len(same) - n_failed)
        if n_pairs:
            wins += auroc_in_time(same) * n_pairs
            pairs += n_pairs
    return wins / pairs if pairs else math.nan


def auroc_strict(runs: Sequence[Judged]) -> float:
    """Return the AUROC of largest values up to the onset against largest values ever."""
    return auroc(
        [r.course.largest(r.outcome.onset) for r in runs if r.outcome.failed],
        [r.course.largest() for r in runs if not r.outcome.failed],
    )


def auroc_ever(runs: Sequence[Judged]) -> float:
    """Return the AUROC of largest values over whole runs: whether it tells failure at all."""
    return auroc(
        [r.course.largest() for r in runs if r.outcome.failed],
        [r.course.largest() for r in runs if not r.outcome.failed],
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
    by_setting: dict[int, list[Judged]] = {}
    for run in runs:
        by_setting.setdefault(run.setting, []).append(run)
    drawn = ([run for key in keys for run in by_setting[key]] for keys in _draws(runs))
    return _middle(statistic(each) for each in drawn)


def auroc_interval(runs: Sequence[Judged]) -> tuple[float, float]:
    """Return the same interval of `auroc_in_time`; pairs of runs are compared once."""
    failed = [r for r in runs if r.outcome.failed]
    well = [r for r in runs if not r.outcome.failed]
    wins = [
        [
            auroc([f.course.largest(f.outcome.onset)], [w.course.largest(f.outcome.onset)])
            for w in well
        ]
        for f in failed
    ]
    table, found = torch.tensor(wins, dtype=torch.float64), []
    for keys in _draws(runs):
        times = Counter(keys)
        rows, columns = (
            torch.tensor([times[r.setting] for r in part], dtype=torch.float64)
            for part in (failed, well)
        )
        found.append(float(rows @ table @ columns / (rows.sum() * columns.sum())))
    return _middle(found)


def _draws(runs: Sequence[Judged]) -> Iterator[list[int]]:
    """Yield settings, drawn with replacement."""
    chance, settings = random.Random("interval"), list(dict.fromkeys(r.setting for r in runs))
    for _ in range(DRAWS):
        yield chance.choices(settings, k=len(settings))


def _middle(values: Iterable[float]) -> tuple[float, float]:
    found = sorted(value for value in values if not math.isnan(value))
    if not found:
        return math.nan, math.nan
    return found[int(0.025 * len(found))], found[int(0.975 * len(found)) - 1]


STATISTICS: dict[str, Statistic] = {
    "auroc": auroc_in_time,
    "auroc_at_one_rate": auroc_at_one_rate,
    "auroc_strict": auroc_strict,
    "auroc_ever": auroc_ever,
    "ahead": median_ahead,
    "in_time": share_in_time,
    "false_alarms": false_alarms,
}


def values(runs: Sequence[Judged]) -> dict[str, float | None]:
    """Return all statistics of a detector, as plain data."""
    return {name: plain(part(runs)) for name, part in STATISTICS.items()}


def summary(runs: Sequence[Judged]) -> dict[str, Any]:
    """Return all statistics of a detector, the first ones with their intervals, as plain data."""
    found: dict[str, Any] = {name: {"value": value} for name, value in values(runs).items()}
    found["auroc"]["interval"] = [plain(v) for v in auroc_interval(runs)]
    for name in ("ahead", "in_time", "false_alarms"):
        found[name]["interval"] = [plain(v) for v in interval(runs, STATISTICS[name])]
    return found


def plain(value: float) -> float | None:
    """Return a number that JSON has; None is "never"."""
    return round(value, 4) if math.isfinite(value) else None


def significant(value: float) -> float | None:
    """Return six digits of a number, whatever its size."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
