"""Tables of docs/positions.md, from the stored run of benchmarks/positions.py."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from generated.tables import table

STORED = Path(__file__).resolve().parents[1] / "positions-forensics.json"
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
    head = f"{stored['models']} models.\n\n"
    return head + _table("Variant", stored["counts"], "variant")


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
