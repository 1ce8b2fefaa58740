"""Tables of closures for directions in docs/trace.md, from docs/direction-agreement.json.

`benchmarks/direction_agreement.py` writes that file.
"""

import json
from pathlib import Path

from generated.tables import table

FILE = Path(__file__).parents[1] / "direction-agreement.json"
DATA = json.loads(FILE.read_text(encoding="utf-8"))
ROWS, GOALS, CHOSEN = DATA["rows"], DATA["goals"], DATA["chosen"]
MEASURES = {
    "heads": "Pearson's correlation over heads",
    "signs": "right signs of heads beyond 0.01",
    "layers": "Pearson's correlation over layers",
    "error": "mean error over layers, over the mean size of what attention does",
}
SHARES, PREDICTED, ALONE = CHOSEN.values()


def closures() -> str:
    """Return what each closure knows beside the weights."""
    known = DATA["closures"].items()
    rows = [(f"`{name}`", one["ground"], one["knows"]) for name, one in known]
    return table(["Closure", "What it is", "What it knows, beside the weights"], rows)


def models() -> str:
    """Return the models, what they read, and what attention does to their directions."""
    rows = [
        (
            _title(row),
            row["texts"],
            f"{row['clear']} of {row['heads']}",
            _number(row["baselines"]["majority sign"]["signs"]),
            f"{row['size']:.3f}",
        )
        for row in ROWS
    ]
    header = ["model", "text", "heads beyond 0.01", "their commoner sign", "mean size of a layer"]
    return table(header, rows)


def agreement() -> str:
    """Return one table a measure: closures by models."""
    parts = []
    for measure, title in MEASURES.items():
        header = ["closure", *map(_title, ROWS)]
        rows = [(f"`{name}`", *_values("closures", name, measure)) for name in DATA["closures"]]
        for name in ROWS[0]["baselines"]:
            values = _values("baselines", name, measure)
            if set(values) != {"–"} and not (measure == "error" and name.startswith("size")):
                rows.append((f"*{name}*", *values))
        parts.append(f"**{title[0].upper()}{title[1:]}**\n\n{table(header, rows)}")
    return "\n\n".join(parts)


def seeds() -> str:
    """Return the range over seeds of what is drawn."""
    rows = []
    for row in ROWS:
        for name in CHOSEN.values():
            found = row["closures"].get(name)
            if found:
                values = [_range(found["range"].get(measure)) for measure in MEASURES]
                rows.append((_title(row), f"`{name}`", *values))
    return table(["model", "closure", "r, heads", "signs", "r, layers", "error"], rows)


def frozen() -> str:
    """Return whether the frozen run meets the goals that were set before it, with every seed."""
    rows = []
    for row in ROWS:
        if row["frozen"]:
            rows += [_verdict(row, name) for name in (SHARES, PREDICTED)]
            alone = row["closures"].get(ALONE)
            if alone:
                signs, goal = alone["signs"], GOALS["weights_only_signs"]
                met = "met" if _at_least(alone["range"]["signs"][0], goal) else "missed"
                rows.append((_title(row), f"`{ALONE}`", "–", _number(signs), "–", "–", met))
    header = ["model", "closure", "r, heads", "signs", "r, layers", "error", "goals"]
    return table(header, rows)


def by_layer() -> str:
    """Return measured and predicted changes of ln(1 − C) by attention, a line each."""
    rows = []
    for row in ROWS:
        rows.append((_title(row), "measured", _listed(row["measured"])))
        for name in CHOSEN.values():
            if name in row["closures"]:
                rows.append(("", f"`{name}`", _listed(row["closures"][name]["by_layer"])))
    return table(["model", "what", "by layer"], rows)


def _verdict(row: dict, name: str) -> tuple[str, ...]:
    found = row["closures"][name]
    worst = found["range"]  # over seeds: the least, and of errors the largest
    met = {measure: _at_least(worst[measure][0], GOALS[measure]) for measure in MEASURES}
    met["error"] = worst["error"][1] <= GOALS["error"]
    missed = [measure for measure, good in met.items() if not good]
    values = [_number(found[measure]) for measure in MEASURES]
    return _title(row), f"`{name}`", *values, f"missed: {', '.join(missed)}" if missed else "met"


def _at_least(value: float | None, goal: float) -> bool:
    return value is not None and value >= goal


def _values(group: str, name: str, measure: str) -> list[str]:
    return [_number((row[group].get(name) or {}).get(measure)) for row in ROWS]


def _title(row: dict) -> str:
    return f"**{row['model']}**" if row["frozen"] else row["model"]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _range(values: list[float] | None) -> str:
    return "–" if values is None else " to ".join(dict.fromkeys(f"{v:.2f}" for v in values))


def _listed(values: list[float]) -> str:
    return " ".join(f"{value:+.2f}" for value in values)
