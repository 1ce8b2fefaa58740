"""Induction heads (arXiv 2409.10559): copier, selector and classifier, one after another."""

from orbitlens_papers.claim import Kind
from orbitlens_papers.induction_heads.claims import CLAIMS
from orbitlens_papers.study import Study, parts_of

STUDY = Study(
    name="induction-heads",
    title="Unveiling Induction Heads",
    paper="arXiv 2409.10559",
    question="Does training on n-gram Markov chains build an induction head (copy, select, "
    "classify) when its parts are trained one after another, in the order of the paper's proof? "
    "That order is part of the set-up; claims 4a and 7e ask whether it comes by itself.",
    given=dict.fromkeys(Kind, "stages trained one after another, in the paper's order"),
    gap="The model of claims 1 to 6 is the paper's simplified one: weights of the first layer "
    "depend on the lag alone and start near it, and stages are trained one after another. Claims "
    "7 are about two layers of attention trained as a whole on exact copies at random lags: no "
    "n-gram law, no MLP. That a transformer of today forms its induction heads so is not shown. "
    "Theorem texts were not read.",
    read="abstract, summary, released experiments",
    at="The paper's simplified model with 200, 150 and 400 steps in its three stages, trained one "
    "after another. Two layers of width 32 and 500 steps for claims 7, on lags of 8 to 24 in 48 "
    "tokens of 24 symbols.",
    claims=CLAIMS,
    parts=parts_of(__name__),
    minutes=20,
)

__all__ = ["CLAIMS", "STUDY"]
