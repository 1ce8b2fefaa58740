"""What measures each claim of the study, by the claim's key."""

from orbitlens_papers.memorization import exact, learning, setting
from orbitlens_papers.study import Measure

MEASURES: dict[str, Measure] = {
    "1a": exact.recalls,
    "2a": exact.parameter_slope,
    "2b": exact.slope_but_logs,
    "2c": exact.plain_slope,
    "2d": exact.bound_from_below,
    "3a": exact.any_length,
    "3b": exact.token_slope,
    "3c": exact.recalls_tokens,
    "4a": exact.weight_bits,
    "4b": exact.floats_break_it,
    "5a": learning.any_length,
    "5b": learning.tokens_need_more,
    "5c": learning.labels_need_more,
    "6a": exact.places_tell_apart,
    "7a": setting.recalls,
    "7b": setting.parameter_slope,
    "7c": setting.any_length,
    "7d": setting.depth_slope,
    "7e": setting.narrow_is_enough,
    "7f": setting.wide_slope,
}
