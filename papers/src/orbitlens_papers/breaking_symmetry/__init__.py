"""Breaking symmetry (arXiv 2402.05969): what tells a transformer the order of its tokens?"""

from orbitlens_papers.breaking_symmetry.claims import CLAIMS
from orbitlens_papers.study import Study, parts_of

STUDY = Study(
    name="breaking-symmetry",
    title="Breaking Symmetry When Training Transformers",
    paper="arXiv 2402.05969",
    question="What tells a transformer the order of its tokens: the encoding, the mask, residuals?",
    gap="Models here have a hundred thousand parameters and learn addition; nothing is said about "
    "large language models. The paper's later version reports no definitive evidence on residuals, "
    "and its own training set-up is not repeated in every detail.",
    read="abstract, hypotheses and set-up of its experiments",
    at="Three layers of width 64 with random weights (4a), and on three-digit addition (3); two "
    "digits and width 32 for 2,000 "
    "steps (5a, 5b, 5d, 6a to 6e); the paper trains a larger decoder for longer. Models without "
    "residuals are compared after as many steps, not at the same accuracy: what 6a and 6e find is "
    "also that most of those have learnt less.",
    claims=CLAIMS,
    parts=parts_of(__name__),
    minutes=25,
    on_models=frozenset({"1b", "2e", "2f"}),
)

__all__ = ["CLAIMS", "STUDY"]
