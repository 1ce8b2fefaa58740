"""Will it train? A verdict from what is forecast, by thresholds that were learnt on trained runs.

Enters: depths of a forecast. Leaves: a `Verdict`. Each reading says one way to fail:

- collapse: −ln(1 − C) behind the last layer: how nearly all tokens have one direction.
- sensitivity: log10 of how many times larger a relative change of the first stream is behind the
  last layer, |g_0| |x_0| / (|g_L| |x_L|): a chaotic stack has gradients that lead nowhere.
- faintness: −log10 of the size of what leaves the last layer, where no norm follows.

A stack is said to fail where a reading is as high as in runs that failed by it, to train where all
are as low as in runs that trained, and in between nothing is said. `trainability.json`
holds thresholds, learnt by `benchmarks/trainable_verdicts.py` on half of the runs of
`benchmarks/trainable.py`, and how often verdicts were right on the other half.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from orbitlens.files import read_json
from orbitlens.forecasting.blueprint import Blueprint
from orbitlens.forecasting.forecast_result import DepthForecast, TrainingVerdict
from orbitlens.results.codec import decode

STORED = Path(__file__).with_name("trainability.json")
MOST_COLLAPSE = 40.0  # where 1 − C is no more than rounding


def readings_of(plan: Blueprint, depths: Sequence[DepthForecast]) -> dict[str, float]:
    """Return the readings that thresholds are for."""
    first, last = depths[0], depths[-1]
    has_last_norm = plan.norm != "none"
    return {
        "collapse": min(-last.log_spread, MOST_COLLAPSE),
        "sensitivity": math.log10(first.gradient * first.size / last.size),
        "faintness": 0.0 if has_last_norm else -math.log10(last.size),
    }


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """Up to where runs trained by one reading, and from where they failed."""

    trains_to: float
    fails_from: float


@dataclass(frozen=True, kw_only=True)
class HitRate:
    """How often verdicts were right on runs that had no part in the thresholds."""

    n: int
    right: int  # of those that were answered
    unanswered: int
    low: float  # 95 % interval of the share that is right (Wilson)
    high: float


@dataclass(frozen=True, kw_only=True)
class LearntThresholds:
    """What was learnt, and how it fared."""

    thresholds: dict[str, Threshold]  # by reading
    n_learnt: int  # runs that thresholds were learnt on
    hits: HitRate | None  # None: not judged yet


@cache
def learnt() -> LearntThresholds:
    """Return the thresholds that come with the package."""
    found: LearntThresholds = decode(LearntThresholds, read_json(STORED, 100_000))
    return found


def verdict_of(
    readings: Mapping[str, float], thresholds: Mapping[str, Threshold]
) -> TrainingVerdict:
    """Return whether a stack will train."""
    pairs = [(readings[name], threshold) for name, threshold in thresholds.items()]
    if any(value >= threshold.fails_from for value, threshold in pairs):
        return TrainingVerdict.FAILS
    if all(value <= threshold.trains_to for value, threshold in pairs):
        return TrainingVerdict.TRAINS
    return TrainingVerdict.UNCLEAR


def measured_words() -> str:
    """Return how often such verdicts were right, in a sentence."""
    hits = learnt().hits
    if hits is None:
        return "How often that is right has not been measured."
    answered = hits.n - hits.unanswered
    return (
        f"Such verdicts were right in {hits.right} of {answered} small models that were trained "
        f"({hits.low:.0%} to {hits.high:.0%}), and {hits.unanswered} of {hits.n} got none."
    )
