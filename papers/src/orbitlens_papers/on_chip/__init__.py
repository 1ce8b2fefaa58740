"""On-chip learning (arXiv 2410.08711): is attention a local rule that learns from its context?"""

from functools import partial

import torch

from orbitlens_papers.on_chip import decoder, exact, fewshot, official
from orbitlens_papers.on_chip.claims import CLAIMS
from orbitlens_papers.on_chip.drawings import RUNS, SMALL
from orbitlens_papers.on_chip.figures import figures
from orbitlens_papers.study import Study

INSTEAD = "letters rendered from a font, each in random poses"

STUDY = Study(
    name="on-chip-learning",
    title="On-Chip Learning via Transformer In-Context Learning",
    paper="arXiv 2410.08711",
    question="Is attention local plasticity, and is that enough to learn new classes from a "
    "handful of examples?",
    gap="There is no chip here: nothing is said about energy or latency, and the encoder in front "
    "of attention stays in floats. The learner is one attention layer whose values are labels and "
    "whose keys are pictures, not the paper's model, whose sizes and accuracies were not at hand. "
    "A softmax over slots is exact but not local: its sum needs all slots.",
    claims=CLAIMS,
    measures={
        "1a": partial(exact.local_is_attention, dtype=torch.float32),
        "1b": partial(exact.local_is_attention, dtype=torch.float64),
        "1c": exact.rules_are_local,
        "2a": fewshot.context_teaches,
        "2b": fewshot.more_teach_more,
        "2c": fewshot.training_helps,
        "2d": fewshot.softmax_is_no_better,
        "2e": decoder.decoder_learns,
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
    },
    figures=figures,
    data_files={SMALL[0]: INSTEAD, SMALL[1]: INSTEAD, RUNS: "nothing: claim 7a is left out"},
)

run = STUDY.run

__all__ = ["CLAIMS", "STUDY", "figures", "run"]
