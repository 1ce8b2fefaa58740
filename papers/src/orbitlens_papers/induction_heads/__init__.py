"""Induction heads (arXiv 2409.10559): copier, selector and classifier, learnt one after another."""

from functools import partial

from orbitlens_papers.induction_heads import information, stages
from orbitlens_papers.induction_heads.claims import CLAIMS
from orbitlens_papers.induction_heads.figures import figures
from orbitlens_papers.study import Study

STUDY = Study(
    name="induction-heads",
    title="Unveiling Induction Heads",
    paper="arXiv 2409.10559",
    question="Does training on n-gram Markov chains build an induction head: copy, select, "
    "classify, in that order?",
    gap="The model is the paper's simplified one: weights of the first layer depend on the lag "
    "alone and start near it, and stages are trained one after another. That a transformer of "
    "today forms its induction heads so is not shown. Theorem texts were not read.",
    claims=CLAIMS,
    measures={
        "1a": partial(stages.selects, chain="{1, 2}"),
        "1b": partial(stages.selects, chain="{1, 3}"),
        "2a": partial(stages.copies, chain="{1, 2}"),
        "2b": partial(stages.copies, chain="{1, 3}"),
        "3a": partial(stages.predicts, chain="{1, 2}"),
        "3b": partial(stages.predicts, chain="{1, 3}"),
        "3c": stages.beats_unigrams,
        "3d": stages.grows,
        "3e": stages.needs_products,
        "4a": stages.comes_in_order,
        "5a": partial(stages.generalises, where="long"),
        "5b": partial(stages.generalises, where="less_fixed"),
        "6a": information.parents_lead,
        "6b": information.plain_lead,
    },
    figures=figures,
)

run = STUDY.run

__all__ = ["CLAIMS", "STUDY", "figures", "run"]
