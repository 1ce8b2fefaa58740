"""The table of docs/explore.md, from what benchmarks/explorer.py stored."""

import json
from pathlib import Path

from generated.tables import table

STORED = Path(__file__).parents[1] / "explorer-speed.json"


def frame_costs() -> str:
    """Return what frames of several states cost, and how soon the picture moves."""
    found = json.loads(STORED.read_text(encoding="utf-8"))
    rows = [
        (row["state"], f"{row['first']:.1f} ms", f"{row['again']:.1f} ms")
        for row in found["frames"]
    ]
    head = ["State", "A frame while flow and map are computed", "When it plays again"]
    size, seconds = found["bytes"] / 1e6, found["opening"]
    words = (
        f"The page of {found['model']} is {size:.2f} MB, and its picture moves {seconds:.2f} s after "
        "it was asked for."
    )
    return f"{table(head, rows)}\n\n{words}"
