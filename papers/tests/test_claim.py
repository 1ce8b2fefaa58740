"""Verdicts, apart from any experiment: synthetic numbers in, verdicts out."""

import math

import pytest

from orbitlens.errors import InputError
from orbitlens_papers.claim import (
    Claim,
    Finding,
    Outcome,
    PaperVerdict,
    Side,
    Verdict,
    paper_verdict,
)
from orbitlens_papers.estimate import Estimate


def claim(**changes):
    given = {
        "key": "1",
        "text": "tokens converge",
        "source": "somewhere",
        "measured": "a number",
        "side": Side.ABOVE,
        "threshold": 1.0,
        "why": "a round number",
        "control": "turned around",
    }
    return Claim(**(given | changes))


def around(value, half=0.0):
    return Estimate(value=value, low=value - half, high=value + half, n=3, how="made up")


def finding(value, *, half=0.0, control=0.0, **changes):
    outcome = Outcome(result=around(value, half), control=around(control))
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


HOLDS, FAILS, OPEN = finding(2.0), finding(0.5), finding(1.0)
ABSENT = Finding(claim=claim(), outcome=OBSTACLE)


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ([HOLDS, HOLDS], PaperVerdict.REPRODUCED),
        ([HOLDS, FAILS], PaperVerdict.PARTLY),
        ([HOLDS, OPEN], PaperVerdict.PARTLY),
        ([HOLDS, ABSENT], PaperVerdict.PARTLY),
        ([FAILS, OPEN], PaperVerdict.NOT_REPRODUCED),
        ([FAILS, FAILS], PaperVerdict.NOT_REPRODUCED),
        ([OPEN, ABSENT], PaperVerdict.UNDECIDED),
        ([], PaperVerdict.UNDECIDED),
    ],
)
def test_a_paper_is_judged_by_its_core_claims(findings, expected):
    side = Finding(claim=claim(core=False), outcome=FAILING)
    assert paper_verdict([*findings, side]) is expected
