"""Causal interpretation of self-attention (arXiv 2310.20307): are explanations in the graph?"""

from orbitlens_papers.causal_attention.claims import CLAIMS
from orbitlens_papers.study import Study, parts_of

STUDY = Study(
    name="causal-attention",
    title="Causal Interpretation of Self-Attention in Pre-Trained Transformers",
    paper="arXiv 2310.20307",
    question="Is attention a structural equation model, and does its graph explain predictions?",
    gap="That tests recover a graph from an exact linear model does not say that attention is one. "
    "The recommender is small and its sessions come from a generator with known parents, in which "
    "several weak pieces of evidence decide together; film reviews and ratings, the paper's data, "
    "are not tested. The structure learner was written anew from its mathematics; the one graph in "
    "40 that 2d has otherwise is causal-learn's FCI with tails that are wrong in the model, and "
    "none of ICD's marks there is. Of the paper the abstract and the authors' code were read.",
    read="abstract, authors' code",
    at="A two-layer recommender of 40 items on made sessions; the paper explains BERT and BERT4Rec "
    "on film reviews and ratings.",
    claims=CLAIMS,
    parts=parts_of(__name__),
    minutes=20,
    needs=("causallearn",),
)

__all__ = ["CLAIMS", "STUDY"]
