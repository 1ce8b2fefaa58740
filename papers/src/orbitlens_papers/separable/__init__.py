"""SepTr (arXiv 2203.09581): what does attention along time and frequency in turn change?"""

from orbitlens_papers.separable.claims import CLAIMS, FILE, INSTEAD
from orbitlens_papers.study import Study, parts_of

STUDY = Study(
    name="separable-attention",
    title="SepTr: Separable Transformer for Audio Spectrogram Processing",
    paper="arXiv 2203.09581",
    question="What changes when a transformer over a spectrogram looks along frequency and along "
    "time in turn, in place of at all bins at once?",
    gap="Models have 4,600 to 35,000 parameters and a hundred bins, not millions and 16,000; "
    "sounds are ten spoken digits of six speakers, or made ones. The paper's three data sets, "
    "its training and its accuracies are out of reach here. The order of axes follows its final "
    "version (frequency first); class tokens are copied to each line and averaged behind it, as "
    "in its code. 3f and 3g are undecided: that either arm of 3a is as accurate as a linear model "
    "is not shown.",
    read="abstract, released code",
    at="Models of 4,600 to 35,000 parameters on 100 bins, ten spoken digits of six speakers, 600 "
    "or 2,000 steps; the paper: millions of parameters, 16,000 bins, three data sets.",
    claims=CLAIMS,
    parts=parts_of(__name__),
    minutes=30,
    data_files={FILE: INSTEAD},
    needs=("sklearn",),
)

__all__ = ["CLAIMS", "STUDY"]
