"""What measures each claim of the study, by the claim's key."""

from functools import partial

import torch

from orbitlens_papers.on_chip import decoder, exact, fewshot, official
from orbitlens_papers.study import Measure

MEASURES: dict[str, Measure] = {
    "1a": partial(exact.local_is_attention, dtype=torch.float32),
    "1b": partial(exact.local_is_attention, dtype=torch.float64),
    "1c": exact.rules_are_local,
    "2a": fewshot.context_teaches,
    "2b": fewshot.more_teach_more,
    "2c": fewshot.training_helps,
    "2d": fewshot.softmax_is_no_better,
    "2e": decoder.decoder_learns,
    "2f": fewshot.glyphs_too,
    "2g": fewshot.means_are_better,
    "3a": partial(fewshot.narrow_is_enough, bits=8),
    "3b": partial(fewshot.narrow_is_enough, bits=6),
    "3c": partial(fewshot.narrow_is_enough, bits=4),
    "4a": fewshot.labels_tell,
    "5a": exact.order_is_nothing,
    "5b": fewshot.fading_is_a_clock,
    "6a": fewshot.random_maps_stay,
    "7a": official.official_test,
    "8a": exact.state_is_a_step,
    "9a": fewshot.hardware,
}
