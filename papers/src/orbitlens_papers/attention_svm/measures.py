"""What measures each claim of the study, by the claim's key."""

from functools import partial

from orbitlens_papers.attention_svm import choices, directions, nonlinear
from orbitlens_papers.study import Measure

MEASURES: dict[str, Measure] = {
    "1a": partial(directions.converges, kind="plain"),
    "1b": directions.wrong_labels,
    "1c": directions.unnormalised,
    "2a": partial(directions.converges, kind="factored"),
    "2b": directions.less_nuclear,
    "3a": choices.saturates,
    "4a": choices.picks_best,
    "4b": choices.wider_is_better,
    "5a": directions.lower_rank,
    "5b": directions.optimal,
    "5c": directions.classifier_agrees,
    "6a": choices.order_is_nothing,
    "7a": nonlinear.goes_to_general_svm,
    "7b": nonlinear.beats_single_tokens,
    "7c": nonlinear.picks_best,
}
