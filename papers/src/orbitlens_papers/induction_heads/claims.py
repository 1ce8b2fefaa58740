"""The claims of arXiv 2409.10559 as statements with thresholds.

Of the paper the abstract, a summary and the released experiments were read, not the theorem texts.
"""

from orbitlens_papers.claim import Claim, Kind, Protocol, Side

PAPER = "arXiv 2409.10559"
ONE_LAYER = "one layer instead of two, trained alike"
BY_HAND = "a model of two layers whose weights are set by hand"
MIXED = "contexts in random order, in training and in testing"


def _selector(key: str, chain: str) -> Claim:
    return Claim(
        key=key,
        text=f"Selector: the first stage picks the parents {chain} among all sets of up to two "
        "heads.",
        source=f"{PAPER}, abstract; stages trained one after another",
        protocol=Protocol.SCALED,
        kind=Kind.THEORY,
        measured="share c²/Σc² of the parents' set after stage one",
        bounds=(0.0, 1.0),
        side=Side.ABOVE,
        threshold=0.9,
        why="the paper's limit is 1; nine tenths leaves room for the end of a finite run",
        control="contexts in random order, four a seed: no set says more than another",
    )


def _copier(key: str, chain: str) -> Claim:
    return Claim(
        key=key,
        text=f"Copier: in stage two the heads of the parents {chain} each settle on one lag.",
        source=f"{PAPER}, abstract; stages trained one after another",
        protocol=Protocol.SCALED,
        kind=Kind.THEORY,
        bounds=(0.0, 1.0),
        measured="weight of head h on lag h after stage two, the least over parents; 0.85 to 0.9 "
        "before",
        side=Side.ABOVE,
        threshold=0.95,
        why="half of what was missing before training is gone",
        control="heads that start alike, which nothing tells apart",
    )


def _classifier(key: str, chain: str) -> Claim:
    return Claim(
        key=key,
        text=f"Classifier: after stage three, predictions with parents {chain} are nearly those of "
        "counting n-grams in the context.",
        source=f"{PAPER}, abstract; stages trained one after another",
        protocol=Protocol.SCALED,
        kind=Kind.THEORY,
        measured="held-out loss over that of the n-gram estimator in the context (0.1 added to "
        "every count)",
        side=Side.BELOW,
        threshold=1.25,
        why="a quarter: the model's kernel is softer than counting; unigrams lie near 3",
        control=MIXED,
    )


CLAIMS: tuple[Claim, ...] = (
    _selector("1a", "{1, 2}"),
    _selector("1b", "{1, 3}"),
    _copier("2a", "{1, 2}"),
    _copier("2b", "{1, 3}"),
    _classifier("3a", "{1, 2}"),
    _classifier("3b", "{1, 3}"),
    Claim(
        key="3c",
        text="They are far from those of counting single tokens.",
        source="ours: a boundary that 3a and 3b need",
        protocol=Protocol.SCALED,
        kind=Kind.THEORY,
        measured="held-out loss over that of the unigram estimator in the context, the larger of "
        "the two parent sets",
        side=Side.BELOW,
        threshold=0.5,
        why="half: the order of tokens is worth more than their frequencies",
        control=MIXED,
    ),
    Claim(
        key="3d",
        text="In the third stage the scale a of the second layer's attention grows throughout.",
        source=f"{PAPER}, in summary; stages trained one after another",
        protocol=Protocol.SCALED,
        kind=Kind.THEORY,
        measured="factor by which a grew under plain gradient descent, 0 if it ever fell; the "
        "least over runs",
        side=Side.ABOVE,
        threshold=100.0,
        why="from 0.01 to 1, where matches first weigh e times as much as others",
        control=MIXED,
    ),
    Claim(
        key="3e",
        text="The selector needs products of heads: with one head a feature, the model cannot "
        "count n-grams.",
        source="ours: no set of one lag holds both parents",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="held-out loss of the model of degree 1 over that of the n-gram estimator, the "
        "smaller of the two parent sets",
        side=Side.ABOVE,
        threshold=1.5,
        why="half as much again: clearly worse than 1.25, which 3a and 3b allow",
        core=False,
        control="degree 2",
    ),
    Claim(
        key="4a",
        text="The stages come in this order by themselves when all weights are trained at once.",
        source=f"{PAPER}, released experiments",
        protocol=Protocol.SCALED,
        kind=Kind.EXPERIMENT,
        measured="share of runs in which the parents' share passes 0.8 before the least lag weight "
        "passes 0.95, and that before a passes 1",
        side=Side.ABOVE,
        threshold=0.5,
        why="half: at least the typical run",
        core=False,
    ),
    Claim(
        key="5a",
        text="The trained model counts n-grams in contexts four times as long.",
        source=f"{PAPER}, released experiments",
        protocol=Protocol.SCALED,
        kind=Kind.EXPERIMENT,
        measured="loss over that of the n-gram estimator at 400 tokens, without more training; the "
        "larger of the two parent sets",
        side=Side.BELOW,
        threshold=1.1,
        why="a tenth: an algorithm, not a memory of lengths",
        control="those contexts in random order",
    ),
    Claim(
        key="5b",
        text="It does so on laws that are less fixed than those it was trained on.",
        source=f"{PAPER}, released experiments",
        protocol=Protocol.SCALED,
        kind=Kind.EXPERIMENT,
        measured="loss over that of the n-gram estimator at Dirichlet α = 0.3, trained at 0.1; the "
        "larger of the two parent sets",
        side=Side.BELOW,
        threshold=1.1,
        why="a tenth, as for 5a",
        control="those contexts in random order",
    ),
    Claim(
        key="6a",
        text="The set that is picked is the one with the most modified χ² information.",
        source="ours: the modification of χ² as we derive it, not as the paper words it",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="modified χ² information of the parents over that of the best other set of up to "
        "three lags, from long sequences; the smaller of the two parent sets",
        side=Side.ABOVE,
        threshold=1.05,
        why="a twentieth ahead: more than a tie",
        core=False,
        control="the same tokens in random order",
    ),
    Claim(
        key="6b",
        text="Plain χ² information picks it too.",
        source="ours: a stronger reading of 6a, in which a larger set never says less",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="the same with plain χ² information",
        side=Side.ABOVE,
        threshold=1.05,
        why="as for 6a",
        core=False,
        control="the same tokens in random order",
    ),
    Claim(
        key="7a",
        text="A two-layer transformer whose weights are all trained at once, on sequences that "
        "each draw their lag anew, forms an induction head.",
        source="ours: the paper's head where no stage is put in and no fixed distance helps",
        protocol=Protocol.SCALED,
        kind=Kind.EXPERIMENT,
        measured="attention of the best head of layer two, in the second pass, to the place "
        "behind the present token's earlier occurrence, less the same where the second pass has "
        "its tokens in another order (a head that looks back by a distance scores 0)",
        side=Side.ABOVE,
        threshold=0.5,
        why="half of all the attention there is; chance cancels in the difference",
        control=ONE_LAYER,
        positive=BY_HAND,
    ),
    Claim(
        key="7b",
        text="It predicts by it.",
        source="ours: the paper's head where no stage is put in and no fixed distance helps",
        protocol=Protocol.SCALED,
        kind=Kind.EXPERIMENT,
        bounds=(0.0, 1.0),
        measured="share of next tokens that are right from the second pass on, fresh sequences",
        side=Side.ABOVE,
        threshold=0.9,
        why="nine in ten; guessing among 24 symbols gives one in 24",
        control=ONE_LAYER,
        positive=BY_HAND,
    ),
    Claim(
        key="7c",
        text="Its first layer copies the token in front: without that place it cannot predict.",
        source="ours: the copier of the paper, tested by taking it away",
        protocol=Protocol.SCALED,
        kind=Kind.EXPERIMENT,
        measured="accuracy of 7b less that with the place one back hidden from layer one",
        side=Side.ABOVE,
        threshold=0.5,
        why="half of all predictions: the mechanism, not a part of it",
        core=False,
        control="the place two, three or four back hidden instead, the largest loss",
        positive=BY_HAND,
    ),
    Claim(
        key="7d",
        text="It predicts at lags that it was never trained on.",
        source="ours: what matches tokens does not know distances",
        protocol=Protocol.SCALED,
        kind=Kind.EXPERIMENT,
        bounds=(0.0, 1.0),
        measured="accuracy of 7b at odd lags, trained on even ones",
        side=Side.ABOVE,
        threshold=0.8,
        why="four in five: a head for trained distances would be right no more often than chance",
        core=False,
        control=ONE_LAYER,
        positive=BY_HAND,
    ),
    Claim(
        key="7e",
        text="There the copier comes before the induction head by itself.",
        source="ours: the order of the paper's stages, in a model trained as a whole",
        protocol=Protocol.SCALED,
        kind=Kind.EXPERIMENT,
        measured="share of runs in which layer one's attention to the token in front is half-way "
        "from its first to its last value before the score of 7a is",
        side=Side.ABOVE,
        threshold=0.5,
        why="half: at least the typical run",
        core=False,
    ),
)
