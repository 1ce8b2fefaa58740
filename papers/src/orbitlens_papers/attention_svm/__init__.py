"""Attention as a support vector machine (arXiv 2308.16898): where does descent go?"""

from orbitlens_papers.attention_svm.claims import CLAIMS
from orbitlens_papers.study import Study, parts_of

STUDY = Study(
    name="attention-svm",
    title="Transformers as Support Vector Machines",
    paper="arXiv 2308.16898",
    question="Which of all separating matrices does gradient descent on attention choose, and does "
    "it matter whether W or K and Q are trained?",
    gap="One layer, one query a sample and a fixed head, on random tokens: the paper's own setting "
    "(six samples of eight tokens in ten dimensions), not a trained transformer. Convergence is "
    "seen after 1,500 steps, not proved; K and Q share one norm for their steps.",
    read="abstract, released code",
    claims=CLAIMS,
    parts=parts_of(__name__),
    needs=("cvxpy", "sklearn"),
)

__all__ = ["CLAIMS", "STUDY"]
