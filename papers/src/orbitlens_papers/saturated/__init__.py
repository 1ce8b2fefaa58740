"""Saturated transformers (arXiv 2106.16213): what does averaging over ties compute?"""

from orbitlens_papers.saturated.claims import CLAIMS
from orbitlens_papers.study import Study, parts_of

STUDY = Study(
    name="saturated-attention",
    title="Saturated Transformers are Constant-Depth Threshold Circuits",
    paper="arXiv 2106.16213",
    question="What can attention compute that averages over all tokens of the largest score, and "
    "what is out of reach for attention that takes one?",
    gap="Circuit classes are about growing lengths: no finite run shows that something is outside "
    "AC0 or inside TC0. Shown here are a construction, a certificate for a stated family (one "
    "layer, constant query) and their exhaustive checks; the proofs are the paper's. Layers are "
    "compiled with bits between them, not with floating-point values.",
    read="abstract, summary",
    at="Lengths up to 14 by exhaustion and 10,001 by sampling; circuit classes speak of all "
    "lengths. Trained models: one layer, 800 steps.",
    claims=CLAIMS,
    parts=parts_of(__name__),
    minutes=25,
)

__all__ = ["CLAIMS", "STUDY"]
