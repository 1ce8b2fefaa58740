"""Runs -> a summary: means and 95 % intervals over seeds, and paired differences.

Enters: results of runs. Leaves: `Row`s. A difference is taken seed by seed: two runs of one seed
see the same batches, and all are judged on the same examples. Intervals are Student's t.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median_high
from typing import Any

from orbitlens.errors import InputError
from orbitlens.lab.run import RunResult

LEVEL = 0.95
MEASURES = ("log_distance_change", "dispersion_last", "cosine_last")


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean and the half-width of its 95 % interval; None with one value."""

    mean: float
    half_width: float | None
    n: int

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies outside the interval."""
        return self.half_width is not None and abs(self.mean) > self.half_width


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What a setting is worth beside its baseline, seed by seed."""

    baseline: str
    loss: Interval
    accuracy: Interval
    time: float  # of a step, relative to the baseline's
    cpu_time: float | None  # the same by the processor's clock, where every run has it
    parameters: int  # more than the baseline's


@dataclass(frozen=True, kw_only=True)
class Row:
    """One setting, over its seeds."""

    label: str
    settings: dict[str, Any]
    loss: Interval
    accuracy: Interval
    token_accuracy: Interval
    parameters: int
    step_ms: float  # milliseconds, the median over seeds
    difference: Difference | None
    measured: dict[str, Interval]

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return asdict(self)


def interval(values: Sequence[float]) -> Interval:
    """Return mean ± t s / sqrt(n), the 95 % interval of a mean of n values.

    >>> interval([1.0, 2.0, 3.0])
    Interval(mean=2.0, half_width=2.48..., n=3)
    """
    n = len(values)
    if n == 0:
        raise InputError("there are no values to summarise.")
    if n == 1:
        return Interval(mean=values[0], half_width=None, n=1)
    from scipy import stats

    half_width = stats.t.ppf((1 + LEVEL) / 2, n - 1) * stats.sem(values)
    return Interval(mean=fmean(values), half_width=float(half_width), n=n)


def summary_row(
    label: str,
    runs: Sequence[RunResult],
    *,
    settings: Mapping[str, Any] | None = None,
    baseline: tuple[str, Sequence[RunResult]] | None = None,
) -> Row:
    """Return the row of one setting; `baseline` is a label and its runs."""
    names = [name for name in MEASURES if all(run.measured is not None for run in runs)]
    return Row(
        label=label,
        settings=dict(settings or {}),
        loss=interval([run.loss for run in runs]),
        accuracy=interval([run.accuracy for run in runs]),
        token_accuracy=interval([run.token_accuracy for run in runs]),
        parameters=runs[0].parameters,
        step_ms=_step_ms(runs),
        difference=_difference(runs, *baseline) if baseline is not None else None,
        measured={name: interval([(run.measured or {})[name] for run in runs]) for name in names},
    )


def _difference(
    runs: Sequence[RunResult], label: str, others: Sequence[RunResult]
) -> Difference | None:
    """Return the paired difference; None where no seed was run on both sides."""
    other = {run.seed: run for run in others}
    pairs = [(run, other[run.seed]) for run in runs if run.seed in other]
    if not pairs:
        return None
    return Difference(
        baseline=label,
        loss=interval([a.loss - b.loss for a, b in pairs]),
        accuracy=interval([a.accuracy - b.accuracy for a, b in pairs]),
        time=_step_ms(runs) / _step_ms(others),
        cpu_time=_cpu_time(runs, others),
        parameters=runs[0].parameters - others[0].parameters,
    )


def _step_ms(runs: Sequence[RunResult]) -> float:
    return median_high(1000 * run.seconds / run.steps for run in runs)


def _cpu_time(runs: Sequence[RunResult], others: Sequence[RunResult]) -> float | None:
    """Return how much processor time a step takes against the others': for busy machines."""
    if not all(run.cpu_seconds > 0 for run in (*runs, *others)):
        return None
    mine, theirs = (median_high(r.cpu_seconds / r.steps for r in group) for group in (runs, others))
    return mine / theirs
