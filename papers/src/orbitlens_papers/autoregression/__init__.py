"""In-context autoregression (arXiv 2402.05787): how attention learns W from s_{t+1} = W s_t."""

from functools import partial

from orbitlens_papers.autoregression import angles, augmented, plain
from orbitlens_papers.autoregression.claims import CLAIMS
from orbitlens_papers.autoregression.figures import figures
from orbitlens_papers.study import Study

STUDY = Study(
    name="in-context-autoregression",
    title="How do Transformers perform In-Context Autoregressive Learning?",
    paper="arXiv 2402.05787",
    question="How does linear attention learn W from a sequence s_{t+1} = W s_t, and what do heads "
    "and position encodings do in it?",
    gap="One layer of linear attention on noiseless sequences: nothing is said about softmax, "
    "depth or noise. Theorem texts were not read, and the paper's experiment on text is left out.",
    claims=CLAIMS,
    measures={
        "1a": plain.reaches_zero,
        "1b": plain.diagonal,
        "1c": plain.last_place,
        "1d": plain.applies_estimate,
        "1e": plain.loss_formula,
        "2a": plain.heads_are_orthogonal,
        "3a": plain.capacity,
        "4a": plain.half_suffices,
        "4b": plain.half_is_needed,
        "4c": plain.half_rule,
        "4d": plain.family,
        "5a": partial(augmented.direction, kind="structured", what="aligned"),
        "5b": partial(augmented.error, kind="structured", both_sides=True),
        "5c": partial(augmented.direction, kind="free", what="cosine"),
        "5d": partial(augmented.error, kind="free", both_sides=False),
        "5e": partial(augmented.error, kind="free", both_sides=True),
        "5f": partial(augmented.direction, kind="structured", what="cosine"),
        "6a": angles.small_angles,
        "7a": partial(plain.order_is_needed, how="shuffled"),
        "7b": partial(plain.order_is_needed, how="constant"),
    },
    figures=figures,
)

run = STUDY.run

__all__ = ["CLAIMS", "STUDY", "figures", "run"]
