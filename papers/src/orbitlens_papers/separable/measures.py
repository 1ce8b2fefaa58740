"""What measures each claim of the study, by the claim's key."""

from functools import partial

from orbitlens_papers.separable import comparisons, cost, fitted, groups
from orbitlens_papers.study import Measure

MEASURES: dict[str, Measure] = {
    "1a": groups.blind_to_time,
    "1b": groups.blind_to_frequency,
    "1c": groups.sees_the_grid,
    "1d": groups.exactly_products,
    "1e": groups.exactly_lines,
    "1f": comparisons.trained_is_blind,
    "2a": partial(cost.grows_like, what="parameters"),
    "2b": cost.as_predicted,
    "2c": partial(cost.grows_like, what="multiply-adds"),
    "3a": fitted.beats_joint,
    "3b": partial(comparisons.beats, other="patches"),
    "3c": partial(comparisons.beats, other="patches", arm=comparisons.BRIEF),
    "3d": partial(comparisons.beats, other="logistic"),
    "3e": comparisons.papers_numbers,
    "3f": partial(fitted.reaches_linear, arm="separable"),
    "3g": partial(fitted.reaches_linear, arm="joint"),
    "4a": partial(comparisons.both_axes, only="columns only", sees="pattern"),
    "4b": partial(comparisons.both_axes, only="rows only", sees="envelope"),
    "5a": comparisons.order_is_free,
    "5b": fitted.order_is_free,
}
