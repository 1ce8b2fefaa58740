"""SepTr (arXiv 2203.09581): what does attention along time and frequency in turn change?"""

from functools import partial

from orbitlens_papers.separable import comparisons, cost, groups
from orbitlens_papers.separable.claims import CLAIMS
from orbitlens_papers.separable.figures import figures
from orbitlens_papers.separable.speech import FILE, INSTEAD
from orbitlens_papers.study import Study

STUDY = Study(
    name="separable-attention",
    title="SepTr: Separable Transformer for Audio Spectrogram Processing",
    paper="arXiv 2203.09581",
    question="What changes when a transformer over a spectrogram looks along frequency and along "
    "time in turn, in place of at all bins at once?",
    gap="Models have 35,000 parameters and a hundred bins, not millions and 16,000; sounds are "
    "ten spoken digits of six speakers, or made ones. The paper's three data sets, its training "
    "and its accuracies are out of reach here. The order of axes follows its final version "
    "(frequency first); class tokens are copied to each line and averaged behind it, as in its "
    "code.",
    claims=CLAIMS,
    measures={
        "1a": groups.blind_to_time,
        "1b": groups.blind_to_frequency,
        "1c": groups.sees_the_grid,
        "1d": groups.exactly_products,
        "1e": groups.exactly_lines,
        "1f": comparisons.trained_is_blind,
        "2a": partial(cost.grows_like, what="parameters"),
        "2b": cost.as_foretold,
        "2c": partial(cost.grows_like, what="multiply-adds"),
        "3a": partial(comparisons.beats, other="joint"),
        "3b": partial(comparisons.beats, other="patches"),
        "3c": partial(comparisons.beats, other="patches", arm=comparisons.BRIEF),
        "3d": partial(comparisons.beats, other="logistic"),
        "3e": comparisons.papers_numbers,
        "4a": partial(comparisons.both_axes, only="columns only", sees="pattern"),
        "4b": partial(comparisons.both_axes, only="rows only", sees="envelope"),
        "5a": comparisons.order_is_free,
    },
    figures=figures,
    data_files={FILE: INSTEAD},
)

run = STUDY.run

__all__ = ["CLAIMS", "STUDY", "figures", "run"]
