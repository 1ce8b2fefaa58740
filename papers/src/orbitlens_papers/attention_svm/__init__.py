"""Attention as a support vector machine (arXiv 2308.16898): where does descent go?"""

from orbitlens_papers.attention_svm.claims import CLAIMS
from orbitlens_papers.study import Study, parts_of

STUDY = Study(
    name="attention-svm",
    title="Transformers as Support Vector Machines",
    paper="arXiv 2308.16898",
    question="Which of all separating matrices does gradient descent on attention choose, and does "
    "it matter whether W or K and Q are trained?",
    gap="One layer, one query per sample and a fixed head, linear or (claim 7) of ReLUs, on random "
    "tokens: the paper's own settings, of six samples of eight tokens in ten dimensions and of "
    "three samples of four, not a trained transformer. Convergence is seen after 1,500 and 2,000 "
    "steps, not proved; K and Q share one norm for their steps. Claim 7 is about the problems that "
    "settle: most do not within these steps, and are left out as in the paper's code.",
    read="abstract, released code",
    claims=CLAIMS,
    parts=parts_of(__name__),
    needs=("cvxpy", "sklearn"),
)

__all__ = ["CLAIMS", "STUDY"]
