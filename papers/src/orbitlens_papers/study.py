"""A study: the claims of one paper, and where their measures and figures are.

A paper is a folder with `claims.py` (what is claimed, thresholds, controls), `measures.py` (what
measures each claim) and `figures.py`. The last two are imported when they are first needed: a list
of studies needs none of the packages that some of them measure with.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from orbitlens.errors import InputError, MissingPackageError
from orbitlens_papers.claim import Claim, Kind, Outcome, Protocol

if TYPE_CHECKING:
    from orbitlens.draw.figure import Figure
    from orbitlens_papers.bench import Bench
    from orbitlens_papers.result import StudyResult

Measure = Callable[["Bench"], Outcome]
Figures = Callable[["StudyResult"], "tuple[Figure, ...]"]
QUICK = 10  # minutes that the default scale takes at most, where a study does not say otherwise
# Packages by the names they are imported under, where those differ from the ones of the index.
PACKAGES = {"PIL": "pillow", "sklearn": "scikit-learn", "causallearn": "causal-learn"}


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a study runs and draws."""

    measures: Mapping[str, Measure]  # by the claim's key
    figures: Figures


def parts_of(package: str) -> Callable[[], Parts]:
    """Return a function that imports `measures` and `figures` of a paper's folder, once."""

    @cache
    def load() -> Parts:
        measures, figures = (import_module(f"{package}.{name}") for name in ("measures", "figures"))
        return Parts(measures=measures.MEASURES, figures=figures.draw_figures)

    return load


@dataclass(frozen=True, kw_only=True)
class Study:
    """One paper: its claims and how they are measured."""

    name: str  # "token-dynamics"
    title: str
    paper: str  # "arXiv 2512.03058"
    question: str
    gap: str  # what a pass would still not show
    read: str  # what was read of the paper
    claims: tuple[Claim, ...]
    parts: Callable[[], Parts]
    minutes: int = QUICK  # that the default scale takes at most, on two cores
    at: str = ""  # the scale of what is not tested as stated, beside the paper's
    # What a verdict on theory or experiments takes as given: put in, and not found.
    given: Mapping[Kind, str] = field(default_factory=dict)
    on_models: frozenset[str] = frozenset()  # claims that also look at models the user gives
    on_text: frozenset[str] = frozenset()  # claims that need a text the user gives
    # Files looked for in the user's folder of data, each with what is used where it is missing.
    data_files: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()  # packages beside those of orbitlens[lab], by their import names
    folds: int = 0  # seeds of the default scale, where each is a fold of data and all must be run

    @property
    def is_long(self) -> bool:
        """Whether the default scale takes so long that it should be said beforehand."""
        return self.minutes > QUICK

    def __post_init__(self) -> None:
        """Refuse claims that share a key, and a paper without a core."""
        keys = [claim.key for claim in self.claims]
        if len(set(keys)) != len(keys):
            raise InputError(f"{self.name}: two claims share a key; each needs its own.")
        for claim in self.claims:
            if claim.stated and not claim.source.startswith(f"{self.paper}, "):
                raise InputError(
                    f"{self.name} {claim.key}: its source is {claim.source!r}; expected where the "
                    f"paper says so, such as '{self.paper}, abstract', or 'ours: ...'."
                )
        if not any(claim.rank == "core" for claim in self.claims):
            raise InputError(f"{self.name} has no core claim; a verdict needs at least one.")
        exact = {Protocol.AS_STATED}
        if not self.at.strip() and {claim.protocol for claim in self.claims} != exact:
            raise InputError(f"{self.name}: not all is tested as stated; say at which scale (at).")

    @property
    def missing(self) -> tuple[str, ...]:
        """Packages that the study needs and that are not installed, as an index names them."""
        return tuple(PACKAGES.get(name, name) for name in self.needs if find_spec(name) is None)

    @property
    def measures(self) -> Mapping[str, Measure]:
        """What measures each claim, by its key.

        Raises:
            MissingPackageError: a package that the study needs is not installed.
            InputError: a claim is not measured, or a measure has no claim.
        """
        try:
            measures = self.parts().measures
        except ModuleNotFoundError as error:
            names = " ".join(self.missing) or error.name
            raise MissingPackageError(
                f"the study {self.name} needs {names}: pip install {names}"
            ) from error
        odd = sorted({claim.key for claim in self.claims} ^ set(measures))
        if odd:
            raise InputError(f"{self.name}: claims and measures do not match: {', '.join(odd)}.")
        return measures

    @property
    def figures(self) -> Figures:
        """Return what draws the study from its result."""
        return self.parts().figures
