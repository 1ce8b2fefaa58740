"""Vision tokenizers (arXiv 2212.11115), reconstructed: do tokens that know of each other help?"""

from functools import partial

from orbitlens_papers.study import Study
from orbitlens_papers.vision_tokens import exact, gains
from orbitlens_papers.vision_tokens.claims import CLAIMS
from orbitlens_papers.vision_tokens.figures import figures
from orbitlens_papers.vision_tokens.images import IMAGES, INSTEAD, LABELS

_GAIN = gains.gains_accuracy

STUDY = Study(
    name="vision-tokenizers",
    title="What Makes for Good Tokenizers in Vision Transformer? (a reconstruction)",
    paper="arXiv 2212.11115",
    question="Do tokens that know of each other, or that must keep their pixels, help a small "
    "model of images?",
    gap="MoTo and TokenProp are reconstructions from the paper's abstract: its formulas, sizes and "
    "numbers were not at hand, and no public code was found. A gain or a loss here is one of this "
    "reconstruction in a model of two layers on a few hundred digits; nothing is said about the "
    "paper's own designs, nor about ImageNet. What holds exactly (1, 2, 4c) is true of any such "
    "layer and does not count towards the verdict.",
    claims=CLAIMS,
    measures={
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
    },
    figures=figures,
    data_files={IMAGES: INSTEAD, LABELS: INSTEAD},
)

run = STUDY.run

__all__ = ["CLAIMS", "STUDY", "figures", "run"]
