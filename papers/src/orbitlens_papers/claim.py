"""Claims, what was found about them, and the verdicts that follow.

Enters: a claim with a threshold set beforehand, and estimates with their intervals. Leaves: a
verdict a claim and one a paper. Nothing here runs an experiment, and no verdict is typed by hand.

A claim *holds* when the whole interval lies on its side of the threshold, *fails* when all of it
lies on the other side, and is *undecided* in between. A core claim has a negative control: a
variation under which the same measurement must fail. If it does not, the measurement cannot tell,
and the claim is undecided whatever its number.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from orbitlens.errors import InputError
from orbitlens_papers.estimate import Estimate


class Verdict(StrEnum):
    """What became of a claim."""

    HOLDS = "holds"
    FAILS = "fails"
    UNDECIDED = "undecided"
    NOT_TESTABLE = "not testable here"


class PaperVerdict(StrEnum):
    """What became of a paper: of its core claims, taken together."""

    REPRODUCED = "reproduced"
    PARTLY = "partly reproduced"
    NOT_REPRODUCED = "not reproduced"
    UNDECIDED = "undecided"


class Side(StrEnum):
    """On which side of its threshold a claim wants its number."""

    ABOVE = "above"
    BELOW = "below"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement of a paper as a number and a threshold, both fixed before any run."""

    key: str  # "1a": the number of the claim, and a letter for each part of it
    text: str
    source: str  # where the paper, or our theory, says so
    measured: str  # what the number is
    side: Side
    threshold: float
    why: str  # why that threshold
    core: bool = True
    control: str = ""  # the variation that must make it fail

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
    def wanted(self) -> str:
        """The threshold with its side, in words."""
        return f"{self.side.value} {self.threshold:g}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an experiment hands over for one claim: numbers, or the reason there are none."""

    result: Estimate | None = None
    control: Estimate | None = None
    obstacle: str = ""  # why it could not be tested
    data: Mapping[str, Any] = field(default_factory=dict)  # plain data: for tables and figures

    def __post_init__(self) -> None:
        """Refuse an outcome that says nothing."""
        if (self.result is None) == (not self.obstacle):
            raise InputError("an outcome has either a result or an obstacle that says why not.")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One claim of a paper, tested."""

    claim: Claim
    outcome: Outcome
    seconds: float = 0.0

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
    def verdict(self) -> Verdict:
        """What the numbers say."""
        if self.outcome.result is None:
            return Verdict.NOT_TESTABLE
        if self.control_failed is False:
            return Verdict.UNDECIDED
        return self.claim.judge(self.outcome.result)

    @property
    def reason(self) -> str:
        """Why the verdict is not simply that of the number; empty where it is."""
        if self.outcome.result is None:
            return self.outcome.obstacle
        if self.control_failed is False:
            return f"the negative control did not fail ({self.claim.control})"
        if self.verdict is Verdict.UNDECIDED:
            return "the interval contains the threshold"
        return ""


def paper_verdict(findings: Iterable[Finding]) -> PaperVerdict:
    """Return the verdict of a paper from those of its core claims.

    All hold: reproduced. Some hold: partly. None holds and at least one fails: not reproduced.
    Otherwise nothing was decided.
    """
    verdicts = [finding.verdict for finding in findings if finding.claim.core]
    if verdicts and all(verdict is Verdict.HOLDS for verdict in verdicts):
        return PaperVerdict.REPRODUCED
    if Verdict.HOLDS in verdicts:
        return PaperVerdict.PARTLY
    return PaperVerdict.NOT_REPRODUCED if Verdict.FAILS in verdicts else PaperVerdict.UNDECIDED
