"""The claims of arXiv 2512.03058 as statements with thresholds.

Of the paper the abstract and the released experiments were read, not the theorem texts; statements
marked "theory" are derived in docs/certificates.md and agree with those experiments.
"""

from orbitlens_papers.claim import Claim, Kind, Protocol, Side

PAPER = "arXiv 2512.03058"
NINE = "claimed of all systems; nine in ten leaves room for runs that end before they decide"
NATS = 0.01
SMALL = "a hundredth of a nat: less would not matter to anybody"
SHUFFLED = "a text with its characters shuffled, in which there is nothing to learn"
NOISE = "images of noise with random labels, of which there is nothing to learn"

EXPERIMENTS = f"{PAPER}, released experiments; layers are rebuilt from their formulas"
SOURCES = {
    **dict.fromkeys(("6a", "6b", "7a", "7b", "7c"), EXPERIMENTS),
    **dict.fromkeys(("6c", "6d"), "ours: the paper has no rotary runs of the three scenarios"),
    "7d": "ours: the paper has no rotary runs on images",
    "6e": "ours: the signs that the theorem speaks of (docs/studies-arms.md, T1)",
    "7e": "ours: asked after 7a was known",
}
AVERAGING = "every head averages over all tokens it sees, against the plain model"

PLAIN, NEGATIVE, POSITIVE = "the plain model", "“released-negative”", "“released-positive”"


def _worth(key: str, text: str, one: str, other: str, *, core: bool = True) -> Claim:
    """Return a claim about two trained models: the second loses less than the first."""
    return Claim(
        key=key,
        text=f"{text}.",
        source=SOURCES[key],
        protocol=Protocol.PROXY if key in {"6c", "6d"} else Protocol.SCALED,
        kind=Kind.EXPERIMENT,
        positive=AVERAGING if core else "",
        measured=f"held-out loss of {one} less that of {other}, nats, paired",
        side=Side.ABOVE,
        threshold=NATS,
        why=SMALL,
        core=core,
        control=(NOISE if "images" in text else SHUFFLED) if core else "",
    )


CLAIMS: tuple[Claim, ...] = (
    Claim(
        key="1a",
        text="W and A = WV⁻¹ symmetric positive definite: tokens diverge.",
        source=f"{PAPER}, abstract (tokens converge to zero or diverge) and released scenarios; "
        "proved here as T2, docs/certificates.md",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="share of random systems whose cloud grows without end",
        side=Side.ABOVE,
        threshold=0.9,
        why=NINE,
        control="A with its sign turned",
    ),
    Claim(
        key="1b",
        text="There, distances between tokens, measured by A, never shrink.",
        source="ours: theorem T1",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="largest relative fall of any pair's distance between two moments",
        side=Side.BELOW,
        threshold=1e-5,
        why="the integrator's relative tolerance is 1e-10; differences lose a few digits of it",
        control="a causal mask, which voids T1",
    ),
    Claim(
        key="1c",
        text="A symmetric negative definite: all tokens converge to zero.",
        source=f"{PAPER}, abstract (tokens converge to zero or diverge) and released scenarios; "
        "proved here as T2, docs/certificates.md",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="share of random systems whose cloud shrinks",
        side=Side.ABOVE,
        threshold=0.9,
        why=NINE,
        control="A with its sign turned",
    ),
    Claim(
        key="1d",
        text="They do so like t^(−1/2).",
        source="ours: theorem T2",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="mean of |fitted exponent + 1/2| over the last decade of time",
        side=Side.BELOW,
        threshold=0.05,
        why="a tenth of the exponent; t^(−1/3) or t^(−1) would be far outside",
        control="a causal mask: decay is exponential, and no power fits",
    ),
    Claim(
        key="1e",
        text="A symmetric and indefinite: mixed, growing along some directions while shrinking "
        "along others.",
        source=f"{PAPER}, the released scenarios, in summary",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="share of systems whose variance, by t = 2, has grown in one direction and shrunk "
        "in another",
        side=Side.ABOVE,
        threshold=0.9,
        why=NINE,
        control="A positive definite",
    ),
    Claim(
        key="1f",
        text="Plain distances between tokens never shrink either when A is positive definite.",
        source="ours: a stronger reading of 1b",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="share of systems in which no plain distance ever falls",
        side=Side.ABOVE,
        threshold=0.99,
        why="“never” allows no exception beyond the sample's own uncertainty",
        core=False,
    ),
    Claim(
        key="1g",
        text="A indefinite: the cloud as a whole stays between growing and shrinking for good.",
        source="ours: a stronger reading of 1e",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="share of systems whose size has neither doubled nor halved at the end",
        side=Side.ABOVE,
        threshold=0.5,
        why="half: at least the typical system",
        core=False,
    ),
    Claim(
        key="2a",
        text="The sign of A predicts the regime when W and A are symmetric.",
        source=f"{PAPER}, abstract and the released scenarios; proved here as T2, "
        "docs/certificates.md",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="share of definite systems whose fate is the predicted one",
        side=Side.ABOVE,
        threshold=0.9,
        why=NINE,
        control="the sign of −A",
    ),
    Claim(
        key="2b",
        text="It still does when W and A have strong antisymmetric parts.",
        source="ours: the released experiments allow such parts, and the proof needs symmetry",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="share of definite systems, antisymmetric parts four times a random matrix's, "
        "whose fate is the predicted one",
        side=Side.ABOVE,
        threshold=0.9,
        why=NINE,
        core=False,
        control="the sign of −A",
    ),
    Claim(
        key="2c",
        text="It still does under a causal mask.",
        source="ours: theorem T2, proved when W is symmetric",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="share of definite systems, symmetric, causal, whose fate is the predicted one",
        side=Side.ABOVE,
        threshold=0.9,
        why=NINE,
        core=False,
        control="the sign of −A",
    ),
    Claim(
        key="3a",
        text="Absolute encodings added at the input do not change the regime.",
        source=f"{PAPER}, abstract names the question; the statement is that of a summary",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="share of definite systems with the same fate with and without them",
        side=Side.ABOVE,
        threshold=0.9,
        why=NINE,
        control="encodings added again at every depth",
    ),
    Claim(
        key="3b",
        text="Added at every depth they move the limit from 0 to −p_i: tokens stay apart.",
        source="ours: theory, section 1",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="largest distance of a token from −p_i at t = 5,000, relative to the largest p",
        side=Side.BELOW,
        threshold=0.05,
        why="t^(−1/2) leaves 0.014 of a unit at that time; a token left at 0 would give 1",
        control="encodings added at the input only",
    ),
    Claim(
        key="4a",
        text="Rotary encodings void the theorem on pairs: distances measured by A can shrink.",
        source=f"{PAPER}, abstract names the question; the statement is that of a summary",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="share of systems with A positive definite in which some such distance falls",
        side=Side.ABOVE,
        threshold=0.5,
        why="the typical system, not an exception",
        control="no rotary encoding",
    ),
    Claim(
        key="4b",
        text="How much a rotary encoding slows the growth and decay of distances is what the "
        "closure says.",
        source="ours: theorem T6 with rotary encodings",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="mean gap between simulated and predicted log-change of pair distances, over "
        "bases, contexts and both signs, relative to the change without encoding",
        side=Side.BELOW,
        threshold=0.1,
        why="1,000 tokens see themselves, which the closure leaves out: some per cent",
        control="a closure that ignores the encoding",
    ),
    Claim(
        key="4c",
        text="The longer the context, the slower both are.",
        source=f"{PAPER}, abstract names the question; the statement is that of a summary",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="log-change in the longest context over that in the shortest, W = I",
        side=Side.BELOW,
        threshold=0.8,
        why="a fifth less is more than the closure's own error",
        control="no rotary encoding",
    ),
    Claim(
        key="4d",
        text="So they are in the heads of trained models.",
        source="ours: a stronger reading of 4c",
        protocol=Protocol.AS_STATED,
        kind=Kind.EXPERIMENT,
        measured="share of rotary heads whose rates a context makes smaller",
        side=Side.ABOVE,
        threshold=0.9,
        why="claimed of all heads; one in ten is left for exceptions",
        core=False,
    ),
    Claim(
        key="5a",
        text="What heads of trained models do to distances between tokens follows from their "
        "weights and the statistics of other text.",
        source="ours: theorem T6 and what docs/trace.md makes of it",
        protocol=Protocol.AS_STATED,
        kind=Kind.EXPERIMENT,
        measured="correlation of predicted and measured log-changes over heads, each model about "
        "its own mean",
        side=Side.ABOVE,
        threshold=0.5,
        why="a quarter of the variance; the goal of tracing is 0.8 on longer texts",
        control="predictions shuffled over the heads of a model",
    ),
    Claim(
        key="5b",
        text="The attention of trained layers shortens raw distances between tokens.",
        source="ours: a reading of the paper's motive, not a statement of it",
        protocol=Protocol.AS_STATED,
        kind=Kind.EXPERIMENT,
        measured="share of layers whose attention makes pair distances smaller, on text",
        side=Side.ABOVE,
        threshold=0.5,
        why="half: at least the typical layer",
        core=False,
    ),
    _worth("6a", "Convergence hurts, absolute encoding, language modelling", NEGATIVE, POSITIVE),
    _worth("6b", "Convergence hurts, absolute encoding, images", NEGATIVE, POSITIVE),
    _worth("6c", "Convergence hurts, rotary encoding, language modelling", "“anti”", "“guard”"),
    _worth("6d", "Convergence hurts, rotary encoding, images", "“anti”", "“guard”"),
    _worth(
        "6e",
        "It does where the signs are those of the maps that heads apply, language modelling",
        "“theorem-negative”",
        "“theorem-positive”",
        core=False,
    ),
    _worth(
        "7a",
        "The definite refinement helps, absolute encoding, language modelling",
        PLAIN,
        POSITIVE,
    ),
    _worth("7b", "The definite refinement helps, absolute encoding, images", PLAIN, POSITIVE),
    _worth(
        "7c",
        "The diagonal refinement helps, rotary encoding, language modelling",
        PLAIN,
        "“diagonal”",
    ),
    _worth("7d", "The diagonal refinement helps, rotary encoding, images", PLAIN, "“diagonal”"),
    _worth(
        "7e",
        "The definite refinement of 7a also helps against the plain model from wider first weights",
        "the plain model (deviation 0.1 at the start)",
        "“released-positive” (0.02)",
        core=False,
    ),
)
