"""Attention as a support vector machine (arXiv 2308.16898): where does descent go?"""

from functools import partial

from orbitlens_papers.attention_svm import choices, directions
from orbitlens_papers.attention_svm.claims import CLAIMS
from orbitlens_papers.attention_svm.figures import figures
from orbitlens_papers.study import Study

STUDY = Study(
    name="attention-svm",
    title="Transformers as Support Vector Machines",
    paper="arXiv 2308.16898",
    question="Which of all separating matrices does gradient descent on attention choose, and does "
    "it matter whether W or K and Q are trained?",
    gap="One layer, one query a sample and a fixed head, on random tokens: the paper's own setting "
    "(six samples of eight tokens in ten dimensions), not a trained transformer. Convergence is "
    "seen after 1,500 steps, not proved; K and Q share one norm for their steps.",
    claims=CLAIMS,
    measures={
        "1a": partial(directions.converges, kind="plain"),
        "1b": directions.wrong_labels,
        "1c": directions.unnormalised,
        "2a": partial(directions.converges, kind="factored"),
        "2b": directions.less_nuclear,
        "3a": choices.saturates,
        "4a": choices.picks_best,
        "4b": choices.wider_is_better,
        "5a": directions.lower_rank,
        "5b": directions.optimal,
        "5c": directions.classifier_agrees,
        "6a": choices.order_is_nothing,
    },
    figures=figures,
)

run = STUDY.run

__all__ = ["CLAIMS", "STUDY", "figures", "run"]
