"""Tokenization (arXiv 2404.08335): what do tokens give to a model of a Markov source?"""

from functools import partial

from orbitlens_papers.study import Study
from orbitlens_papers.tokenization import regimes, unigram
from orbitlens_papers.tokenization.claims import CLAIMS
from orbitlens_papers.tokenization.figures import figures

STUDY = Study(
    name="tokenization",
    title="Toward a Theory of Tokenization in LLMs",
    paper="arXiv 2404.08335",
    question="What do tokens give to a model of a Markov source, and to which models?",
    gap="The source has two letters and is known; nothing is said about text. What the trained "
    "pair shows is a statement about a small width, small weights and short training: claim 5a "
    "says in how many other regimes letters alone are fast. Of the paper the abstract was read; "
    "constants of its bound and sizes of its experiment are as generally known.",
    claims=CLAIMS,
    measures={
        "1a": partial(unigram.byte_pairs_close, size=10),
        "1b": partial(unigram.byte_pairs_close, size=100),
        "1c": unigram.four_are_worse,
        "2a": unigram.phrases_close,
        "2b": unigram.larger_is_better,
        "2c": unigram.below_bound,
        "3a": unigram.blocks_as_foretold,
        "4a": partial(regimes.letters_are_slow, soon=False),
        "4b": partial(regimes.pairs_are_fast, arm="pairs"),
        "4c": partial(regimes.pairs_are_fast, arm="pairs, equal characters"),
        "4d": partial(regimes.letters_are_slow, soon=True),
        "5a": regimes.slow_everywhere,
        "5b": unigram.ten_for_any_order,
        "6a": regimes.blind_without_positions,
    },
    figures=figures,
)

run = STUDY.run

__all__ = ["CLAIMS", "STUDY", "figures", "run"]
