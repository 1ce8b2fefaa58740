"""In-context autoregression (arXiv 2402.05787): how attention learns W from s_{t+1} = W s_t."""

from orbitlens_papers.autoregression.claims import CLAIMS
from orbitlens_papers.claim import Kind
from orbitlens_papers.study import Study, parts_of

STUDY = Study(
    name="in-context-autoregression",
    title="How do Transformers perform In-Context Autoregressive Learning?",
    paper="arXiv 2402.05787",
    question="How does linear attention learn W from a sequence s_{t+1} = W s_t, and what do heads "
    "and position encodings do in it?",
    gap="One layer of linear attention on noiseless sequences: nothing is said about softmax, "
    "depth or noise. Theorem texts were not read, and the paper's experiment on text is left out.",
    read="abstract, released code",
    at="Sequences of 12 tokens in 4 dimensions, 1,500 steps for claims 5; the paper goes to 50 "
    "tokens.",
    given={Kind.THEORY: "theorems as summarised (text not read)"},
    claims=CLAIMS,
    parts=parts_of(__name__),
    minutes=20,
)

__all__ = ["CLAIMS", "STUDY"]
