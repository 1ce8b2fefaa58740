"""Tables of docs/forecast.md, from stored runs of benchmarks, and of experiments of the lab."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

from generated.tables import table

from orbitlens.forecasting.api import forecast
from orbitlens.forecasting.blueprint import Blueprint
from orbitlens.forecasting.trainability import learnt, measured_words

DOCS = Path(__file__).resolve().parents[1]
STORED = DOCS / "forecast-stacks.json"
NEAR = 0.05  # of a mean cosine


def _stored() -> list[dict[str, Any]]:
    stored: list[dict[str, Any]] = json.loads(STORED.read_text(encoding="utf-8"))
    return stored


def stacks() -> str:
    """Return how near forecasts come, by norm and by first weights."""
    rows = _stored()
    groups = {
        f"{norm}-norm": [r for r in rows if r["plan"]["norm"] == norm]
        for norm in ("pre", "post", "peri")
    }
    inits = sorted({row["plan"]["init"] for row in rows})
    groups |= {
        f"first weights {init:g}": [r for r in rows if r["plan"]["init"] == init] for init in inits
    }
    groups["all"] = rows
    lines = [[name, *_cells(found)] for name, found in groups.items()]
    header = (
        "Stacks",
        "n",
        "C within 0.05 in every layer",
        "median of the largest error",
        "largest",
        "gradient within a factor of 2",
    )
    return table(header, lines)


def _cells(rows: list[dict[str, Any]]) -> list[str]:
    errors = [row["error"] for row in rows]
    near = sum(error <= NEAR for error in errors)
    factors = [abs(math.log2(told / built)) for told, built in (row["gradient"] for row in rows)]
    even = sum(factor <= 1 for factor in factors)
    return [
        str(len(rows)),
        f"{near} ({near / len(rows):.0%})",
        f"{statistics.median(errors):.3f}",
        f"{max(errors):.3f}",
        f"{even} ({even / len(rows):.0%})",
    ]


SURE = 0.01  # standard error of a mean cosine that was asked for


def stacks_words() -> str:
    """Return how many stacks are near, and where models still differ too much to tell."""
    rows = _stored()
    near = sum(row["error"] <= NEAR for row in rows)
    sure = [row for row in rows if row["spread"] < SURE]
    sure_near = sum(row["error"] <= NEAR for row in sure)
    built = sum(row["models"] for row in rows)
    met = "met" if near >= 100 else "missed"
    return (
        f"{built:,} models were built. C is within {NEAR} in every layer of {near} of {len(rows)} "
        f"stacks: the goal of 100 is {met}. In {len(sure)} stacks the mean of models is as sure as "
        f"the rule asks, and the forecast is within {NEAR} in {sure_near} of these."
    )


def cost() -> str:
    """Return how long a forecast takes."""
    found = [row["milliseconds"] for row in _stored()]
    return f"A forecast of these took {statistics.median(found):.0f} ms of the processor in median."


# --- trainable or not ------------------------------------------------------------------------


def _verdicts() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads((DOCS / "forecast-verdicts.json").read_text("utf-8"))
    return stored


def verdicts() -> str:
    """Return how often each rule was right on runs that it had not seen."""
    stored = _verdicts()
    n = stored["judged"]["n"]
    rows = []
    for name, found in stored["rules"].items():
        low, high = found["interval"]
        share = f"{found['right']} of {n} ({found['right'] / n:.0%})"
        rows.append([name, share, f"{low:.0%} to {high:.0%}"])
    return table(("Rule", "right", "95 % interval"), rows)


GOAL = 0.9  # share of verdicts that was to be right


def verdict_words() -> str:
    """Return what was trained, what was learnt, and how verdicts fared."""
    stored, known = _verdicts(), learnt()
    learning, judged = stored["learnt"], stored["judged"]
    right = stored["rules"]["forecast"]["right"]
    met = "met" if right >= GOAL * judged["n"] else "missed"
    edges = "; ".join(
        f"{name}: trains to {each.trains_to:.2g}, fails from {each.fails_from:.2g}"
        for name, each in known.thresholds.items()
    )
    return (
        f"Of {learning['n'] + judged['n']} models {learning['failed'] + judged['failed']} failed. "
        f"Thresholds were learnt on {learning['n']} of them ({edges}) and judged once on the "
        f"other {judged['n']}, of which {judged['failed']} failed. Asked for a plain yes or no "
        f"(the middle of each pair), the forecast was right in {right} of {judged['n']}: the goal "
        f"of {GOAL:.0%} is {met}. {measured_words()}"
    )


# --- our own experiments ---------------------------------------------------------------------

ARMS = ("none", "definite-negative", "definite-half", "definite-positive")
SWEEPS = {0.1: "convergence-deep", 0.02: "convergence-deep-small"}
N_DRAWS = 5


def arms() -> str:
    """Return what is forecast for the arms of the deep experiment, beside what training gave."""
    rows = []
    for init, name in SWEEPS.items():
        stored = json.loads((DOCS / "experiments" / f"{name}.json").read_text("utf-8"))
        trained = {row["label"]: row for row in stored["summary"]}
        base = stored["plan"]["base"]
        for arm in ARMS:
            plan = Blueprint(
                layers=base["layers"],
                width=base["width"],
                heads=4,
                norm=base["norm"],
                context=base["context"],
                vocabulary=65,
                init=init,
                refinement=arm,
            )
            found = [forecast(plan, seed=seed, advise=False) for seed in range(N_DRAWS)]
            after = [each.last.cosine for each in found]
            said = sorted({each.verdict.value for each in found})
            loss = trained[arm]["loss"]["mean"]
            cosine = trained[arm]["measured"]["cosine_last"]["mean"]
            cells = [f"{statistics.fmean(after):.2f}", " or ".join(said)]
            rows.append([f"{init:g}", arm, *cells, f"{cosine:.2f}", f"{loss:.2f}"])
    header = (
        "initial weights",
        "arm",
        "C forecast, untrained",
        "forecast",
        "C measured, trained",
        "loss, trained",
    )
    return table(header, rows)


def ten() -> str:
    """Return ten architectures beside models that were built, from the stored run."""
    stored = json.loads((DOCS / "forecast-ten.json").read_text("utf-8"))
    rows = [
        [
            row["name"],
            f"{row['cosine']:.3f}",
            f"{row['built_cosine']:.3f}",
            f"{row['largest_error']:.3f}",
            f"{row['gradient']:.3g}",
            f"{row['built_gradient']:.3g}",
            row["verdict"],
        ]
        for row in stored["rows"]
    ]
    built = f"built ({stored['n_built']})"
    names = ("", "C", built, "most off in any layer", "gradient", built, "verdict")
    return table(names, rows)
