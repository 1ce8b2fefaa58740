"""Learn on one half of the settings, freeze, judge on the other.

Enters: logged runs. Leaves: plain data for JSON: what `learn` froze (thresholds, and which
readings of `Watch` stand for it), and what `judge` found with it. Neither sees the runs of the
other half.
"""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from _watch_courses import BASELINES, CHANGES, SLOW, courses, courses_of_steps
from _watch_judging import (
    Course,
    Judged,
    Outcome,
    auroc_in_time,
    judged,
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

Run = Mapping[str, Any]
# Readings that speak of each kind of failure; which one stands for it is chosen on the first half.
# The entropy floor falls with the score bound, and underflows where that is large: not among them.
FREEZING = ("freezing", "score_bound", "sharpness", "sharpness_mean")
COLLAPSE = ("cosine", "cosine_mean", "cosine_last", "-log_spread", "-effective_rank")
ANY = "freezing or collapse"  # either of the two, each in units of its own threshold
RISK, CHEAP_RISK = "risk", "risk of loss and gradient"  # numbers joined in one sum
RISKS = {RISK: WATCH, CHEAP_RISK: CHEAP}
BY_HAND = "by hand"  # the alarms of `Watch` at thresholds from theory, before this experiment
HAND = {"freezing held 2": 1.0, "cosine held 2": 0.98}
RULES = (*HAND, "-effective_rank held 2")  # what an alarm of two readings in a row could rest on


def half(runs: Sequence[Run], name: str) -> list[Run]:
    """Return the runs of one half."""
    return [run for run in runs if run["half"] == name]


def outcomes(runs: Sequence[Run], overdue: int) -> list[Outcome]:
    """Return how each run ended."""
    return [outcome(run["losses"], run["unigram"], overdue) for run in runs]


def learn_overdue(runs: Sequence[Run]) -> int:
    """Return the step at which a run that has learned nothing is overdue."""
    sound = [run for run, o in zip(runs, outcomes(runs, 0), strict=True) if not o.failed]
    return overdue_at([left_at(run["losses"], run["unigram"]) for run in sound])


def learn(runs: Sequence[Run]) -> dict[str, Any]:
    """Return what is frozen: thresholds of all detectors, the chosen ones, and the risk."""
    chosen_runs = half(runs, "learn")
    overdue = learn_overdue(chosen_runs)
    found = outcomes(chosen_runs, overdue)
    risks = {name: learn_risk(chosen_runs, found, of) for name, of in RISKS.items()}
    every = [_all_courses(run, risks) for run in chosen_runs]
    rows = {name: learned_row(name, chosen_runs, found, every) for name in every[0]}
    families = {"freezing": FREEZING, "collapse": COLLAPSE}
    chosen = {
        kind: _best(rows, [f + c for f in names for c in CHANGES])
        for kind, names in families.items()
    }
    others = (*BASELINES, *RISKS, BY_HAND, *courses_of_steps(chosen_runs[0]))
    slow = tuple(name + change for name in SLOW for change in CHANGES)
    chosen["reading"] = _best(rows, [n for n in rows if n not in (*others, *slow)])
    frozen = {
        "overdue": overdue,
        "chosen": chosen,
        "detectors": rows,
        "risks": {n: asdict(r) for n, r in risks.items()},
    }
    for each in every:
        each[ANY] = either(each, frozen)
    rows[ANY] = learned_row(ANY, chosen_runs, found, every)
    return {"runs": dict(Counter(o.kind for o in found)), **frozen}


def _all_courses(run: Run, risks: Mapping[str, Risk]) -> dict[str, Course]:
    """Return every detector's course but that of `ANY`, which needs thresholds."""
    found = courses(run)
    by_hand = [[v / limit for v in found[name].values] for name, limit in HAND.items()]
    found[BY_HAND] = Course(steps=run["at"], values=[max(v) for v in zip(*by_hand, strict=True)])
    return found | {name: risk.course(run) for name, risk in risks.items()}


def learned_row(
    name: str, runs: Sequence[Run], found: Sequence[Outcome], every: Sequence[Mapping[str, Course]]
) -> dict[str, Any]:
    """Return threshold and AUROC of a detector on the runs it is learned on."""
    largest = [each[name].largest() for each, o in zip(every, found, strict=True) if not o.failed]
    # At the limits or above: those by hand are from theory, and nothing is learned.
    threshold = 1.0 - 1e-9 if name == BY_HAND else threshold_at(largest)
    seen = [judged(r, o, e[name], threshold) for r, o, e in zip(runs, found, every, strict=True)]
    return {
        "threshold": threshold if name == BY_HAND else significant(threshold),
        "centre": significant(statistics.median(largest)),
        "auroc": plain(auroc_in_time(seen)),
        "in_time": plain(share_in_time(seen)),
    }


def _best(rows: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> str:
    """Return the detector with the largest AUROC; ties: the one that warned of more in time."""
    usable = [name for name in names if name in rows and rows[name]["threshold"] is not None]
    return max(usable, key=lambda name: (rows[name]["auroc"], rows[name]["in_time"]))


def either(each: Mapping[str, Course], frozen: Mapping[str, Any]) -> Course:
    """Return the larger of the two alarms, 0 at what is usual in sound runs, 1 at its threshold."""
    names = [frozen["chosen"][kind] for kind in ("freezing", "collapse")]
    scaled = []
    for name in names:
        row = frozen["detectors"][name]
        span = row["threshold"] - row["centre"]
        scaled.append([(v - row["centre"]) / span for v in each[name].values])
    return Course(steps=each[names[0]].steps, values=[max(v) for v in zip(*scaled, strict=True)])


def seen_by(runs: Sequence[Run], frozen: Mapping[str, Any]) -> dict[str, list[Judged]]:
    """Return every run as every detector saw it, with frozen thresholds."""
    risks = {name: Risk(**stored) for name, stored in frozen["risks"].items()}
    table: dict[str, list[Judged]] = {}
    for run, found in zip(runs, outcomes(runs, frozen["overdue"]), strict=True):
        each = _all_courses(run, risks)
        each[ANY] = either(each, frozen)
        for name, row in frozen["detectors"].items():
            table.setdefault(name, []).append(judged(run, found, each[name], row["threshold"]))
    return table


def shown(frozen: Mapping[str, Any]) -> list[str]:
    """Return the detectors of the table: all baselines, and what stands for `Watch`."""
    return [*BASELINES, CHEAP_RISK, BY_HAND, *dict.fromkeys(frozen["chosen"].values()), ANY, RISK]


def judge(runs: Sequence[Run], frozen: Mapping[str, Any]) -> dict[str, Any]:
    """Return what frozen detectors made of the other half."""
    other = half(runs, "judge")
    table = seen_by(other, frozen)
    names = shown(frozen)
    return {
        "settings": len({run["setting"] for run in runs}),
        "runs": len(runs),
        "halves": {name: _kinds(half(runs, name)) for name in ("learn", "judge")},
        "chosen": frozen["chosen"],
        "detectors": {name: _row(table[name]) for name in names},
        "all readings": {
            name: plain(auroc_in_time(seen)) for name, seen in table.items() if name not in names
        },
        "rules": rules(table, frozen),
        "first": _told_apart(table, frozen),
        "each": [_line(run, k, table, names) for k, run in enumerate(other)],
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
    largest = [s.course.largest() for s in seen if not s.outcome.failed]
    threshold = threshold_at(largest)
    again = [replace(s, warned=s.course.first_above(threshold)) for s in seen]
    kept = values(again)
    return {name: kept[name] for name in ("in_time", "ahead", "false_alarms")}


def rules(
    table: Mapping[str, Sequence[Judged]], frozen: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return what single alarms do, at thresholds by hand and at learned ones."""
    found = {}
    for name in RULES:
        limits = {"learned": frozen["detectors"][name]["threshold"]}
        limits |= {"by hand": HAND[name] - 1e-9} if name in HAND else {}
        for origin, limit in limits.items():
            again = [replace(s, warned=s.course.first_above(limit)) for s in table[name]]
            kept = values(again)
            parts = {key: kept[key] for key in ("in_time", "ahead", "false_alarms")}
            found[f"{name}, {origin}"] = {"threshold": significant(limit), **parts}
    return found


def _kinds(runs: Sequence[Run]) -> dict[str, int]:
    return dict(Counter(o.kind for o in outcomes(runs, 0)))


def _told_apart(table: Mapping[str, Sequence[Judged]], frozen: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many failed runs each of the two alarms warned of first, by kind of end."""
    freezing, collapse = (table[frozen["chosen"][kind]] for kind in ("freezing", "collapse"))
    counts: dict[str, Counter[str]] = {"broke": Counter(), "stalled": Counter(), "well": Counter()}
    for one, other in zip(freezing, collapse, strict=True):
        counts[one.outcome.kind][first_alarm(one.warned, other.warned)] += 1
    return {kind: dict(found) for kind, found in counts.items()}


def first_alarm(freezing: int | None, collapse: int | None) -> str:
    """Return which alarm came first."""
    if freezing is None and collapse is None:
        return "neither"
    if freezing is None or (collapse is not None and collapse < freezing):
        return "collapse"
    return "both at once" if freezing == collapse else "freezing"


def _line(
    run: Run, k: int, table: Mapping[str, Sequence[Judged]], names: Sequence[str]
) -> dict[str, Any]:
    found = table[names[0]][k].outcome
    return {
        **{key: run[key] for key in ("setting", "seed", "chosen")},
        "kind": found.kind,
        "onset": found.onset,
        "warned": {name: table[name][k].warned for name in names},
    }
