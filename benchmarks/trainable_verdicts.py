"""Verdicts of `forecast` against runs that were trained: thresholds learnt, then judged once.

    python benchmarks/trainable_verdicts.py learn     # on settings that are there for it
    python benchmarks/trainable_verdicts.py judge     # on the others, once

Both read docs/forecast-trainable.json, of `trainable.py`. `learn` writes the thresholds into the
package; `judge` adds how often they were right there, and writes docs/forecast-verdicts.json:
verdicts beside those of rules that know less (the commoner outcome, depth, first weights) or cost
more (the loss after 20 steps), all learnt on the same runs.
"""

import argparse
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
from trainable import CONTEXT, HEADS, is_learnt, narrower, settings

from orbitlens.forecasting.api import depths_of
from orbitlens.forecasting.blueprint import Blueprint
from orbitlens.forecasting.forecast_result import TrainingVerdict
from orbitlens.forecasting.trainability import (
    STORED,
    HitRate,
    LearntThresholds,
    Threshold,
    learnt,
    readings_of,
    verdict_of,
)
from orbitlens.results.codec import encode

RUNS, VERDICTS = Path("docs/forecast-trainable.json"), Path("docs/forecast-verdicts.json")
N_CHARACTERS = 65  # of the text
AFTER = 3  # "above" holds every fifth step: the fourth is that of step 20


def plan_of(setting):
    """Return the blueprint of a setting."""
    return Blueprint(
        layers=setting["layers"],
        width=setting["width"],
        heads=HEADS,
        norm=setting["norm"],
        init=setting["init"],
        output_init=setting["init"] * narrower(setting),
        qk_norm=setting["qk_norm"],
        position=setting["position"],
        activation=setting["activation"],
        context=CONTEXT,
        vocabulary=N_CHARACTERS,
    )


def runs(half):
    """Return the runs to learn from, or those to judge: as many as there are, in their order."""
    stored = {json.dumps(row["setting"]): row for row in json.loads(RUNS.read_text())}
    numbers = [k for k in range(len(settings())) if is_learnt(k) == (half == "learn")]
    wanted = [json.dumps(settings()[k]) for k in numbers]
    print(f"{sum(each in stored for each in wanted)} of {len(wanted)} runs to {half} are there")
    return [stored[each] for each in wanted if each in stored]


def readings(rows):
    plans = [plan_of(row["setting"]) for row in rows]
    return [readings_of(plan, list(depths_of(plan, seed=0))) for plan in plans]


# --- learning --------------------------------------------------------------------------------


def gaps(values):
    """Return places between neighbours, and one beyond each end."""
    found = np.unique(values)
    return np.concatenate([[found[0] - 1], (found[1:] + found[:-1]) / 2, [found[-1] + 1]])


def learnt_thresholds(table, fails):
    """Return thresholds with fewest errors, and their number.

    The first three are found together, among equals with most room around them; that of collapse,
    which the others leave little to say, is the lowest that costs no further error.
    """
    names = ("erasure", "faintness", "sensitivity")
    places = [gaps(table[name]) for name in names]
    beyond = [table[n][:, None] > p[None, :] for n, p in zip(names, places, strict=True)]
    best = None
    for first, second in itertools.product(range(len(places[0])), range(len(places[1]))):
        pair = beyond[0][:, first] | beyond[1][:, second]
        wrong = ((pair[:, None] | beyond[2]) != fails[:, None]).sum(axis=0)
        if best is not None and wrong.min() > best[0][0]:
            continue
        for third in np.flatnonzero(wrong == wrong.min()):
            at = zip(names, places, (first, second, third), strict=True)
            found = {name: threshold(table[name], p[k], fails) for name, p, k in at}
            room = sum(each.fails_from - each.trains_to for each in found.values())
            key = (int(wrong[third]), -room)
            if best is None or key < best[0]:
                best = key, found, pair | beyond[2][:, third]
    (n_wrong, _), found, said = best
    for place in gaps(table["collapse"]):
        if ((said | (table["collapse"] > place)) != fails).sum() <= n_wrong:
            return found | {"collapse": threshold(table["collapse"], place, fails)}, n_wrong
    raise AssertionError("a threshold above all values costs nothing")


def threshold(values, place, fails):
    """Return the last run below a place that trained, and the first beyond it that failed."""
    below, above = values[(values <= place) & ~fails], values[(values > place) & fails]
    return Threshold(
        trains_to=float(below.max()) if len(below) else float(place),
        fails_from=float(above.min()) if len(above) else float(place),
    )


def learn():
    rows = runs("learn")
    found, fails = readings(rows), np.array([row["fails"] for row in rows])
    table = {name: np.array([each[name] for each in found]) for name in found[0]}
    thresholds, wrong = learnt_thresholds(table, fails)
    write(LearntThresholds(thresholds=thresholds, n_learnt=len(rows), hits=None))
    print(f"{len(rows)} runs, {fails.sum()} failed; {wrong} wrong by the thresholds learnt on them")
    for name, each in thresholds.items():
        print(f"{name}: trains to {each.trains_to:.3g}, fails from {each.fails_from:.3g}")


def write(found):
    STORED.write_text(json.dumps(encode(found), indent=1) + "\n")


# --- judging ---------------------------------------------------------------------------------


def cut_at(values, fails):
    """Return the best rule of one number: fails above, or below, a place; or outside of two."""
    places = gaps(values)
    rules = [(low, high) for low in places for high in places if low <= high]
    return min(rules, key=lambda rule: (outside(values, rule) != fails).sum())


def outside(values, rule):
    return (values < rule[0]) | (values > rule[1])


def of_one_number(name, learning, judging, number):
    """Return what a rule of one number, learnt on one half, says of the other."""
    fails = np.array([row["fails"] for row in learning])
    rule = cut_at(np.array([number(row) for row in learning]), fails)
    return name, outside(np.array([number(row) for row in judging]), rule)


def by_norm(learning, judging):
    """Return what a rule of first weights says that is learnt for each norm by itself."""
    said = np.zeros(len(judging), dtype=bool)
    for norm in {row["setting"]["norm"] for row in judging}:
        own = np.array([row["setting"]["norm"] == norm for row in judging])
        alike = [row for row in learning if row["setting"]["norm"] == norm]
        said[own] = of_one_number("", alike, judging, first_weights)[1][own]
    return said


def first_weights(row):
    return math.log(row["setting"]["init"])


def after_twenty(row):
    values = row["above"]
    last = values[AFTER] if len(values) > AFTER else None
    return 100.0 if last is None else last


def wilson(right, n):
    """Return the 95 % interval of a share."""
    z = 1.959964
    middle = (right + z**2 / 2) / (n + z**2)
    half = z / (n + z**2) * math.sqrt(right * (n - right) / n + z**2 / 4)
    return middle - half, middle + half


def by_middle(thresholds, found):
    """Return a plain yes or no: whether a reading is beyond the middle of its two thresholds."""
    middles = {name: (t.trains_to + t.fails_from) / 2 for name, t in thresholds.items()}
    return np.array([any(each[name] > at for name, at in middles.items()) for each in found])


def judge():
    learning, judging = runs("learn"), runs("judge")
    fails, thresholds = np.array([row["fails"] for row in judging]), learnt().thresholds
    found = readings(judging)
    verdicts = [verdict_of(each, thresholds) for each in found]
    commoner = sum(row["fails"] for row in learning) > len(learning) / 2
    said = {
        "forecast": by_middle(thresholds, found),
        "the commoner outcome": np.full(len(judging), commoner),
        **dict(
            of_one_number(name, learning, judging, number)
            for name, number in (
                ("depth alone", lambda row: math.log(row["setting"]["layers"])),
                ("first weights alone", first_weights),
                ("the loss after 20 steps", after_twenty),
            )
        ),
        "first weights, for each norm": by_norm(learning, judging),
    }
    answered = [k for k, v in enumerate(verdicts) if v is not TrainingVerdict.UNCLEAR]
    right = sum((verdicts[k] is TrainingVerdict.FAILS) == bool(fails[k]) for k in answered)
    low, high = wilson(right, len(answered))
    hits = HitRate(
        n=len(judging), right=right, unanswered=len(judging) - len(answered), low=low, high=high
    )
    write(replace(learnt(), hits=hits))
    rules = {}
    for name, each in said.items():
        n_right = int((each == fails).sum())
        rules[name] = {"right": n_right, "interval": wilson(n_right, len(fails))}
        print(f"{name}: right in {n_right} of {len(fails)}")
    print(f"three verdicts: right in {right} of {len(answered)} answered")
    data = {
        "learnt": {"n": len(learning), "failed": sum(row["fails"] for row in learning)},
        "judged": {"n": len(judging), "failed": int(fails.sum())},
        "rules": rules,
        "rows": [
            [row["setting"], each, v.value, bool(f)]
            for row, each, v, f in zip(judging, found, verdicts, fails, strict=True)
        ],
    }
    VERDICTS.write_text(json.dumps(data, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("learn", "judge"))
    {"learn": learn, "judge": judge}[parser.parse_args().what]()


if __name__ == "__main__":
    main()
