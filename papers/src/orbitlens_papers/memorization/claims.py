"""The claims of arXiv 2409.17677 as statements with thresholds, fixed before the stored run.

Of the paper the abstract and summaries were read, not the proofs; the construction here is our own,
after the idea of bit extraction, and is run in whole numbers.
"""

from orbitlens_papers.claim import Claim, Side

PAPER = "arXiv 2409.17677"
EXACT = "one wrong label is one too many"
STAIRS = "the plain reference, a staircase with two ReLU units an id"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        key="1a",
        text="One token-wise map, one uniform attention layer and a ReLU network recall the random "
        "labels of N sequences, every one.",
        source=f"{PAPER}, abstract",
        measured="wrong labels of any network, N from 16 on, 8 tokens per sequence, 8 labels",
        side=Side.BELOW,
        threshold=0.5,
        why=EXACT,
        control="attention that sees the last token alone",
    ),
    Claim(
        key="2a",
        text="They need about √N parameters: the log-log slope lies between 0.45 and 0.70.",
        source=f"{PAPER}, abstract: Õ(√N) suffices",
        measured="distance of the slope of the network's parameter count over N from 0.575, the "
        "middle of that range",
        side=Side.BELOW,
        threshold=0.125,
        why="a half and room for logarithms, which add to the slope at these N",
        control=STAIRS,
    ),
    Claim(
        key="2b",
        text="Divided by log N the slope lies between 0.35 and 0.55: √N up to logarithms.",
        source=f"{PAPER}, abstract: Õ(√N) suffices",
        measured="distance of the slope of P / log₂ N from 0.45, the middle of that range",
        side=Side.BELOW,
        threshold=0.1,
        why="the logarithm is that of ids, 4nN², and grows slower than log N itself at these N",
        control=STAIRS,
    ),
    Claim(
        key="2c",
        text="The plain reference needs parameters in proportion to N.",
        source="a staircase has two steps an id",
        measured="distance of its slope from 1",
        side=Side.BELOW,
        threshold=0.02,
        why="a count, not a measurement: only its constants may show",
        core=False,
        control="the construction",
    ),
    Claim(
        key="2d",
        text="No network makes do with less than about √N parameters.",
        source=f"{PAPER}, abstract: optimal up to logarithms",
        measured="nothing: the bound by counting is printed beside P",
        side=Side.ABOVE,
        threshold=1.0,
        why="a network below the bound would refute it",
        core=False,
    ),
    Claim(
        key="3a",
        text="The length of sequences hardly matters.",
        source=f"{PAPER}, abstract",
        measured="largest parameter count over the smallest, at lengths from 4 on, N fixed",
        side=Side.BELOW,
        threshold=1.3,
        why="ids grow by log₂ n bits, which is a fifth from 4 to 256 tokens",
        control="one label per token instead of one per sequence",
    ),
    Claim(
        key="3b",
        text="With one label per token they need about √(nN): the slope over n lies between 0.40 "
        "and 0.75.",
        source=f"{PAPER}, abstract: Õ(√(nN)) suffices",
        measured="distance of the slope of P over n, N fixed, from 0.575, the middle of that range",
        side=Side.BELOW,
        threshold=0.175,
        why="a half and room for logarithms",
        control="one label per sequence",
    ),
    Claim(
        key="3c",
        text="The same construction recalls one label per token, and sequences of any length.",
        source=f"{PAPER}, abstract",
        measured="wrong labels of any network, over lengths",
        side=Side.BELOW,
        threshold=0.5,
        why=EXACT,
        control="ids of the context alone, without the token's own",
    ),
    Claim(
        key="4a",
        text="The price is the length of weights, about √N log N bits.",
        source="the construction: a weight packs √N ids",
        measured="distance of the slope of the longest weight's bits over N from 0.625, the middle "
        "of 0.50 to 0.75",
        side=Side.BELOW,
        threshold=0.125,
        why="a half and room for a logarithm",
        core=False,
        control=STAIRS,
    ),
    Claim(
        key="4b",
        text="In float64 the construction breaks at N = 64.",
        source="53 bits hold no weight of 136; products of weights with what units hold are longer "
        "still, so that N = 16 with its 52 bits breaks too",
        measured="smallest share of wrong labels, N = 64, every number a float64",
        side=Side.ABOVE,
        threshold=0.01,
        why="less than one label of 64",
        core=False,
        control="N = 4, whose products fit",
    ),
    Claim(
        key="5a",
        text="Trained transformers need about as many parameters for long sequences as for short.",
        source=f"{PAPER}, abstract, read as a statement about training",
        measured="largest over smallest of the fewest parameters that reach 99 %, at 4, 16 and 64 "
        "tokens a sequence; mean over seeds",
        side=Side.BELOW,
        threshold=2.0,
        why="a factor of two, where proportion to n would be one of 16",
        core=False,
        control="one label per token",
    ),
    Claim(
        key="5b",
        text="With one label per token they need more for long sequences.",
        source=f"{PAPER}, abstract, read as a statement about training",
        measured="the fewest parameters at 64 tokens over those at 4; mean over seeds",
        side=Side.ABOVE,
        threshold=2.5,
        why="√16 is 4; 2.5 is beyond the factor of two of 5a",
        core=False,
        control="one label per sequence",
    ),
    Claim(
        key="5c",
        text="They do not follow √N: with floats of fixed length, parameters grow like labels.",
        source="counting: N labels of 3 bits do not fit fewer than 3N bits",
        measured="slope of the fewest parameters that reach 99 % over N; mean over seeds",
        side=Side.ABOVE,
        threshold=0.75,
        why="half way between the root and proportion",
        core=False,
        control="the construction, for the same N",
    ),
    Claim(
        key="6a",
        text="Permuted sequences have one id; a map of token and place tells them apart.",
        source="symmetry of uniform attention",
        measured="wrong labels of any network for sequences in families of four orders, a label "
        "each",
        side=Side.BELOW,
        threshold=0.5,
        why=EXACT,
        core=False,
        control="a map of the token alone",
    ),
)
