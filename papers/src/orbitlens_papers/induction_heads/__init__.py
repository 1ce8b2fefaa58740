"""Induction heads (arXiv 2409.10559): copier, selector and classifier, learnt one after another."""

from orbitlens_papers.induction_heads.claims import CLAIMS
from orbitlens_papers.study import Study, parts_of

STUDY = Study(
    name="induction-heads",
    title="Unveiling Induction Heads",
    paper="arXiv 2409.10559",
    question="Does training on n-gram Markov chains build an induction head: copy, select, "
    "classify, in that order?",
    gap="The model is the paper's simplified one: weights of the first layer depend on the lag "
    "alone and start near it, and stages are trained one after another. That a transformer of "
    "today forms its induction heads so is not shown. Theorem texts were not read.",
    read="abstract, summary, released experiments",
    at="The paper's simplified model with 200, 150 and 400 steps in its three stages, trained one "
    "after another: that order is put in, and whether it comes by itself is claim 4a.",
    claims=CLAIMS,
    parts=parts_of(__name__),
)

__all__ = ["CLAIMS", "STUDY"]
