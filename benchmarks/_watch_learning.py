"""Learn on one group of runs, freeze, judge on another.

Enters: logged runs. Leaves: plain data for JSON: what `learn` froze (thresholds of all detectors),
and what `judge` found with it. Neither sees the runs of the other group.

The thresholds of `Watch` are those of its alarms: together they may warn of a share `FALSE_ALARMS`
of sound runs, each of an equal part of it; any other detector, alone, of the whole.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from _watch_alarms import LEARNED, alarm_courses, first_alarms, with_learned
from _watch_courses import BASELINES, courses
from _watch_judging import (
    FALSE_ALARMS,
    Course,
    Judged,
    Outcome,
    auroc_in_time,
    judged,
    largest_by_setting,
    left_at,
    outcome,
    overdue_at,
    plain,
    share_in_time,
    significant,
    summary,
    threshold_at,
    values,
)
from _watch_risk import CHEAP, WATCH, Risk, learn_risk

from orbitlens.watching.alarm import AlarmKind
from orbitlens.watching.alarm_rules import RULES
from orbitlens.watching.thresholds import Thresholds

Run = Mapping[str, Any]
ANY = "any alarm"  # the worst of the learned alarms, by how rare it is in sound runs
RISK, CHEAP_RISK = "risk", "risk of loss and gradient"  # numbers joined in one sum
RISKS = {RISK: WATCH, CHEAP_RISK: CHEAP}
READINGS = ("score_bound", "score_top", "-effective_rank")  # of `Watch`, beside its alarms
KINDS = tuple(kind.value for kind in LEARNED)


def outcomes(runs: Sequence[Run], overdue: int) -> list[Outcome]:
    """Return how each run ended."""
    return [outcome(run["losses"], run["unigram"], overdue) for run in runs]


def learn_overdue(runs: Sequence[Run]) -> int:
    """Return the step at which a run that has learned nothing is overdue."""
    sound = [run for run, o in zip(runs, outcomes(runs, 0), strict=True) if not o.failed]
    return overdue_at([left_at(run["losses"], run["unigram"]) for run in sound])


def learn(runs: Sequence[Run]) -> dict[str, Any]:
    """Return what is frozen: thresholds of all detectors, and the risks."""
    overdue = learn_overdue(runs)
    found = outcomes(runs, overdue)
    risks = {name: learn_risk(runs, found, of) for name, of in RISKS.items()}
    every = [_all_courses(run, risks) for run in runs]
    rows = {name: learned_row(name, runs, found, every) for name in every[0]}
    for each in every:
        each[ANY] = any_alarm(each, rows)
    rows[ANY] = learned_row(ANY, runs, found, every)
    return {
        "runs": dict(Counter(o.kind for o in found)),
        "overdue": overdue,
        "detectors": rows,
        "risks": {name: asdict(risk) for name, risk in risks.items()},
    }


def _all_courses(run: Run, risks: Mapping[str, Risk]) -> dict[str, Course]:
    """Return every detector's course but that of `ANY`, which needs thresholds."""
    found = courses(run)
    kept = {name: found[name] for name in (*BASELINES, *READINGS)}
    return kept | alarm_courses(run) | {name: risk.course(run) for name, risk in risks.items()}


def learned_row(
    name: str, runs: Sequence[Run], found: Sequence[Outcome], every: Sequence[Mapping[str, Course]]
) -> dict[str, Any]:
    """Return threshold and AUROC of a detector on the runs it is learned on."""
    sound = largest_by_setting(
        (run["setting"], each[name].largest())
        for run, each, o in zip(runs, every, found, strict=True)
        if not o.failed
    )
    is_alarm = name in KINDS
    each_may = FALSE_ALARMS / len(KINDS)
    threshold = threshold_at(sound, each_may if is_alarm else FALSE_ALARMS)
    if is_alarm:
        threshold = beyond(threshold)
    elif name == ANY:  # it warns where one of the alarms does
        threshold = -math.log(1.01 * max(each_may, 1 / (len(sound) + 1)))
    seen = [judged(r, o, e[name], threshold) for r, o, e in zip(runs, found, every, strict=True)]
    row = {
        "threshold": significant(threshold),
        "auroc": plain(auroc_in_time(seen)),
        "in_time": plain(share_in_time(seen)),
    }
    return row | ({"sound": [significant(value) for value in sound]} if is_alarm else {})


def any_alarm(each: Mapping[str, Course], rows: Mapping[str, Mapping[str, Any]]) -> Course:
    """Return the largest over alarms of -ln p: p is the share of sound settings with as much.

    So all thresholds move together, each at the same share of sound settings beyond it.
    """
    rare = [[rarity(v, rows[name]["sound"]) for v in each[name].values] for name in KINDS]
    return Course(steps=each[KINDS[0]].steps, values=[max(v) for v in zip(*rare, strict=True)])


def rarity(value: float, sound: Sequence[float]) -> float:
    """Return -ln of the chance, at most, that a new setting like these has so large a value.

    >>> round(math.exp(-rarity(2.5, [3.0, 2.0, 1.0])), 3)
    0.5
    """
    if value == math.inf:
        return math.inf
    return -math.log((1 + sum(other >= value for other in sound)) / (len(sound) + 1))


def beyond(threshold: float) -> float:
    """Return three digits of a threshold, rounded so that what reaches it stays below.

    >>> beyond(1234.5), beyond(-1.1421), beyond(0.98765)
    (1240.0, -1.14, 0.988)
    """
    unit = 10.0 ** (math.floor(math.log10(abs(threshold))) - 2)
    return float(f"{math.ceil(threshold / unit) * unit:.3g}")


def limits_of(frozen: Mapping[str, Any]) -> dict[str, float]:
    """Return the learned thresholds of alarms, as `Thresholds` has them."""
    return {name: abs(frozen["detectors"][name]["threshold"]) for name in KINDS}


def seen_by(runs: Sequence[Run], frozen: Mapping[str, Any]) -> dict[str, list[Judged]]:
    """Return every run as every detector saw it, with frozen thresholds."""
    risks = {name: Risk(**stored) for name, stored in frozen["risks"].items()}
    rows = frozen["detectors"]
    table: dict[str, list[Judged]] = {}
    for run, found in zip(runs, outcomes(runs, frozen["overdue"]), strict=True):
        each = _all_courses(run, risks)
        each[ANY] = any_alarm(each, rows)
        for name, row in rows.items():
            table.setdefault(name, []).append(judged(run, found, each[name], row["threshold"]))
    return table


def judge(runs: Sequence[Run], frozen: Mapping[str, Any]) -> dict[str, Any]:
    """Return what frozen detectors made of other runs."""
    table = seen_by(runs, frozen)
    limits = with_learned(limits_of(frozen))
    raised = [first_alarms(run, limits) for run in runs]
    found = outcomes(runs, frozen["overdue"])
    return {
        "settings": len({run["setting"] for run in runs}),
        "runs": len(runs),
        "groups": {"learn": frozen["runs"], "judge": dict(Counter(o.kind for o in found))},
        "detectors": {name: _row(seen) for name, seen in table.items()},
        "alarms": _alarm_rows(found, raised, limits),
        "each": [_line(*one) for one in zip(runs, found, raised, strict=True)],
    }


def _row(seen: Sequence[Judged]) -> dict[str, Any]:
    """Return all statistics of a detector, and those of each kind of failure."""
    by_kind = {}
    for kind in ("broke", "stalled"):
        part = [s for s in seen if s.outcome.kind in {kind, "well"}]
        by_kind[kind] = values(part)
    return summary(seen) | {"by kind": by_kind, "at equal false alarms": at_equal(seen)}


def at_equal(seen: Sequence[Judged]) -> dict[str, Any]:
    """Return what a detector does at the threshold that 5 % of *these* sound runs exceed.

    Not frozen: the threshold is chosen on the runs that are judged. It sets detectors side by side
    whose frozen thresholds turned out to give different shares of false alarms.
    """
    largest = sorted((s.course.largest() for s in seen if not s.outcome.failed), reverse=True)
    threshold = largest[int(FALSE_ALARMS * len(largest))]
    again = [replace(s, warned=s.course.first_above(threshold)) for s in seen]
    kept = values(again)
    return {name: kept[name] for name in ("in_time", "ahead", "false_alarms")}


def _alarm_rows(
    found: Sequence[Outcome], raised: Sequence[Mapping[AlarmKind, int]], limits: Thresholds
) -> dict[str, dict[str, Any]]:
    """Return, of every kind of alarm of `Watch`, how often it was right and wrong."""
    rows = {ANY: _counts(found, [min(steps.values(), default=None) for steps in raised])}
    for rule in RULES:
        row = _counts(found, [steps.get(rule.kind) for steps in raised])
        rows[rule.kind.value] = row | {"threshold": getattr(limits, rule.limit)}
    return rows


def _counts(found: Sequence[Outcome], warned: Sequence[int | None]) -> dict[str, Any]:
    failed = [(o, step) for o, step in zip(found, warned, strict=True) if o.onset is not None]
    sound = [step for o, step in zip(found, warned, strict=True) if o.onset is None]
    counts: dict[str, Any] = {
        "failed": len(failed),
        "in_time": sum(step is not None and step < o.onset for o, step in failed),
        "ever": sum(step is not None for _, step in failed),
        "sound": len(sound),
        "false": sum(step is not None for step in sound),
    }
    for kind in ("broke", "stalled"):
        own = [(o, step) for o, step in failed if o.kind == kind]
        counts[kind] = {
            "failed": len(own),
            "in_time": sum(step is not None and step < o.onset for o, step in own),
            "ever": sum(step is not None for _, step in own),
        }
    return counts


def _line(run: Run, found: Outcome, raised: Mapping[AlarmKind, int]) -> dict[str, Any]:
    return {
        **{key: run[key] for key in ("setting", "seed", "chosen")},
        "kind": found.kind,
        "onset": found.onset,
        "alarms": {kind.value: step for kind, step in raised.items()},
    }
