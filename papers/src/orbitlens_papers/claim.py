"""Claims, what was found about them, and the verdicts that follow.

Enters: a claim with a threshold set beforehand, and estimates with their intervals. Leaves: a
verdict a claim and one a paper. Nothing here runs an experiment, and no verdict is typed by hand.

A claim *holds* when the whole interval lies on its side of the threshold and is *undecided* when
the threshold lies inside. With all of the interval on the other side it *fails* if it was tested as
the paper, or our theory, states it; else it is *not seen at this scale*. A core claim has a
negative control: a variation under which the same measurement must fail. If it does not, the
measurement cannot tell, and the claim is undecided whatever its number. Where a number says that
there is no effect, a positive control, known to have one, must be found by the same measurement.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from orbitlens.errors import InputError
from orbitlens_papers.estimate import Estimate

OURS = "ours:"


class Verdict(StrEnum):
    """What became of a claim."""

    HOLDS = "holds"
    FAILS = "fails"
    NOT_SEEN = "not seen at this scale"
    UNDECIDED = "undecided"
    NOT_TESTABLE = "not testable here"


class PaperVerdict(StrEnum):
    """What became of a paper's theory, or of its experiments: of its core claims together."""

    REPRODUCED = "reproduced"
    SEEN = "seen at this scale"
    CHECKED = "construction checked"  # a construction of ours does it; the theorem was not tested
    PARTLY = "partly reproduced"
    PARTLY_CHECKED = "construction partly checked"
    PARTLY_SEEN = "seen in part at this scale"
    NOT_REPRODUCED = "not reproduced"
    NOT_SEEN = "not seen at this scale"
    UNDECIDED = "undecided"
    RECONSTRUCTION = "reconstruction: no verdict"
    NONE = "no core claims"


class Protocol(StrEnum):
    """How near a test is to what the paper, or our theory, says."""

    AS_STATED = "as stated"  # exact mathematics, or the paper's own setting
    SCALED = "scaled down"
    CONSTRUCTION = "construction"  # of ours, after the paper's, run exactly
    PROXY = "proxy"  # something else that should go the same way
    RECONSTRUCTION = "reconstruction"  # what is tested was guessed from an abstract


class Kind(StrEnum):
    """What a claim is part of."""

    THEORY = "theory"
    EXPERIMENT = "experiments"


class Side(StrEnum):
    """On which side of its threshold a claim wants its number."""

    ABOVE = "above"
    BELOW = "below"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement as a number and a threshold, both fixed before the run that is reported."""

    key: str  # "1a": the number of the claim, and a letter for each part of it
    text: str
    source: str  # "arXiv 2512.03058, abstract", or "ours: ..." where it is our theory or reading
    protocol: Protocol
    kind: Kind
    measured: str  # what the number is
    side: Side
    threshold: float
    why: str  # why that threshold
    core: bool = True
    control: str = ""  # the variation that must make it fail
    positive: str = ""  # the variation that is known to have an effect
    bounds: tuple[float, float] | None = None  # what the number cannot leave, as an accuracy

    def __post_init__(self) -> None:
        """Refuse a claim that could not be shown wrong."""
        for name in ("key", "text", "source", "measured", "why"):
            if not getattr(self, name).strip():
                raise InputError(f"claim {self.key or '?'}: {name} is empty; say it.")
        if self.core and not self.control.strip():
            raise InputError(
                f"claim {self.key} is a core claim without a negative control. Name a variation "
                "that must make it fail, or make it a side claim (core=False)."
            )

    def judge(self, estimate: Estimate) -> Verdict:
        """Return the verdict of a number and its interval; the threshold itself is undecided."""
        below, above = estimate.high < self.threshold, estimate.low > self.threshold
        if not (below or above):
            return Verdict.UNDECIDED
        return Verdict.HOLDS if above == (self.side is Side.ABOVE) else Verdict.FAILS

    @property
    def stated(self) -> bool:
        """Whether the paper states it; else it is our own theory or reading."""
        return not self.source.startswith(OURS)

    @property
    def rank(self) -> str:
        """What the claim counts for: the paper's verdict ("core"), ours, or none ("side")."""
        return ("core" if self.stated else "ours") if self.core else "side"

    def shown(self, estimate: Estimate) -> Estimate:
        """Return a number whose interval stays within what the number can be."""
        if self.bounds is None or math.isinf(estimate.low) or math.isinf(estimate.high):
            return estimate  # of one run: there is no interval to cut
        low, high = self.bounds
        return replace(estimate, low=max(low, estimate.low), high=min(high, estimate.high))

    @property
    def wanted(self) -> str:
        """The threshold with its side, in words."""
        return f"{self.side.value} {self.threshold:g}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an experiment hands over for one claim: numbers, or the reason there are none."""

    result: Estimate | None = None
    control: Estimate | None = None
    positive: Estimate | None = None
    obstacle: str = ""  # why it could not be tested
    data: Mapping[str, Any] = field(default_factory=dict)  # plain data: for tables and figures

    def __post_init__(self) -> None:
        """Refuse an outcome that says nothing."""
        if (self.result is None) == (not self.obstacle):
            raise InputError("an outcome has either a result or an obstacle that says why not.")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The earlier run that a finding is from, where a result was put together from several."""

    seeds: int
    base_seed: int
    date: str
    code: str


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One claim of a paper, tested."""

    claim: Claim
    outcome: Outcome
    seconds: float = 0.0
    origin: Origin | None = None  # None: the run that its result names

    def __post_init__(self) -> None:
        """Refuse a core claim whose control was not run."""
        tested = self.outcome.result is not None
        if self.claim.core and tested and self.outcome.control is None:
            raise InputError(
                f"claim {self.claim.key}: its negative control ({self.claim.control}) was not run."
            )

    @property
    def control_failed(self) -> bool | None:
        """Whether the control failed, as it must; None where there is none."""
        control = self.outcome.control
        return None if control is None else self.claim.judge(control) is Verdict.FAILS

    @property
    def positive_found(self) -> bool | None:
        """Whether the positive control was found, as it must be; None where there is none."""
        positive = self.outcome.positive
        return None if positive is None else self.claim.judge(positive) is Verdict.HOLDS

    @property
    def says_no_effect(self) -> bool:
        """Whether the number is on the wrong side because it is about 0, and not beyond it."""
        result = self.outcome.result
        if result is None or self.claim.judge(result) is not Verdict.FAILS:
            return False
        return result.low < 0 < result.high

    @property
    def verdict(self) -> Verdict:
        """What the numbers say."""
        if self.outcome.result is None:
            return Verdict.NOT_TESTABLE
        if self.control_failed is False:
            return Verdict.UNDECIDED
        found = self.claim.judge(self.outcome.result)
        if found is not Verdict.FAILS or self.claim.protocol is Protocol.AS_STATED:
            return found
        if self.says_no_effect and not self.positive_found:
            return Verdict.UNDECIDED
        return Verdict.NOT_SEEN

    @property
    def reason(self) -> str:
        """Why the verdict is not simply that of the number; empty where it is."""
        if self.outcome.result is None:
            return self.outcome.obstacle
        if self.control_failed is False:
            return f"the negative control did not fail ({self.claim.control})"
        if self.verdict is not Verdict.UNDECIDED:
            return ""
        if self.says_no_effect:
            missing = "was not found" if self.positive_found is False else "was not run"
            return f"no effect was seen, and a positive control {missing}"
        return "the interval contains the threshold"


def paper_verdict(findings: Iterable[Finding], kind: Kind) -> PaperVerdict:
    """Return the verdict on a paper's theory or experiments, from the claims that it states.

    All hold: reproduced; construction checked where what was not tested as stated is a construction
    of ours; else seen at this scale. Some hold: partly reproduced if one of these was tested as
    stated or by a construction, else seen in part. None holds: not reproduced if one fails as
    stated, else not seen or undecided. A reconstruction counts for nothing.
    """
    core = [f for f in findings if f.claim.rank == "core" and f.claim.kind is kind]
    own = [f for f in core if f.claim.protocol is not Protocol.RECONSTRUCTION]
    verdicts = [
        f.verdict for f in own if f.verdict is not Verdict.NOT_TESTABLE or len(own) == len(core)
    ]
    if not verdicts:
        return PaperVerdict.RECONSTRUCTION if core else PaperVerdict.NONE
    if all(verdict is Verdict.HOLDS for verdict in verdicts):
        return _all_hold({f.claim.protocol for f in own})
    held = {f.claim.protocol for f in own if f.verdict is Verdict.HOLDS}
    order = (
        (Verdict.HOLDS, _some_hold(held, {f.claim.protocol for f in own})),
        (Verdict.FAILS, PaperVerdict.NOT_REPRODUCED),
        (Verdict.NOT_SEEN, PaperVerdict.NOT_SEEN),
    )
    return next((paper for one, paper in order if one in verdicts), PaperVerdict.UNDECIDED)


def _some_hold(held: set[Protocol], used: set[Protocol]) -> PaperVerdict:
    """Return what a paper's claims amount to of which some hold, by how they were tested."""
    if used == {Protocol.CONSTRUCTION}:
        return PaperVerdict.PARTLY_CHECKED
    exact = held & {Protocol.AS_STATED, Protocol.CONSTRUCTION}
    return PaperVerdict.PARTLY if exact else PaperVerdict.PARTLY_SEEN


def _all_hold(used: set[Protocol]) -> PaperVerdict:
    """Return what a paper's claims amount to that all hold, by how they were tested."""
    if used == {Protocol.AS_STATED}:
        return PaperVerdict.REPRODUCED
    exact = used <= {Protocol.AS_STATED, Protocol.CONSTRUCTION}
    return PaperVerdict.CHECKED if exact else PaperVerdict.SEEN
