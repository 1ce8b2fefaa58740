"""Tables of docs/forecast.md, from the stored run of benchmarks/forecast.py."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

from generated.tables import table

STORED = Path(__file__).resolve().parents[1] / "forecast-stacks.json"
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


def cost() -> str:
    """Return how long a forecast takes."""
    found = [row["milliseconds"] for row in _stored()]
    return f"A forecast of these took {statistics.median(found):.0f} ms of the processor in median."
