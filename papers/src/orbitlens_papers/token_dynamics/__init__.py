"""Token dynamics (arXiv 2512.03058): when do tokens converge, and what do encodings do to it?"""

from orbitlens_papers.claim import Kind
from orbitlens_papers.study import Study, parts_of
from orbitlens_papers.token_dynamics.claims import CLAIMS

STUDY = Study(
    name="token-dynamics",
    title="Dynamical Properties of Tokens in Self-Attention and Effects of Positional Encoding",
    paper="arXiv 2512.03058",
    question="When do tokens converge or diverge, what do position encodings do to that, and does "
    "convergence hurt?",
    gap="Of the paper, the abstract and the released experiments were read, not the theorem texts. "
    "Trained models here are small and trained for minutes, so an effect that needs size or time "
    "would be missed. 7a does not say that the sign helps: arms of all three signs gain alike over "
    "a plain model of the same narrow start (6a, docs/studies-arms.md), and a plain model from "
    "wider first weights loses less than any of them (7e). The gain of 7a is seen on bytes "
    "and in sixteen layers as well, and neither on images (7b) nor before a norm "
    "(docs/studies-arms.md).",
    read="abstract, released experiments",
    at="6a, 7a, 7c: six post-norm layers of width 64 on characters of a text, 5,000 steps, seeds 0 "
    "to 4; 6b, 7b: the same on 7 x 7 patches of MNIST's 10,000 test images (before, on digits of "
    "8 x 8, which came out undecided: docs/studies-arms.md); all stored with the package, and "
    "trained anew at full scale (hours). 6c, 6d, 7d: three layers of width 32, 200 steps on text "
    "and 150 on digits, three seeds. The paper: 16 layers of width 410 and 200,000 steps (text), "
    "DeiT-tiny (images).",
    given={Kind.THEORY: "W and A symmetric, and theorems as summarised (text not read)"},
    claims=CLAIMS,
    parts=parts_of(__name__),
    on_text=frozenset({"6c"}),
    on_models=frozenset({"4d", "5a", "5b"}),
)

__all__ = ["CLAIMS", "STUDY"]
