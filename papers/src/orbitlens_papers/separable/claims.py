"""The claims of arXiv 2203.09581 as statements with thresholds."""

from orbitlens_papers.claim import Claim, Kind, Protocol, Side

PAPER = "arXiv 2203.09581"
ROUNDING = "double precision leaves 1e-15; a symmetry that is not there moves logits by percents"
SIGN = "the sign is the claim: the interval over pairs must leave out 0"
POINTS = "three points of accuracy: more than chance moves 600 clips"
SHUFFLED = "the separable model trained on shuffled labels, for a third of the steps"

FITTED = (
    "two layers of width 16, 2,000 steps of 32 clips, the frequencies of each moved by a factor "
    "drawn from 0.89 to 1.12 and the clip mixed with another one; the linear model hears them as "
    "they are"
)
SINGLE = "four layers of width 32, 600 steps of 16 clips as they are"

FILE = "fsdd.zip"
INSTEAD = "made sounds of 12 classes"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        key="1a",
        text="Without places in time, a separable model does not see the order of time.",
        source="ours: a consequence of the architecture",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="relative change of logits when the columns of a spectrogram are permuted, the "
        "tables of places within rows set to 0; largest over random models, both orders of axes",
        side=Side.BELOW,
        threshold=1e-9,
        why=ROUNDING,
        control="the tables left in place",
    ),
    Claim(
        key="1b",
        text="Without places in frequency, it does not see the order of frequencies.",
        source="ours: a consequence of the architecture",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="the same when rows are permuted, the tables of places within columns set to 0",
        side=Side.BELOW,
        threshold=1e-9,
        why=ROUNDING,
        control="the tables left in place",
    ),
    Claim(
        key="1c",
        text="Without any places it still sees which bins share a row or a column.",
        source="ours: a consequence of the architecture",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="relative change of logits when all bins are permuted, no positions; smallest "
        "over random models",
        side=Side.ABOVE,
        threshold=1e-3,
        why="a thousandth of the logits is far above rounding",
        control="joint attention without positions",
    ),
    Claim(
        key="1d",
        text="What it cannot see is exactly S_h × S_w: rows and columns permuted as wholes.",
        source="ours: a consequence of the architecture",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="permutations of a small grid, all of them tried, that are blind though they "
        "should not be, or the other way round",
        side=Side.BELOW,
        threshold=0.5,
        why="a count of failures: none is allowed",
        control="joint attention, blind to all of them",
    ),
    Claim(
        key="1e",
        text="Along one axis alone a model is blind to more: each line may be permuted by itself.",
        source="ours: a consequence of the architecture",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="the same count for models within columns alone and within rows alone, against "
        "the permutations that send lines to lines",
        side=Side.BELOW,
        threshold=0.5,
        why="a count of failures: none is allowed",
        core=False,
        control="a model along both axes",
    ),
    Claim(
        key="1f",
        text="Training does not change that: its tables alone hold what a model knows of order.",
        source="ours: a consequence of the architecture",
        protocol=Protocol.AS_STATED,
        kind=Kind.EXPERIMENT,
        measured="1a for a model trained on sounds",
        side=Side.BELOW,
        threshold=1e-9,
        why=ROUNDING,
        core=False,
        control="the tables left in place",
    ),
    Claim(
        key="2a",
        text="Parameters of positions grow as the side of the input, not as its area.",
        source="ours: our reading of the abstract, where the trainable parameters scale linearly "
        "with the input size",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="distance from 1 of the exponent of the height, heights from 24 on, shape held",
        side=Side.BELOW,
        threshold=0.05,
        why="the two rows of class tokens bend the line by a hundredth",
        control="joint attention, with one table for all places",
    ),
    Claim(
        key="2b",
        text="Attention takes (h + w) / 2hw of the multiply-adds of joint attention.",
        source="ours: counted on the architecture",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="counted ratio over that formula, less 1; largest over grids from 24 × 32 on",
        side=Side.BELOW,
        threshold=0.1,
        why="the formula leaves out class tokens, which are 7 % of the scores at 24 × 32",
        control="joint attention in its place",
    ),
    Claim(
        key="2c",
        text="So attention grows as the third power of the side, not as the fourth.",
        source="ours: counted on the architecture",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="distance from 3 of the exponent of the height, as in 2a",
        side=Side.BELOW,
        threshold=0.05,
        why="class tokens bend the line by a few hundredths",
        core=False,
        control="joint attention",
    ),
    Claim(
        key="3a",
        text="Separable attention is more accurate than joint attention of equal size.",
        source=f"{PAPER}, abstract: outperforms vision transformers",
        protocol=Protocol.SCALED,
        kind=Kind.EXPERIMENT,
        measured="accuracy less that of joint attention over the same tokens of 2 × 2 bins, with "
        f"the same width, layers and steps; {FITTED}; paired over speakers whom no training clip "
        "is from, each the mean of up to eight seeds, or over seeds of made sounds",
        side=Side.ABOVE,
        threshold=0.0,
        why=SIGN,
        control=f"{SHUFFLED}, a seed a speaker",
    ),
    Claim(
        key="3b",
        text="Over single bins it is more accurate than joint attention over patches of 2 × 2 "
        "bins.",
        source=f"{PAPER}, abstract: outperforms vision transformers",
        protocol=Protocol.SCALED,
        kind=Kind.EXPERIMENT,
        measured=f"accuracy less that of the other, at equal steps; {SINGLE}; paired over speakers",
        side=Side.ABOVE,
        threshold=0.0,
        why=SIGN,
        core=False,
        control=SHUFFLED,
    ),
    Claim(
        key="3c",
        text="It is so at equal time, too.",
        source="ours: steps over single bins take longer",
        protocol=Protocol.SCALED,
        kind=Kind.EXPERIMENT,
        measured="the same difference, trained on bins for a third of the steps: the time that "
        f"patches take for all; {SINGLE}",
        side=Side.ABOVE,
        threshold=0.0,
        why=SIGN,
        core=False,
        control=SHUFFLED,
    ),
    Claim(
        key="3d",
        text="Over single bins it is more accurate than a linear model of them.",
        source="ours: a baseline",
        protocol=Protocol.SCALED,
        kind=Kind.EXPERIMENT,
        measured=f"accuracy less that of logistic regression on log bands; {SINGLE}; paired",
        side=Side.ABOVE,
        threshold=0.0,
        why=SIGN,
        core=False,
        control=SHUFFLED,
    ),
    Claim(
        key="3e",
        text="It reaches 70.5 % on CREMA-D, 98.5 % on Speech Commands v2, 91.1 % on ESC-50.",
        source=f"{PAPER}, results",
        protocol=Protocol.AS_STATED,
        kind=Kind.EXPERIMENT,
        measured="accuracy on these sets",
        side=Side.ABOVE,
        threshold=0.7,
        why="the least of the three",
        core=False,
    ),
    *(
        Claim(
            key=key,
            text=f"Trained as in 3a, {name} attention is at least as accurate as a linear model of "
            "the same bins.",
            source="ours: else the comparison is one of models that have not learned enough",
            protocol=Protocol.SCALED,
            kind=Kind.EXPERIMENT,
            measured=f"accuracy less that of logistic regression on log bands; {FITTED}; paired "
            "over speakers, or over seeds of made sounds",
            side=Side.ABOVE,
            threshold=-0.03,
            why="three points of accuracy are given away: about equal",
            core=False,
            control=SHUFFLED,
        )
        for key, name in (("3f", "separable"), ("3g", "joint"))
    ),
    Claim(
        key="4a",
        text="Rows are needed: within columns alone, time is lost.",
        source="ours: what the design of two axes rests on",
        protocol=Protocol.SCALED,
        kind=Kind.EXPERIMENT,
        measured="accuracy on made sounds less that of layers within columns alone, paired",
        side=Side.ABOVE,
        threshold=0.03,
        why=POINTS,
        core=False,
        control="the harmonic pattern alone, which columns show",
    ),
    Claim(
        key="4b",
        text="Columns are needed: within rows alone, pitch is lost.",
        source="ours: what the design of two axes rests on",
        protocol=Protocol.SCALED,
        kind=Kind.EXPERIMENT,
        measured="accuracy on made sounds less that of layers within rows alone, paired",
        side=Side.ABOVE,
        threshold=0.03,
        why=POINTS,
        core=False,
        control="the envelope alone, which rows show",
    ),
    Claim(
        key="5a",
        text="Which axis comes first does not matter.",
        source="ours: the paper's versions and its code name both orders",
        protocol=Protocol.SCALED,
        kind=Kind.EXPERIMENT,
        measured="size of the difference in accuracy between the two orders, made sounds, paired",
        side=Side.BELOW,
        threshold=0.03,
        why=POINTS,
        core=False,
        control="columns twice in place of columns and rows",
    ),
    Claim(
        key="5b",
        text="On speech, trained as in 3a, it does not matter which axis comes first.",
        source="ours: the paper's versions and its code name both orders",
        protocol=Protocol.SCALED,
        kind=Kind.EXPERIMENT,
        measured="size of the difference in accuracy between the two orders on the clips of 3a; "
        f"{FITTED}; paired",
        side=Side.BELOW,
        threshold=0.03,
        why=POINTS,
        core=False,
        control=SHUFFLED,
    ),
)
