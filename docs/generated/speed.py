"""The table of docs/speed.md, from what benchmarks/commands.py stored."""

import json
import sys
from pathlib import Path

from generated.tables import table

ROOT = Path(__file__).parents[2]
STORED = ROOT / "docs" / "commands.json"


def costs() -> str:
    """Return what every command cost on every model, with its goal."""
    found = json.loads(STORED.read_text(encoding="utf-8"))
    benchmark = _benchmark()
    goals = benchmark.GOALS
    models = ["", *benchmark.MODELS]
    stored = sorted(
        found["rows"],
        key=lambda row: (
            benchmark.COMMANDS.index(row["command"]),
            models.index(row["model"]),
            row["state"],
            row["threads"],
        ),
    )
    rows = [
        (
            f"`{row['command']}` {row['model']}{' *' * _is_elsewhere(row, found)}",
            f"{row['threads']}, {row['state']}",
            f"{row['cpu']:.1f}",
            goals.get((row["model"], row["command"]), "")
            if row["state"] == "alone" else "",
            f"{row['wall']:.1f}",
            f"{row['first']:.1f}",
            f"{row['load']:.0f}",
        )
        for row in stored
    ]  # fmt: skip
    head = ["Command, model", "Threads", "Processor, s", "Goal", "Wall, s", "First line, s", "Load"]
    cores = found["machine"]["cores"]
    said = f"Load: processes that wanted one of the {cores} cores meanwhile."
    others = {row["machine"]["processor"] for row in stored if _is_elsewhere(row, found)}
    if others:
        said += (
            f" Rows with * were measured on another processor ({', '.join(sorted(others))}) than "
            f"the others ({found['machine']['processor']})."
        )
    return f"{table(head, rows)}\n\n{said}"


def _is_elsewhere(row: dict, found: dict) -> bool:
    """Say whether a row names another processor than the one of all rows that name none."""
    return row.get("machine", found["machine"])["processor"] != found["machine"]["processor"]


def missed() -> str:
    """Return the goals that were missed, one a line."""
    found = json.loads(STORED.read_text(encoding="utf-8"))
    lines = list(_benchmark().misses(found["rows"]))
    return "\n".join(f"- {line}" for line in lines) or "None of those that were measured."


def _benchmark():  # noqa: ANN202 - a module
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import commands
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    return commands
