"""What measures each claim of the study, by the claim's key."""

from functools import partial

from orbitlens_papers.study import Measure
from orbitlens_papers.tokenization import regimes, unigram

MEASURES: dict[str, Measure] = {
    "1a": partial(unigram.byte_pairs_close, size=10),
    "1b": partial(unigram.byte_pairs_close, size=100),
    "1c": unigram.four_are_worse,
    "2a": unigram.phrases_close,
    "2b": unigram.larger_is_better,
    "2c": unigram.below_bound,
    "3a": unigram.blocks_as_predicted,
    "4a": partial(regimes.letters_are_slow, soon=False),
    "4b": partial(regimes.pairs_are_fast, arm="pairs"),
    "4c": partial(regimes.pairs_are_fast, arm="pairs, equal characters"),
    "4d": partial(regimes.letters_are_slow, soon=True),
    "4e": partial(regimes.times_as_many, share=regimes.NEAR),
    "4f": partial(regimes.times_as_many, share=regimes.PART),
    "5a": regimes.slow_everywhere,
    "5b": unigram.ten_for_any_order,
    "6a": regimes.blind_without_positions,
}
