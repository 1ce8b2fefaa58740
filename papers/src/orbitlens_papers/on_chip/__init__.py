"""On-chip learning (arXiv 2410.08711): is attention a local rule that learns from its context?"""

from orbitlens_papers.on_chip.claims import CLAIMS, RUNS, SMALL
from orbitlens_papers.study import Study, parts_of

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
    "A softmax over slots is exact but not local: its sum needs all slots. Folds share most of the "
    "alphabets they train on: their intervals say how held-out alphabets differ, and treat folds "
    "as independent, which they are not quite.",
    read="abstract, summary",
    at="One attention layer over pictures and labels, trained for 600 steps, in simulation, on "
    "20 × 20 pictures; the "
    "paper runs a decoder on Loihi 2.",
    claims=CLAIMS,
    parts=parts_of(__name__),
    minutes=25,
    data_files={SMALL[0]: INSTEAD, SMALL[1]: INSTEAD, RUNS: "nothing: claim 7a is left out"},
    needs=("PIL", "matplotlib"),
    folds=8,  # the alphabets of both background sets
)

__all__ = ["CLAIMS", "STUDY"]
