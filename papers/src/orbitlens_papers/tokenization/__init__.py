"""Tokenization (arXiv 2404.08335): what do tokens give to a model of a Markov source?"""

from orbitlens_papers.study import Study, parts_of
from orbitlens_papers.tokenization.claims import CLAIMS

STUDY = Study(
    name="tokenization",
    title="Toward a Theory of Tokenization in LLMs",
    paper="arXiv 2404.08335",
    question="What do tokens give to a model of a Markov source, and to which models?",
    gap="The source has two letters and is known; nothing is said about text. What the trained "
    "pair shows is a statement about a small width, small weights and short training: claim 5a "
    "says in how many other regimes letters alone are fast. Of the paper the abstract was read; "
    "constants of its bound and sizes of its experiment are as generally known.",
    read="abstract",
    at="A source of two letters; one layer of width 16 for 700 steps, in windows of 128 tokens for "
    "the ratio of steps (4e, 4f); the bounds speak of large dictionaries.",
    claims=CLAIMS,
    parts=parts_of(__name__),
    needs=("tokenizers",),
)

__all__ = ["CLAIMS", "STUDY"]
