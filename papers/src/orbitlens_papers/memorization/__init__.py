"""Memorization (arXiv 2409.17677): how many parameters does it take to recall random labels?"""

from orbitlens_papers.memorization.claims import CLAIMS
from orbitlens_papers.study import Study, parts_of

STUDY = Study(
    name="memorization",
    title="On the Optimal Memorization Capacity of Transformers",
    paper="arXiv 2409.17677",
    question="How many parameters does a transformer need to recall random labels of N sequences?",
    gap="The bound from above is made executable; that from below is only printed, as what "
    "counting says. The constructions are our own, not the paper's proof: they show that so few "
    "parameters are enough for the sequences that were tried, not for all. Claims 1 to 6 are about "
    "whole numbers; claim 7 is about separated vectors, of rational coordinates. Their weights are "
    "longer than any float. Of the paper the abstract and summaries were read. Its experiment with "
    "up to 40 blocks is not repeated: trained models here have one.",
    read="abstract, summaries",
    at="The constructions are ours: on whole numbers up to N = 4,096, on separated vectors in 16 "
    "dimensions up to N = 1,024. Trained models have one block, the paper's up to 40.",
    claims=CLAIMS,
    parts=parts_of(__name__),
    minutes=20,
)

__all__ = ["CLAIMS", "STUDY"]
