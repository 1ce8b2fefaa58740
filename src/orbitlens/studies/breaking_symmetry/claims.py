"""The claims of arXiv 2402.05969 as statements with thresholds, fixed before any run."""

from orbitlens.studies.claim import Claim, Side

PAPER = "arXiv 2402.05969"
ROUNDING = "float64 rounding leaves 1e-15; ten million times that is still below any real effect"
REAL = "a thousand times the bound for invariance is no rounding; random weights reach 0.02 or more"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        key="1a",
        text="With a full mask and no position encoding, the prediction does not depend on the "
        "order of the earlier tokens.",
        source=f"{PAPER}; proved as S1",
        measured="largest relative change of the prediction under permutations of tokens 1 … n − "
        "1, over depths, residual settings and random weights",
        side=Side.BELOW,
        threshold=1e-8,
        why=ROUNDING,
        control="a causal mask and two layers",
    ),
    Claim(
        key="2a",
        text="A position encoding breaks that symmetry, under a full mask and in one layer.",
        source=PAPER,
        measured="smallest relative change of the prediction over five encodings and random "
        "weights",
        side=Side.ABOVE,
        threshold=1e-5,
        why=REAL,
        control="no encoding",
    ),
    Claim(
        key="2b",
        text="A causal mask breaks it without any encoding, given two layers.",
        source=PAPER,
        measured="smallest relative change of the prediction over depths of two or more",
        side=Side.ABOVE,
        threshold=1e-5,
        why=REAL,
        control="one layer",
    ),
    Claim(
        key="2c",
        text="A causal mask alone needs depth: with one layer the order of the earlier tokens is "
        "still invisible.",
        source="theory, S2",
        measured="largest relative change of the prediction, one causal layer, any residuals and "
        "norm",
        side=Side.BELOW,
        threshold=1e-8,
        why=ROUNDING,
        control="two layers",
    ),
    Claim(
        key="2d",
        text="The mask breaks the symmetry without any residual connection.",
        source="theory, S2",
        measured="smallest relative change of the prediction, two causal layers, no residuals",
        side=Side.ABOVE,
        threshold=1e-5,
        why=REAL,
        core=False,
        control="one layer",
    ),
    Claim(
        key="4a",
        text="Position can be read off the states of a causal model without encoding, at random "
        "weights, in the first two layers.",
        source=f"{PAPER}; arXiv 2501.00073",
        measured="held-out R² of a linear probe for the position, best of layers 1 and 2",
        side=Side.ABOVE,
        threshold=0.1,
        why="a probe that knows nothing has R² of 0 or less on held-out inputs; a tenth of the "
        "variance is out of its reach",
        control="full attention",
    ),
    Claim(
        key="4b",
        text="There, states of neighbours are more alike than others.",
        source="arXiv 2501.00073",
        measured="how often a neighbour's state is closer than another one, best of layers 1 and 2",
        side=Side.ABOVE,
        threshold=0.53,
        why="chance is 0.5; three points above it is six standard deviations of a random model",
        control="full attention",
    ),
    Claim(
        key="5a",
        text="Slices stand for their tokens: token k is read off slice k better than any other.",
        source=PAPER,
        measured="accuracy for the own token less the best other one, last layer, untrained",
        side=Side.ABOVE,
        threshold=0.05,
        why="the best of many noisy probes leads by chance; five points are more than shuffled "
        "labels ever give",
        control="labels shuffled over inputs",
    ),
    Claim(
        key="6a",
        text="Residual connections contribute to that.",
        source=f"{PAPER} (hypothesis)",
        measured="the lead of 5a with all residuals less that with none",
        side=Side.ABOVE,
        threshold=0.1,
        why="twice the lead that 5a asks for: a difference of two leads is noisier than one",
        control="labels shuffled over inputs",
    ),
)
