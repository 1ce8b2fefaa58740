"""What measures each claim of the study, by the claim's key."""

from functools import partial

from orbitlens_papers.induction_heads import information, random_lags, stages
from orbitlens_papers.study import Measure

MEASURES: dict[str, Measure] = {
    "1a": partial(stages.selects, chain="{1, 2}"),
    "1b": partial(stages.selects, chain="{1, 3}"),
    "2a": partial(stages.copies, chain="{1, 2}"),
    "2b": partial(stages.copies, chain="{1, 3}"),
    "3a": partial(stages.predicts, chain="{1, 2}"),
    "3b": partial(stages.predicts, chain="{1, 3}"),
    "3c": stages.beats_unigrams,
    "3d": stages.grows,
    "3e": stages.needs_products,
    "4a": stages.comes_in_order,
    "5a": partial(stages.generalises, where="long"),
    "5b": partial(stages.generalises, where="less_fixed"),
    "6a": information.parents_lead,
    "6b": information.plain_lead,
    "7a": random_lags.forms,
    "7b": partial(random_lags.predicts, where="accuracy"),
    "7c": random_lags.needs_the_token_in_front,
    "7d": partial(random_lags.predicts, where="left_out"),
    "7e": random_lags.copies_first,
}
