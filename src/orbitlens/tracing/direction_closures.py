"""Closures for directions: what heads do to ln(1 - C), from few statistics of another text.

Enters: the tally of a layer on the text to fit on. Leaves: a `PathSums` of the steps that a closure
ascribes to the heads (theory section 7). `DIRECTION_CLOSURES` says of each what it knows. Only
`words`, `chunks` and `itself` apply the layer to states that the model computed: the first two are
resampled measurements, the last is the ceiling, and none of the three is a prediction.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import torch
from torch import Tensor

from orbitlens.tracing.attention_shares import even_steps, share_steps, three_point_steps
from orbitlens.tracing.directions import PathSums
from orbitlens.tracing.drawn_contexts import drawn_directions, exact_steps
from orbitlens.tracing.surrogates import SURROGATES
from orbitlens.tracing.tally import LayerTally
from orbitlens.tracing.tilted_steps import tilted_steps

Predict = Callable[[LayerTally, torch.Generator], PathSums]


class Ground(StrEnum):
    """What a closure stands on."""

    CLOSED_FORM = "closed form"
    SAMPLED = "sampled: exact attention on drawn tokens"
    RESAMPLED = "resampled measurement"
    CEILING = "ceiling: the measurement on the other text"


@dataclass(frozen=True, kw_only=True)
class DirectionClosure:
    """One closure: what it works out, and what it knows beside the weights."""

    predict: Predict
    ground: Ground
    knows: str  # of the text that it is fitted on


def _mean(tally: LayerTally, generator: torch.Generator) -> PathSums:
    return steps_path(tally, *even_steps(tally))


def _shares(tally: LayerTally, generator: torch.Generator) -> PathSums:
    return steps_path(tally, *share_steps(tally))


def _three_points(tally: LayerTally, generator: torch.Generator) -> PathSums:
    return steps_path(tally, *three_point_steps(tally, generator))


def _tilted(
    tally: LayerTally, generator: torch.Generator, *, freezes: bool, points: bool
) -> PathSums:
    return steps_path(tally, *tilted_steps(tally, generator, freezes=freezes, points=points))


def _drawn(tally: LayerTally, generator: torch.Generator, *, points: bool) -> PathSums:
    contexts = drawn_directions(tally, generator, points=points)
    return steps_path(tally, contexts, exact_steps(tally.layer, contexts))


def _resampled(tally: LayerTally, generator: torch.Generator, *, kind: str) -> PathSums:
    contexts = SURROGATES[kind](tally, len(tally.kept), generator)
    return steps_path(tally, contexts, exact_steps(tally.layer, contexts))


def _measured(tally: LayerTally, generator: torch.Generator) -> PathSums:
    return tally.directions.path


DIRECTION_CLOSURES: dict[str, DirectionClosure] = {
    "mean": DirectionClosure(
        predict=_mean,
        ground=Ground.CLOSED_FORM,
        knows="the mean token (T8: uniform attention)",
    ),
    "shares": DirectionClosure(
        predict=_shares,
        ground=Ground.CLOSED_FORM,
        knows="the mean token; how much a head looks at the first token and at itself (without a "
        "causal mask: at the last too), by position",
    ),
    "three-points": DirectionClosure(
        predict=_three_points,
        ground=Ground.CLOSED_FORM,
        knows="the same shares; of the rest the mean as attention weighs it, how concentrated "
        "attention is on it, and how far tokens share their targets",
    ),
    "covariance": DirectionClosure(
        predict=partial(_tilted, freezes=False, points=False),
        ground=Ground.CLOSED_FORM,
        knows="mean and covariance (T6: infinitely many Gaussian tokens); attention is predicted",
    ),
    "frozen": DirectionClosure(
        predict=partial(_tilted, freezes=True, points=False),
        ground=Ground.CLOSED_FORM,
        knows="mean and covariance (T7: softmax freezes on the best of n); attention is predicted",
    ),
    "frozen-points": DirectionClosure(
        predict=partial(_tilted, freezes=True, points=True),
        ground=Ground.CLOSED_FORM,
        knows="a mean and a size at each position, the covariance of content, and the token itself "
        "(T7 with positions as points); attention is predicted",
    ),
    "gaussian": DirectionClosure(
        predict=partial(_drawn, points=False),
        ground=Ground.SAMPLED,
        knows="mean and covariance of directions, and lengths; attention is predicted",
    ),
    "points": DirectionClosure(
        predict=partial(_drawn, points=True),
        ground=Ground.SAMPLED,
        knows="a mean direction, a size and lengths at each position, and the covariance of "
        "content; attention is predicted",
    ),
    "words": DirectionClosure(
        predict=partial(_resampled, kind="words"),
        ground=Ground.RESAMPLED,
        knows="the states themselves, put in random order",
    ),
    "chunks": DirectionClosure(
        predict=partial(_resampled, kind="chunks"),
        ground=Ground.RESAMPLED,
        knows="the states themselves, in runs of up to 8 neighbours",
    ),
    "itself": DirectionClosure(
        predict=_measured, ground=Ground.CEILING, knows="what was measured there"
    ),
}


def steps_path(tally: LayerTally, contexts: Tensor, steps: Tensor) -> PathSums:
    """Return the sums of the path along the steps of all heads, and of the output's bias."""
    path = PathSums(tally.layer.n_heads + 1)
    parts = torch.cat([steps, tally.layer.b_o.expand_as(contexts)[None]])
    path.add(tally.directions.as_seen(contexts), tally.directions.as_seen(parts))
    return path
