"""Vision tokenizers (arXiv 2212.11115), reconstructed: do tokens that know of each other help?"""

from orbitlens_papers.study import Study, parts_of
from orbitlens_papers.vision_tokens.claims import CLAIMS, IMAGES, INSTEAD, LABELS

STUDY = Study(
    name="vision-tokenizers",
    title="What Makes for Good Tokenizers in Vision Transformer? (a reconstruction)",
    paper="arXiv 2212.11115",
    question="Do tokens that know of each other, or that must keep their pixels, help a small "
    "model of images?",
    gap="MoTo and TokenProp are reconstructions from the paper's abstract: its formulas, sizes and "
    "numbers were not at hand, and no public code was found. A gain or a loss here is one of this "
    "reconstruction in a model of two layers on 200 to 1,000 digits; nothing is said about the "
    "paper's own designs, nor about ImageNet. What holds exactly (1, 2, 4c) is true of any such "
    "layer and does not count towards the verdict.",
    read="abstract",
    at="Two layers of width 32 on 200 to 1,000 digits, 750 steps (3 to 6) or 200 (7a to 7c, where "
    "models are still far from trained: 0.65 right at 1,000 labels, 0.81 after 750 steps, which "
    "leave no gain, 3c); the paper: ImageNet.",
    claims=CLAIMS,
    parts=parts_of(__name__),
    minutes=15,
    data_files={IMAGES: INSTEAD, LABELS: INSTEAD},
)

__all__ = ["CLAIMS", "STUDY"]
