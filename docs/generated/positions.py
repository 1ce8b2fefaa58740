"""Tables of docs/positions.md, from stored runs of benchmarks/positions*.py."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from generated.tables import table

from orbitlens.encodings.words import ranges

DOCS = Path(__file__).resolve().parents[1]
STORED, FAULTS = DOCS / "positions-forensics.json", DOCS / "positions-faults.json"
COST, BASE = DOCS / "positions-cost.json", DOCS / "positions-base.json"
OUTCOMES = ("right", "wrong", "cannot tell")


def _stored() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8"))
    return stored


def _rows(counts: list[dict[str, Any]], key: str) -> list[list[str]]:
    """Return one row a value of the key: layers by outcome, and shares of them."""
    totals: dict[Any, Counter[str]] = {}
    for row in counts:
        totals.setdefault(row[key], Counter()).update({name: row[name] for name in OUTCOMES})
    return [[str(value), *_cells(found)] for value, found in totals.items()]


def _cells(found: Counter[str]) -> list[str]:
    said = found["right"] + found["wrong"]
    n = said + found["cannot tell"]
    shares = [f"{found['right'] / said:.1%}" if said else "–", f"{said / n:.0%}" if n else "–"]
    return [*(str(found[name]) for name in OUTCOMES), *shares]


def _table(first: str, counts: list[dict[str, Any]], key: str) -> str:
    return table((first, *OUTCOMES, "right of those said", "said"), _rows(counts, key))


def frozen() -> str:
    """Return layers of the frozen run by variant."""
    stored = _stored()
    head = f"{stored['models']} models, {stored['models and variants']} with their variants.\n\n"
    whole = [
        _total(stored["counts"], "all"),
        _total(stored["with 8 planes"], "8 planes and more"),
        _total(stored["trained"]["counts"], "8 planes and more, trained"),
    ]
    return head + _table("Variant", [*stored["counts"], *whole], "variant")


def _total(counts: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return {"variant": name} | {key: sum(row[key] for row in counts) for key in OUTCOMES}


def goals() -> str:
    """Return the goals of the issue beside what came out."""
    stored = _stored()
    whole, many = _total(stored["counts"], ""), _total(stored["with 8 planes"], "")
    said = whole["right"] + whole["wrong"]
    trained = next(row for row in stored["counts"] if row["variant"] == "as trained")
    n_trained = sum(trained[key] for key in OUTCOMES)
    n_many = sum(many[key] for key in OUTCOMES)
    moved = _total(stored["trained"]["counts"], "")
    n_moved = sum(moved[key] for key in OUTCOMES)
    right, answered = whole["right"] / said, 1 - many["cannot tell"] / n_many
    of_moved = 1 - moved["cannot tell"] / n_moved
    alarms = trained["wrong"] / n_trained
    goals = (
        ("right of those said, all variants", right, ">= 99 %", right >= 0.99),
        ("answered, of trained layers with 8 planes", of_moved, ">= 95 %", of_moved >= 0.95),
        ("the same, trained or not", answered, ">= 95 %", answered >= 0.95),
        ("false alarms, of layers as trained", alarms, "< 1 %", alarms < 0.01),
    )
    rows = [
        (name, f"{value:.1%}", goal, "met" if is_met else "missed")
        for name, value, goal, is_met in goals
    ]
    return table(("Goal", "came out", "wanted", ""), rows)


def by_running() -> str:
    """Return what losses said, of models."""
    return _table("Model", _stored()["by running"], "variant")


def faults() -> str:
    """Return planted faults, what was said of them, and their repair."""
    stored, rows = json.loads(FAULTS.read_text(encoding="utf-8")), []
    texts = {row["model"]: f"{row['tokens']:,} tokens of {row['text']}" for row in stored}
    for row in stored:
        off = row.get("off after repair")
        rows.append(
            (
                row["model"],
                row["fault"],
                _verdict(row),
                f"{row['as loaded']:.2f}",
                f"{row['best']}: {row['best loss']:.2f}",
                "" if off is None else f"{off:.0e}" if off else "0",
            )
        )
    names = ("Model", "Fault", "said", "loss", "best other", "off after repair")
    run_on = "; ".join(f"{model}: {text}" for model, text in texts.items())
    return f"{table(names, rows)}\n\nRun on {run_on}."


def _verdict(row: dict[str, Any]) -> str:
    wrong = row["disagreeing"]
    if wrong:
        return f"{'layer' if len(wrong) == 1 else 'layers'} {ranges(wrong)} disagree"
    if row["base"] is not None:
        return f"layers agree; a base of {row['base']:g} fits better"
    return "agrees"


def cost() -> str:
    """Return what reading costs."""
    stored = json.loads(COST.read_text(encoding="utf-8"))
    rows = [
        (
            name,
            f"{stored[name]['bytes'] / 1e6:.0f}",
            f"{stored[name]['fetched'] / 1e6:.0f}",
            f"{stored[name]['seconds']:.2f}",
            f"{stored[name]['processor']:.2f}",
            f"{stored[name]['memory'] / 1e6:.0f}",
        )
        for name in ("plain read", "positions")
    ]
    names = ("", "MB asked for", "MB fetched", "seconds", "of the processor", "MB of memory")
    busy = stored["positions"]["processor"] / stored["plain read"]["processor"]
    met = "met" if stored["ratio"] <= stored["goal"] else "missed"
    return (
        f"{stored['layers']} layers, {stored['file size'] / 1e9:.2f} GB in all.\n\n"
        f"{table(names, rows)}\n\n"
        f"{stored['ratio']:.1f} times as long as a plain read of the same bytes (goal: "
        f"{stored['goal']:g}; {met}), and {busy:.1f} times the processor, which is what can be "
        "compared on a machine with other work."
    )


def base() -> str:
    """Return estimates of bases against the truth."""
    stored = json.loads(BASE.read_text(encoding="utf-8"))
    judged = stored["judged"]
    bases = sorted({row["base"] for row in judged})
    rows: list[tuple[str, ...]] = []
    for true in bases:
        found = sorted(row["estimate"] for row in judged if row["base"] == true)
        rows.append((f"{true:g}", str(len(found)), ", ".join(f"{b:.2g}" for b in found)))
    errors = [
        (name, *(f"{10 ** each[key]:.1f}" for key in ("median", "mean", "worst")))
        for name, each in stored["errors"].items()
    ]
    reals = [
        (row["model"], f"{row['base']:g}", f"{row['context']:,}", f"{row['estimate']:.2g}")
        for row in stored["real"]
    ]
    return "\n\n".join(
        (
            table(("True base", "models", "estimates"), rows),
            table(("", "median factor off", "mean (of logarithms)", "worst"), errors),
            "The same step, on models of others:",
            table(("Model", "base", "context", "estimate"), reals),
        )
    )


def by_start() -> str:
    """Return layers as trained, by the deviation of the first weights."""
    return _table("First weights", sorted(_stored()["by start"], key=lambda r: r["init"]), "init")


def by_steps() -> str:
    """Return layers by steps of training."""
    rows = sorted(_stored()["by steps"], key=lambda r: r["steps"])
    return _table("Steps", [row for row in rows if row["init"] < 0.1], "steps")


def real() -> str:
    """Return layers of real checkpoints."""
    return _table("Model", _stored()["real"], "model")
