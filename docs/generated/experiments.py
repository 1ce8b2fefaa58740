"""Tables of docs/experiments.md, from the sweeps that `docs/make_experiments.py` stored.

Words such as "worse" follow from an interval that excludes zero, and from nothing else.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from generated.tables import table

STORED = Path(__file__).parents[1] / "experiments"
SAME = "no difference shown"
UNTRAINED = ("none", "definite-negative", "definite-half", "definite-positive")


def _stored(name: str) -> dict[str, Any]:
    return json.loads((STORED / f"{name}.json").read_text(encoding="utf-8"))


def _source(sweep: dict[str, Any], name: str) -> str:
    versions = ", ".join(f"{package} {v}" for package, v in sweep["versions"].items())
    failed = f", {len(sweep['failed'])} failed" if sweep["failed"] else ""
    return (
        f"*`experiments/{name}.toml`, {sweep['n_runs']} runs{failed}, {sweep['date']}, "
        f"{sweep['hardware']}, {versions}.*"
    )


def _rows(rows: list[dict[str, Any]], *, accuracy: bool) -> str:
    """Return loss or accuracy of each setting, its paired difference, and what tokens do."""
    measured = any(row["measured"] for row in rows)
    header = ["setting", "right answers" if accuracy else "loss", "difference", "reading", "time"]
    header += ["distance", "cosine"] if measured else []
    return table(header, [_row(row, accuracy=accuracy, measured=measured) for row in rows])


def _row(row: dict[str, Any], *, accuracy: bool, measured: bool) -> list[str]:
    key = "accuracy" if accuracy else "loss"
    cells = [row["label"], _interval(row[key], percent=accuracy)]
    other = row["difference"]
    if other is None or other["baseline"] == row["label"]:
        cells += ["", "baseline", ""]
    else:
        reading = _reading(other[key], better_is_more=accuracy)
        cells += [_interval(other[key], percent=accuracy, signed=True), reading]
        cells += [f"{other['cpu_time']:.2f}×"]
    if measured:
        tokens = row["measured"]
        cells += [_interval(tokens["log_distance_change"], signed=True)]
        cells += [_interval(tokens["cosine_last"])]
    return cells


def _interval(value: dict[str, Any], *, percent: bool = False, signed: bool = False) -> str:
    size, digits = (100.0, 1) if percent else (1.0, 3)
    half = value["half_width"]
    text = f"{size * value['mean']:{'+' if signed else ''}.{digits}f}"
    return text if half is None else f"{text} ± {size * half:.{digits}f}"


def _reading(value: dict[str, Any], *, better_is_more: bool) -> str:
    half, mean = value["half_width"], value["mean"]
    if half is None or abs(mean) <= half:
        return SAME
    return "**better**" if (mean > 0) == better_is_more else "**worse**"


def _count(rows: list[dict[str, Any]], *, accuracy: bool) -> str:
    key = "accuracy" if accuracy else "loss"
    compared = [row["difference"] for row in rows if row["difference"] is not None]
    readings = [_reading(row[key], better_is_more=accuracy) for row in compared]
    return (
        f"Of {len(readings)} comparisons {readings.count('**better**')} are better than their "
        f"baseline, {readings.count('**worse**')} are worse, and {readings.count(SAME)} show no "
        "difference."
    )


def _sweep(name: str, *, accuracy: bool = False, counted: bool = True) -> Callable[[], str]:
    def written() -> str:
        sweep = _stored(name)
        rows = sweep["summary"]
        parts = [_count(rows, accuracy=accuracy)] if counted else []
        return "\n\n".join([*parts, _rows(rows, accuracy=accuracy), _source(sweep, name)])

    return written


convergence_text = _sweep("convergence-text")
convergence_deep = _sweep("convergence-deep")
convergence_deep_small = _sweep("convergence-deep-small")
convergence_shared = _sweep("convergence-shared")
convergence_addition = _sweep("convergence-addition", accuracy=True)
refinements = _sweep("refinements")
_symmetry = _sweep("symmetry", accuracy=True, counted=False)


def symmetry() -> str:
    """Return the sweep over encoding, mask and residuals, and the best predictor without order."""
    from orbitlens.lab.tasks.ceiling import addition_ceiling

    blind = addition_ceiling(3, True)
    return (
        f"{_symmetry()}\n\nThe best order-blind predictor, over all million pairs: at most "
        f"{blind.exact_match:.1%} right, {blind.loss:.3f} nats a digit."
    )


def untrained() -> str:
    """Return the cosine between tokens behind 16 post-norm layers before any training."""
    from orbitlens.lab.geometry import convergence
    from orbitlens.lab.recipe import build_model
    from orbitlens.lab.run import run_config, task_of

    settings = {"task": "copy", "layers": 16, "width": 48, "norm": "post"}
    rows = []
    for init in (0.1, 0.02):
        cells = [str(init)]
        for kind in UNTRAINED:
            config = run_config({**settings, "init": init, "refinement": kind})
            task = task_of(config)
            model = build_model(config, task).eval()
            cells.append(f"{convergence(model, task)['cosine_last']:.2f}")
        rows.append(cells)
    return table(("initial weights", *UNTRAINED), rows)
