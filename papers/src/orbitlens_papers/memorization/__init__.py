"""Memorization (arXiv 2409.17677): how many parameters does it take to recall random labels?"""

from orbitlens_papers.memorization import exact, learning
from orbitlens_papers.memorization.claims import CLAIMS
from orbitlens_papers.memorization.figures import figures
from orbitlens_papers.study import Study

STUDY = Study(
    name="memorization",
    title="On the Optimal Memorization Capacity of Transformers",
    paper="arXiv 2409.17677",
    question="How many parameters does a transformer need to recall random labels of N sequences?",
    gap="The bound from above is made executable; that from below is only printed, as what "
    "counting says. The construction is our own, on whole numbers instead of separated vectors, "
    "and its weights are longer than any float. Of the paper the abstract and summaries were read. "
    "Its experiment with up to 40 blocks is not repeated: trained models here have one.",
    claims=CLAIMS,
    measures={
        "1a": exact.recalls,
        "2a": exact.parameter_slope,
        "2b": exact.slope_but_logs,
        "2c": exact.plain_slope,
        "2d": exact.bound_from_below,
        "3a": exact.any_length,
        "3b": exact.token_slope,
        "3c": exact.recalls_tokens,
        "4a": exact.weight_bits,
        "4b": exact.floats_break_it,
        "5a": learning.any_length,
        "5b": learning.tokens_need_more,
        "5c": learning.labels_need_more,
        "6a": exact.places_tell_apart,
    },
    figures=figures,
)

run = STUDY.run

__all__ = ["CLAIMS", "STUDY", "figures", "run"]
