"""The confusion matrix of the frozen run: what layers were, and what their weights were read as.

Enters: positions-forensics.json, which benchmarks/positions.py writes. Leaves: the figure
img/positions-confusion.png. `python docs/positions_picture.py` draws it, as make_pictures.py does.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from orbitlens.draw.figure import Figure, Heat, Panel
from orbitlens.draw.figure_png import png_of

DOCS = Path(__file__).resolve().parent
STORED = DOCS / "positions-forensics.json"
PICTURE = DOCS / "img" / "positions-confusion.png"
TRUTHS = ("halves, whole", "halves, part", "neighbours, whole", "neighbours, part", "not rotary")
CANNOT, OTHER = "cannot tell", "another part"


def confusion(stored: dict[str, Any]) -> dict[tuple[str, str], int]:
    """Return how many layers of each kind were said to be of each."""
    found: Counter[tuple[str, str]] = Counter()
    for row in stored["confusion"]:
        said = OTHER if row["said"].endswith(", another") else row["said"]
        found[row["category"], said] += row["n"]
    return dict(found)


def confusion_figure(stored: dict[str, Any]) -> Figure:
    """Return the matrix: a row for what layers are, a column for what was said."""
    counts = confusion(stored)
    columns = (*TRUTHS, *((OTHER,) if any(said == OTHER for _, said in counts) else ()), CANNOT)
    rows = [[counts.get((truth, said), 0) for said in columns] for truth in TRUTHS]
    shares = [[n / max(sum(row), 1) for n in row] for row in rows]
    heat = Heat(
        values=shares,
        x_names=[name.replace(", ", ",\n") for name in columns],
        y_names=TRUTHS,
        texts=[[str(n) if n else "" for n in row] for row in rows],
        colours="share",
        bar="share of the row",
    )
    panel = Panel(layers=[heat], x_label="said", y_label="true", legend=False)
    return Figure(
        name="positions-confusion",
        title="Layers of the frozen run, with every planted fault",
        caption="Layers by what they are (rows) and what their weights were read as (columns).",
        panels=[panel],
        n_columns=1,
        height=3.6,
    )


def main() -> None:
    """Draw the stored run."""
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    PICTURE.write_bytes(png_of(confusion_figure(stored)))


if __name__ == "__main__":
    main()
