"""The claims of arXiv 2410.08711 as statements with thresholds, fixed before the stored run.

Of the paper the abstract was read, and a summary; what attention its chip computes, how wide its
numbers are and its accuracies were not at hand. Numbers of the claims below are our own.
"""

from orbitlens_papers.claim import Claim, Side

PAPER = "arXiv 2410.08711"
SHUFFLED = "context labels drawn at random"
HELD = "classes that no training episode had: whole alphabets of Omniglot, letters of the glyphs"

SMALL = ("omniglot_small1.zip", "omniglot_small2.zip")
RUNS = "omniglot_oneshot_runs.zip"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        key="1a",
        text="Attention is local plasticity: a token at a time, by two-factor and three-factor "
        "rules, gives what attention over the whole context gives; single precision.",
        source=f"{PAPER}, abstract",
        measured="largest difference of logits after any token of a context, linear attention by a "
        "state and softmax attention by slots; float32",
        side=Side.BELOW,
        threshold=1e-4,
        why="rounding of sums of 25 terms; logits are of the size of 10",
        control="synapses that lose a tenth per token",
    ),
    Claim(
        key="1b",
        text="The same in double precision: the two are one computation.",
        source=f"{PAPER}, abstract",
        measured="the same, float64",
        side=Side.BELOW,
        threshold=1e-10,
        why="rounding leaves 1e-14",
        control="synapses that lose a tenth per token",
    ),
    Claim(
        key="1c",
        text="The rules are local: a synapse reads the neuron in front, the one behind and at most "
        "one broadcast signal.",
        source=f"{PAPER}: two- and three-factor rules",
        measured="synapses whose change is not the same to the last bit once every other neuron "
        "and weight is drawn anew; both rules",
        side=Side.BELOW,
        threshold=0.5,
        why="a count: none is allowed",
        control="the delta rule, which needs what a whole row of synapses adds up to",
    ),
    Claim(
        key="2a",
        text="With frozen weights the context alone teaches new classes.",
        source=f"{PAPER}, abstract: few-shot classification",
        measured=f"accuracy, 5 classes, 5 drawings each; {HELD}",
        side=Side.ABOVE,
        threshold=0.9,
        why="nine in ten, where guessing has two",
        control=SHUFFLED,
    ),
    Claim(
        key="2b",
        text="More examples teach more.",
        source=f"{PAPER}: learning from the context",
        measured="accuracy with 5 drawings per class less that with 1",
        side=Side.ABOVE,
        threshold=0.02,
        why="two points: more than the noise of some thousand episodes",
        control=SHUFFLED,
    ),
    Claim(
        key="2c",
        text="What was trained is of use: it beats the nearest picture by pixels.",
        source=f"{PAPER}: the importance of pretraining",
        measured="accuracy with 5 drawings per class less that of the nearest neighbour in pixels",
        side=Side.ABOVE,
        threshold=0.2,
        why="a fifth: not a matter of chance or of tuning",
        control="the same model before any training",
    ),
    Claim(
        key="2d",
        text="The softmax can be left out.",
        source="ours: the simplest rule is enough; a softmax over slots is no local read",
        measured="accuracy of softmax attention, trained alike, less that of linear; 5 drawings",
        side=Side.BELOW,
        threshold=0.02,
        why="two points, as for narrow numbers",
        core=False,
        control="linear attention from random labels",
    ),
    Claim(
        key="2e",
        text="A decoder of two layers over single tokens (picture, label, picture, label, ...) "
        "learns to learn, too, without values and keys being wired to labels and pictures.",
        source=f"{PAPER}: a decoder-only transformer",
        measured="accuracy at the last picture, 5 classes, 5 drawings each; plastic attention",
        side=Side.ABOVE,
        threshold=0.5,
        why="half: far above the fifth that guessing has",
        core=False,
        control=SHUFFLED,
    ),
    Claim(
        key="3a",
        text="Whole numbers of 8 bits are enough for keys, queries, values and synapses.",
        source=f"{PAPER}: runs on Loihi 2, which has narrow integers",
        measured="accuracy lost, the larger loss of 1 and 5 drawings per class",
        side=Side.BELOW,
        threshold=0.02,
        why="two points",
        control="2 bits: −1, 0 and 1",
    ),
    Claim(
        key="3b",
        text="So are 6 bits.",
        source="ours",
        measured="the same, 6 bits",
        side=Side.BELOW,
        threshold=0.02,
        why="two points",
        core=False,
        control="2 bits: −1, 0 and 1",
    ),
    Claim(
        key="3c",
        text="So are 4 bits.",
        source="ours",
        measured="the same, 4 bits",
        side=Side.BELOW,
        threshold=0.02,
        why="two points",
        core=False,
        control="2 bits: −1, 0 and 1",
    ),
    Claim(
        key="4a",
        text="Nothing but the context tells: with labels at random, accuracy is that of guessing.",
        source="ours: the slow weights could have stored classes",
        measured="distance of accuracy from 0.2, the larger of 1 and 5 drawings per class",
        side=Side.BELOW,
        threshold=0.04,
        why="chance, within what some thousand episodes leave open",
        control="true labels",
    ),
    Claim(
        key="5a",
        text="The state is a sum: the order of the context does not matter.",
        source="ours: linear attention without positions",
        measured="largest change of logits under permutations of the context; float64",
        side=Side.BELOW,
        threshold=1e-10,
        why="rounding of a sum in another order leaves 1e-14",
        control="synapses that lose a tenth per token",
    ),
    Claim(
        key="5b",
        text="Synapses that fade make a clock: what came last is remembered best.",
        source="ours: the time constant of plasticity as an encoding of place",
        measured="share of right answers for the class shown last less that for the one shown "
        "first, one drawing per class, a fifth lost per token",
        side=Side.ABOVE,
        threshold=0.1,
        why="a tenth",
        core=False,
        control="synapses that do not fade",
    ),
    Claim(
        key="6a",
        text="From random maps the learner stays at chance for as long: what is trained is a way "
        "to learn, and it is hard to find.",
        source="found while the study was designed",
        measured="accuracy with 5 drawings per class after the same training, query, key, value "
        "and readout maps random at first instead of identities",
        side=Side.BELOW,
        threshold=0.3,
        why="a tenth above guessing",
        core=False,
        control="identities",
    ),
    Claim(
        key="7a",
        text="On Omniglot's official one-shot test it beats matching of outlines.",
        source="the test and its baseline: Lake, Salakhutdinov and Tenenbaum, 2015",
        measured="error of the learner less that of the modified Hausdorff distance, both computed "
        "here on the same 400 questions, 20 classes a question",
        side=Side.BELOW,
        threshold=0.0,
        why="fewer errors",
        core=False,
        control="the same model before any training",
    ),
    Claim(
        key="8a",
        text="The state is one step of gradient descent on a linear readout, from zero, on half "
        "the squared error: what a context writes is what backpropagation would.",
        source="known of linear attention (arXiv 2212.07677); the paper's 'backpropagation free'",
        measured="largest difference between logits of the state and of the step; float64",
        side=Side.BELOW,
        threshold=1e-10,
        why="rounding leaves 1e-14",
        core=False,
        control="the step on cross-entropy",
    ),
    Claim(
        key="9a",
        text="On Loihi 2 it runs, and saves energy and time.",
        source=f"{PAPER}: demonstrated on the chip",
        measured="energy and latency per token",
        side=Side.BELOW,
        threshold=1.0,
        why="as much as a conventional processor takes",
        core=False,
    ),
)
