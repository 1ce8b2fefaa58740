"""What watching costs, from docs/watch-cost.json, which benchmarks/watch.py writes."""

import json
from pathlib import Path

from generated.tables import table

DATA = Path(__file__).parents[1] / "watch-cost.json"


def cost() -> str:
    """Return the time and memory of readings beside training."""
    found = json.loads(DATA.read_text(encoding="utf-8"))
    rows = [
        ("a step of training", f"{found['step_seconds']:.2f} s", ""),
        (
            "a reading from weights",
            f"{found['reading_seconds']:.2f} s",
            f"{found['share_of_a_step']:.2%} of a step, at one in 50 (goal: at most 2 %)",
        ),
        (
            "a reading with tokens as well",
            f"{found['token_reading_seconds']:.2f} s",
            f"{found['token_reading_seconds'] / found['step_seconds'] / 200:.2%} of a step, at one "
            "in 200",
        ),
        (
            "memory of a reading from weights",
            f"{found['reading_bytes'] / 1e6:.1f} MB",
            f"{found['memory_in_layers']:.2f} of one layer (goal: at most 1)",
        ),
    ]
    return table(["", "measured", "share"], rows)
