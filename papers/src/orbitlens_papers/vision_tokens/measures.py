"""What measures each claim of the study, by the claim's key."""

from functools import partial

from orbitlens_papers.study import Measure
from orbitlens_papers.vision_tokens import exact, gains

_GAIN = gains.gains_accuracy

MEASURES: dict[str, Measure] = {
    "1a": exact.keeps_order,
    "1b": exact.couples_tokens,
    "1c": exact.starts_as_nothing,
    "1d": exact.order_is_invisible,
    "2a": exact.few_parameters,
    "2b": gains.quick_steps,
    "2c": exact.few_at_scale,
    "3a": partial(_GAIN, name="both, 200", beside="plain, 200"),
    "3b": gains.gains_at_main,
    "3c": partial(_GAIN, name="both, 1000", beside="plain, 1000"),
    "3d": partial(_GAIN, name="MoTo, 400", beside="plain, 400"),
    "3e": partial(_GAIN, name="TokenProp, 400", beside="plain, 400"),
    "3f": partial(_GAIN, name="MoTo, 400", beside="MoTo, random layout, 400"),
    "3g": partial(_GAIN, name="MoTo, replacing, 400", beside="token norm, 400"),
    "3h": gains.labels_teach,
    "4a": gains.keeps_pixels,
    "4b": gains.costs_no_accuracy,
    "4c": exact.wide_tokens_keep_all,
    "5a": partial(_GAIN, name="conv stem, 400", beside="plain, 400"),
    "6a": exact.paper_itself,
    "7a": partial(gains.gains_early, labels=200),
    "7b": partial(gains.gains_early, labels=400),
    "7c": partial(gains.gains_early, labels=1000),
}
