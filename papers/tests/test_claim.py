"""Verdicts, apart from any experiment: synthetic numbers in, verdicts out."""

import math

import pytest

from orbitlens.errors import InputError
from orbitlens_papers.claim import (
    Claim,
    Finding,
    Kind,
    Outcome,
    PaperVerdict,
    Protocol,
    Side,
    Verdict,
    paper_verdict,
)
from orbitlens_papers.estimate import Estimate


def claim(**changes):
    given = {
        "key": "1",
        "text": "tokens converge",
        "source": "arXiv 1, abstract",
        "protocol": Protocol.AS_STATED,
        "kind": Kind.THEORY,
        "measured": "a number",
        "side": Side.ABOVE,
        "threshold": 1.0,
        "why": "a round number",
        "control": "turned around",
    }
    return Claim(**(given | changes))


def around(value, half=0.0):
    return Estimate(value=value, low=value - half, high=value + half, n=3, how="made up")


def finding(value, *, half=0.0, control=0.0, positive=None, **changes):
    found = None if positive is None else around(positive)
    outcome = Outcome(result=around(value, half), control=around(control), positive=found)
    return Finding(claim=claim(**changes), outcome=outcome)


FAILING = Outcome(result=around(0.0), control=around(0.0))
OBSTACLE = Outcome(obstacle="no models here")


@pytest.mark.parametrize(
    ("value", "half", "above", "below"),
    [
        (2.0, 0.5, Verdict.HOLDS, Verdict.FAILS),
        (0.2, 0.5, Verdict.FAILS, Verdict.HOLDS),
        (1.2, 0.5, Verdict.UNDECIDED, Verdict.UNDECIDED),
        (1.5, 0.5, Verdict.UNDECIDED, Verdict.UNDECIDED),  # the interval ends at the threshold
        (0.5, 0.5, Verdict.UNDECIDED, Verdict.UNDECIDED),  # and begins there
        (1.0, 0.0, Verdict.UNDECIDED, Verdict.UNDECIDED),  # the threshold itself
        (math.nextafter(1.0, 2.0), 0.0, Verdict.HOLDS, Verdict.FAILS),
        (math.nextafter(1.0, 0.0), 0.0, Verdict.FAILS, Verdict.HOLDS),
    ],
)
def test_a_verdict_follows_from_where_the_interval_lies(value, half, above, below):
    assert claim(side=Side.ABOVE).judge(around(value, half)) is above
    assert claim(side=Side.BELOW).judge(around(value, half)) is below


def test_an_interval_without_bounds_decides_nothing():
    one_seed = Estimate(value=9.0, low=-math.inf, high=math.inf, n=1, how="one seed")
    assert claim().judge(one_seed) is Verdict.UNDECIDED


def test_a_core_claim_without_a_control_cannot_be_made():
    with pytest.raises(InputError, match="without a negative control"):
        claim(control="  ")
    assert claim(control="", core=False).control == ""


@pytest.mark.parametrize("name", ["key", "text", "source", "measured", "why"])
def test_a_claim_says_all_about_itself(name):
    with pytest.raises(InputError, match=name):
        claim(**{name: ""})


def test_a_control_that_was_not_run_is_refused():
    with pytest.raises(InputError, match="was not run"):
        Finding(claim=claim(), outcome=Outcome(result=around(2.0)))
    side = Finding(claim=claim(core=False, control=""), outcome=Outcome(result=around(2.0)))
    assert side.verdict is Verdict.HOLDS


@pytest.mark.parametrize("control", [1.0, 3.0])
def test_a_control_that_does_not_fail_leaves_a_claim_undecided(control):
    found = finding(2.0, control=control)
    assert found.control_failed is False
    assert found.verdict is Verdict.UNDECIDED
    assert "control did not fail" in found.reason


def test_a_control_that_fails_lets_the_number_speak():
    assert finding(2.0).verdict is Verdict.HOLDS
    assert finding(0.5).verdict is Verdict.FAILS
    near = finding(1.1, half=0.2)
    assert near.verdict is Verdict.UNDECIDED
    assert "contains the threshold" in near.reason


def test_what_cannot_be_tested_says_why():
    found = Finding(claim=claim(), outcome=OBSTACLE)
    assert found.verdict is Verdict.NOT_TESTABLE
    assert found.reason == "no models here"
    with pytest.raises(InputError, match="either a result or an obstacle"):
        Outcome()


# --- as stated, or not -----------------------------------------------------------------------


@pytest.mark.parametrize("protocol", list(Protocol))
def test_only_what_is_tested_as_stated_fails(protocol):
    found = finding(0.5, protocol=protocol)
    exact = protocol is Protocol.AS_STATED
    assert found.verdict is (Verdict.FAILS if exact else Verdict.NOT_SEEN)
    assert finding(2.0, protocol=protocol).verdict is Verdict.HOLDS


@pytest.mark.parametrize(
    ("positive", "verdict", "why"),
    [
        (None, Verdict.UNDECIDED, "was not run"),
        (0.5, Verdict.UNDECIDED, "was not found"),
        (3.0, Verdict.NOT_SEEN, ""),
    ],
)
def test_no_effect_needs_a_positive_control_that_is_found(positive, verdict, why):
    found = finding(0.1, half=0.3, positive=positive, protocol=Protocol.SCALED)
    assert found.says_no_effect
    assert found.verdict is verdict
    assert why in found.reason and bool(found.reason) == bool(why)


def test_an_effect_the_other_way_needs_none():
    assert finding(-0.5, half=0.3, protocol=Protocol.SCALED).verdict is Verdict.NOT_SEEN


def test_a_claim_of_our_own_is_no_core_claim_of_the_paper():
    ranks = [claim(), claim(source="ours: T1"), claim(core=False)]
    assert [each.rank for each in ranks] == ["core", "ours", "side"]


def test_an_interval_stays_within_what_the_number_can_be():
    shown = claim(bounds=(0.0, 1.0)).shown(around(0.9, 0.3))
    assert (shown.value, shown.low, shown.high) == (0.9, pytest.approx(0.6), 1.0)
    assert claim().shown(around(0.9, 0.3)).high > 1


HOLDS, FAILS, OPEN = finding(2.0), finding(0.5), finding(1.0)
ABSENT = Finding(claim=claim(), outcome=OBSTACLE)
SMALLER, NOT_SEEN = (finding(value, protocol=Protocol.SCALED) for value in (2.0, 0.5))
BUILT, BROKEN = (finding(value, protocol=Protocol.CONSTRUCTION) for value in (2.0, 0.5))
REBUILT = finding(2.0, protocol=Protocol.RECONSTRUCTION)


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ([HOLDS, HOLDS], PaperVerdict.REPRODUCED),
        ([HOLDS, SMALLER], PaperVerdict.SEEN),
        ([BUILT, BUILT], PaperVerdict.CHECKED),
        ([BUILT, HOLDS], PaperVerdict.CHECKED),
        ([BUILT, SMALLER], PaperVerdict.SEEN),
        ([BUILT, BROKEN], PaperVerdict.PARTLY_CHECKED),
        ([BUILT, FAILS], PaperVerdict.PARTLY),
        ([BROKEN, BROKEN], PaperVerdict.NOT_SEEN),
        ([HOLDS, FAILS], PaperVerdict.PARTLY),
        ([HOLDS, OPEN], PaperVerdict.PARTLY),
        ([HOLDS, ABSENT], PaperVerdict.PARTLY),
        ([SMALLER, NOT_SEEN], PaperVerdict.PARTLY_SEEN),
        ([SMALLER, FAILS], PaperVerdict.PARTLY_SEEN),
        ([HOLDS, NOT_SEEN], PaperVerdict.PARTLY),
        ([FAILS, OPEN], PaperVerdict.NOT_REPRODUCED),
        ([FAILS, FAILS], PaperVerdict.NOT_REPRODUCED),
        ([NOT_SEEN, OPEN], PaperVerdict.NOT_SEEN),
        ([OPEN, ABSENT], PaperVerdict.UNDECIDED),
        ([REBUILT, REBUILT], PaperVerdict.RECONSTRUCTION),
        ([REBUILT, ABSENT], PaperVerdict.RECONSTRUCTION),
        ([REBUILT, OPEN], PaperVerdict.UNDECIDED),
        ([], PaperVerdict.NONE),
    ],
)
def test_a_paper_is_judged_by_what_it_states(findings, expected):
    side = Finding(claim=claim(core=False), outcome=FAILING)
    ours = Finding(claim=claim(source="ours: T1"), outcome=FAILING)
    other = Finding(claim=claim(kind=Kind.EXPERIMENT), outcome=FAILING)
    assert paper_verdict([*findings, side, ours, other], Kind.THEORY) is expected
