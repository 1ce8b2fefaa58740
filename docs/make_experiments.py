"""Keep what sweeps found, and print it as tables for the page of experiments.

    python docs/make_experiments.py FOLDER    # keep the summaries of FOLDER/*.json

FOLDER holds what `orbitlens sweep experiments/NAME.toml --json FOLDER/NAME.json` wrote. Summaries
lie in docs/experiments; the page calls `table`. Words such as "worse" follow from an interval that
excludes zero, and from nothing else.
"""

import json
import os
import platform
import sys
import time
import tomllib
from importlib.metadata import version
from pathlib import Path

from make_studies import line, shorter

DOCS = Path(__file__).resolve().parent
KEPT, PLANS = DOCS / "experiments", DOCS.parent / "experiments"


def keep(folder: Path) -> None:
    """Copy the summaries of sweeps, with where they come from."""
    KEPT.mkdir(exist_ok=True)
    for plan in sorted(PLANS.glob("*.toml")):
        file = folder / f"{plan.stem}.json"
        if not file.is_file():
            print(f"{file}: not there; what is kept stays as it is")
            continue
        data = json.loads(file.read_text(encoding="utf-8"))
        kept = {
            "date": time.strftime("%Y-%m-%d", time.gmtime(file.stat().st_mtime)),
            "versions": {name: version(name) for name in ("orbitlens", "torch", "transformers")},
            "hardware": f"{platform.machine()}, {os.cpu_count()} cores",
            "plan": tomllib.loads(plan.read_text(encoding="utf-8")),
            "n_runs": len(data["runs"]),
            "failed": data["failed"],
            "summary": shorter(data["summary"]),
        }
        text = json.dumps(kept, indent=1, ensure_ascii=False)
        (KEPT / f"{plan.stem}.json").write_text(text + "\n", encoding="utf-8")


# --- tables ----------------------------------------------------------------------------------


def stored(name: str) -> dict:
    """Return what is kept of one sweep."""
    return json.loads((KEPT / f"{name}.json").read_text(encoding="utf-8"))


def source(name: str) -> str:
    """Say in a line where the numbers of a sweep come from."""
    kept = stored(name)
    versions = ", ".join(f"{k} {v}" for k, v in kept["versions"].items())
    failed = f", {len(kept['failed'])} failed" if kept["failed"] else ""
    return (
        f"*`experiments/{name}.toml`, {kept['n_runs']} runs{failed}, {kept['date']}, "
        f"{kept['hardware']}, {versions}.*"
    )


def table(name: str, *, accuracy: bool = False) -> str:
    """Return a sweep's table: loss or right answers, the paired difference, and convergence."""
    rows = stored(name)["summary"]
    measured = any(row["measured"] for row in rows)
    head = ["setting", "right answers" if accuracy else "loss", "difference", "reads as", "time"]
    head += ["distance", "cosine"] if measured else []
    lines = [line(head), line(["---"] * len(head))]
    return "\n".join(lines + [_row(row, accuracy=accuracy, measured=measured) for row in rows])


def _row(row: dict, *, accuracy: bool, measured: bool) -> str:
    key = "accuracy" if accuracy else "loss"
    cells = [row["label"], _interval(row[key], percent=accuracy)]
    other = row["difference"]
    if other is None or other["baseline"] == row["label"]:
        cells += ["", "the baseline", ""]
    else:
        reading = _reading(other[key], better_is_more=accuracy)
        cells += [_interval(other[key], percent=accuracy, signed=True), reading]
        cells += [f"{other['cpu_time']:.2f}×"]
    if measured:
        found = row["measured"]
        cells += [_interval(found["log_distance_change"], signed=True)]
        cells += [_interval(found["cosine_last"])]
    return line(cells)


def _interval(found: dict, *, percent: bool = False, signed: bool = False) -> str:
    size, digits = (100.0, 1) if percent else (1.0, 3)
    half = found["half_width"]
    text = f"{size * found['mean']:{'+' if signed else ''}.{digits}f}"
    return text if half is None else f"{text} ± {size * half:.{digits}f}"


def _reading(found: dict, *, better_is_more: bool) -> str:
    half, mean = found["half_width"], found["mean"]
    if half is None or abs(mean) <= half:
        return "no difference shown"
    return "**better**" if (mean > 0) == better_is_more else "**worse**"


def count(name: str, *, accuracy: bool = False) -> str:
    """Say how many settings of a sweep differ from their baseline."""
    key = "accuracy" if accuracy else "loss"
    rows = [row["difference"] for row in stored(name)["summary"]]
    readings = [_reading(row[key], better_is_more=accuracy) for row in rows if row is not None]
    n = {word: readings.count(word) for word in ("**better**", "**worse**", "no difference shown")}
    return (
        f"Of {len(readings)} comparisons {n['**better**']} come out better, {n['**worse**']} "
        f"worse, and {n['no difference shown']} show no difference."
    )


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit(__doc__)
    keep(Path(sys.argv[1]))
