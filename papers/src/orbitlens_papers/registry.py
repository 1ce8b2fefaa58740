"""All studies, by name: one literal dict; nothing registers itself on import."""

import difflib

from orbitlens.errors import InputError
from orbitlens_papers.attention_svm import STUDY as ATTENTION_SVM
from orbitlens_papers.autoregression import STUDY as AUTOREGRESSION
from orbitlens_papers.breaking_symmetry import STUDY as BREAKING_SYMMETRY
from orbitlens_papers.causal_attention import STUDY as CAUSAL_ATTENTION
from orbitlens_papers.induction_heads import STUDY as INDUCTION_HEADS
from orbitlens_papers.memorization import STUDY as MEMORIZATION
from orbitlens_papers.on_chip import STUDY as ON_CHIP
from orbitlens_papers.saturated import STUDY as SATURATED
from orbitlens_papers.separable import STUDY as SEPARABLE
from orbitlens_papers.study import Study
from orbitlens_papers.token_dynamics import STUDY as TOKEN_DYNAMICS
from orbitlens_papers.tokenization import STUDY as TOKENIZATION
from orbitlens_papers.vision_tokens import STUDY as VISION_TOKENS

STUDIES: dict[str, Study] = {
    "token-dynamics": TOKEN_DYNAMICS,
    "breaking-symmetry": BREAKING_SYMMETRY,
    "attention-svm": ATTENTION_SVM,
    "saturated-attention": SATURATED,
    "induction-heads": INDUCTION_HEADS,
    "in-context-autoregression": AUTOREGRESSION,
    "memorization": MEMORIZATION,
    "tokenization": TOKENIZATION,
    "on-chip-learning": ON_CHIP,
    "vision-tokenizers": VISION_TOKENS,
    "separable-attention": SEPARABLE,
    "causal-attention": CAUSAL_ATTENTION,
}


def study_of(name: str) -> Study:
    """Return the study of that name, or of that paper's number.

    Raises:
        InputError: there is none; the message names the nearest.
    """
    for study in STUDIES.values():
        if name in {study.name, study.paper, study.paper.removeprefix("arXiv ")}:
            return study
    near = difflib.get_close_matches(name, STUDIES, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise InputError(f"no study is called {name!r}.{hint} Known: {', '.join(STUDIES)}.")
