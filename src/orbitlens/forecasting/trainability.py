"""Will it train? A verdict from what is forecast, by thresholds that were learnt on trained runs.

Enters: depths of a forecast. Leaves: a `Verdict`. Each reading says one way to fail:

- erasure: −log10 of the share that a token's own embedding has in what leaves the last layer, by
  the path past all branches. Each sum with a branch of size b beside a stream of size a leaves
  a/√(a² + b²) of it. Where little is left, tokens end in one direction, or in directions that any
  step of the optimiser throws about, or without norms sizes explode: in all three a gradient at
  the embeddings leads nowhere. Small embeddings grow while the rate warms up, by about `WARM_UP`
  of it, and are counted so. Behind post-norms their size does not matter, but no path passes the
  norms by, and every layer overwrites the stream anew as it learns: the share is divided by the
  number of layers (a correction that was found on runs to learn from).
- faintness: −log10 of what a step does to a logit, rate · width · size of what leaves the last
  layer, where no norm follows and the MLP is gated or missing. (A plain MLP has a slope at zero,
  by which a small stream grows once its maps have.)
- sensitivity: log10 of how many times larger a relative change of the first stream is behind the
  last layer, |g_0| |x_0| / (|g_L| |x_L|): a chaotic stack has gradients that lead nowhere.
- collapse: −ln(1 − C) behind the last layer: how nearly all tokens have one direction.

A stack is said to fail where a reading is as high as in runs that failed by it, to train where all
are as low as in runs that trained, and in between nothing is said. `trainability.json`
holds thresholds, learnt by `benchmarks/trainable_verdicts.py` on some of the runs of
`benchmarks/trainable.py`, and how often verdicts were right on others.
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
RATE = 0.008  # of the runs, over the root of the number of layers
WARM_UP = 10  # rates that the steps of the warm-up come to together


def readings_of(plan: Blueprint, depths: Sequence[DepthForecast]) -> dict[str, float]:
    """Return the readings that thresholds are for."""
    first, last, rate = depths[0], depths[-1], RATE / math.sqrt(plan.layers)
    has_last_norm, has_slope = plan.norm != "none", plan.d_inner > 0 and not plan.is_gated
    erasure = -last.log_kept / math.log(10)
    if plan.norm == "post":
        erasure += math.log10(plan.layers)
    else:
        erasure -= math.log10(math.hypot(first.size, WARM_UP * rate) / first.size)
    step = rate * plan.width * last.size
    return {
        "erasure": erasure,
        "faintness": 0.0 if has_last_norm or has_slope else max(0.0, -math.log10(step)),
        "sensitivity": math.log10(first.gradient * first.size / last.size),
        "collapse": min(-last.log_spread, MOST_COLLAPSE),
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
