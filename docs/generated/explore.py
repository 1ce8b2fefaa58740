"""The tables of docs/explore.md, from what benchmarks/explorer.py stored."""

import json
from pathlib import Path

from generated.tables import table

STORED = Path(__file__).parents[1] / "explorer-speed.json"
LATENCY = Path(__file__).parents[1] / "explorer-latency.json"


def frame_costs() -> str:
    """Return what frames of several states cost, and how soon the picture moves."""
    found = json.loads(STORED.read_text(encoding="utf-8"))
    rows = [
        (row["state"], *(f"{row[name]:.1f} ms" for name in ("first", "again", "held")))
        for row in found["frames"]
    ]
    head = ["State", "While flow and map are computed", "When it plays again", "While dragged"]
    size, (clock, processor) = found["bytes"] / 1e6, found["opening"]
    words = (
        f"The page of {found['model']} is {size:.2f} MB. Its picture moved {clock:.2f} s after it "
        f"was asked for, of which {processor:.2f} s were its main thread's."
    )
    return f"{table(head, rows)}\n\n{words}"


def answer_costs() -> str:
    """Return what answers of the server cost, and what the page is told of longer ones."""
    found = json.loads(LATENCY.read_text(encoding="utf-8"))
    rows = [
        (row["asked"], f"{row['wall']:.2f} s", f"{row['processor']:.2f} s")
        for row in found["answers"]
    ]
    return table(["Asked for", "By the clock", "Processor time"], rows)
