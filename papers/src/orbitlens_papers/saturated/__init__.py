"""Saturated transformers (arXiv 2106.16213): what does averaging over ties compute?"""

from functools import partial

from orbitlens_papers.saturated import certificates, compiling, learned, majority, precision
from orbitlens_papers.saturated.claims import CLAIMS
from orbitlens_papers.saturated.figures import figures
from orbitlens_papers.study import Study

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
    claims=CLAIMS,
    measures={
        "1a": majority.decides_majority,
        "2a": majority.is_limit,
        "3a": certificates.few_bits_decide,
        "3b": certificates.wrong_on_majority,
        "3c": certificates.deeper_too,
        "4a": compiling.same_function,
        "4b": compiling.constant_depth,
        "4c": compiling.polynomial_size,
        "5a": precision.few_bits,
        "5b": precision.second_layer_needs_more,
        "6a": learned.generalises,
        "6b": partial(learned.encoding_hurts, encoding="sinusoidal"),
        "6c": partial(learned.encoding_hurts, encoding="learned"),
        "6d": learned.hard_fails,
    },
    figures=figures,
)

run = STUDY.run

__all__ = ["CLAIMS", "STUDY", "figures", "run"]
