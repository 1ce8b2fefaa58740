"""Causal interpretation of self-attention (arXiv 2310.20307): are explanations in the graph?"""

from functools import partial

from orbitlens_papers.causal_attention import identity, recommending
from orbitlens_papers.causal_attention.claims import CLAIMS
from orbitlens_papers.causal_attention.figures import figures
from orbitlens_papers.study import Study

STUDY = Study(
    name="causal-attention",
    title="Causal Interpretation of Self-Attention in Pre-Trained Transformers",
    paper="arXiv 2310.20307",
    question="Is attention a structural equation model, and does its graph explain predictions?",
    gap="That tests recover a graph from an exact linear model does not say that attention is one. "
    "The recommender is small and its sessions come from a generator with known parents; "
    "nearly always a single item decides what it recommends, so that long explanations are not "
    "tested; nor are film reviews and ratings, the paper's data. FCI stands in for the authors' "
    "structure learner, and of the paper the abstract and the authors' code were read.",
    claims=CLAIMS,
    measures={
        "1a": identity.skeleton_comes_back,
        "1b": identity.rows_may_be_scaled,
        "2a": partial(identity.share_of, part="recalled", whole="edges"),
        "2b": partial(identity.share_of, part="unlinked", whole="found"),
        "2c": partial(identity.share_of, part="arrows, right", whole="arrows"),
        "3a": recommending.fewer_calls,
        "3b": recommending.no_longer,
        "3c": partial(recommending.smaller, than="attention"),
        "3d": partial(recommending.smaller, than="other session"),
        "3e": partial(recommending.smaller, than="attention, all sets", number="calls"),
        "4a": recommending.hits_parents,
        "5a": partial(recommending.unchanged, what="moves", control="stays"),
        "5b": partial(recommending.unchanged, what="columns", control="entries"),
        "6a": partial(recommending.robust, to="samples", value="256"),
        "6b": partial(recommending.robust, to="level", value="0.05"),
        "7a": recommending.same_in_heads,
        "8a": recommending.paper_data,
    },
    figures=figures,
)

run = STUDY.run

__all__ = ["CLAIMS", "STUDY", "figures", "run"]
