"""Tables of docs/training.md: tasks, what can be known without order, and what a step costs."""

import json
from pathlib import Path
from typing import Any

from generated.tables import table

from orbitlens.lab.tasks import TASKS, build_task, task_options

DOCS = Path(__file__).parents[1]


def tasks() -> str:
    """Return every task, what it asks and its options."""
    rows = []
    for name, builder in TASKS.items():
        options = ", ".join(f"`{key}={value}`" for key, value in task_options(name).items())
        what = (builder.__doc__ or "").removeprefix("Return ").split("\n")[0].rstrip(".")
        rows.append((f"`{name}`", what, options))
    return table(("task", "question", "options"), rows)


def order_blind() -> str:
    """Return the best predictor of addition that does not see order."""
    rows = []
    for digits in (1, 2, 3):
        for reversed_answer in (True, False):
            options = {"digits": digits, "reversed_answer": reversed_answer}
            best = build_task("addition", options).ceiling
            assert best is not None
            word = "reversed" if reversed_answer else "plain"
            shares = (f"≤ {best.exact_match:.1%}", f"{best.token_accuracy:.1%}")
            rows.append((digits, word, *shares, f"{best.loss:.3f}"))
    return table(("digits", "answer", "right answers", "right tokens", "loss (nats)"), rows)


def addition() -> str:
    """Return the stored runs of three-digit addition, one for each encoding."""
    runs = json.loads((DOCS / "training-addition.json").read_text(encoding="utf-8"))["runs"]
    rows = [
        (
            run["config"]["position"],
            f"{run['accuracy']:.2%}",
            f"{run['loss']:.4f}",
            f"{run['parameters']:,}",
            f"{run['cpu_seconds']:.0f}",
            f"{1000 * run['cpu_seconds'] / run['steps']:.0f}",
        )
        for run in runs
    ]
    return table(("position", "right", "loss", "parameters", "CPU seconds", "ms a step"), rows)


def _cost() -> dict[str, Any]:
    return json.loads((DOCS / "training-cost.json").read_text(encoding="utf-8"))


def loop() -> str:
    """Return what a step costs by `train`, by a loop by hand and by transformers' Trainer."""
    cost = _cost()
    rows = []
    for row in cost["loop"]["rows"]:
        settings = ", ".join(f"{k} {v}" for k, v in row["settings"].items()) or "defaults"
        times = (f"{row[f'{name} ms']:.1f}" for name in ("train", "by hand", "Trainer"))
        ratios = (f"{row[f'ratio to {name}']:.2f}" for name in ("by hand", "Trainer"))
        rows.append((settings, *times, *ratios))
    header = ("settings", "train, ms", "by hand, ms", "Trainer, ms", "to by hand", "to Trainer")
    return f"{table(header, rows)}\n\n{_loop_words(cost)}"


def _loop_words(cost: dict[str, Any]) -> str:
    compiled, sweep = cost["compile"]["rows"][0], cost["sweep"]["rows"][0]
    gain = compiled["plain ms"] - compiled["compiled ms"]
    return (
        "Arithmetic dominates a step: no loop saves much of it, and the goal of 0.7 of Trainer's "
        f"time is missed. A sweep on {sweep['cores']} cores completes {sweep['gain']:.2f} times as "
        "many runs as one process. `torch.compile` takes "
        f"{compiled['compiling s']:.0f} s and saves {gain:.1f} of {compiled['plain ms']:.0f} ms a "
        "step: it would pay after "
        f"{compiled['steps until it pays']:,.0f} steps, more than any run here has, so it is not "
        "used."
    )


def refinements() -> str:
    """Return what refinements add to a step."""
    rows = [
        (row["refinement"], f"{row['ms']:.1f}", f"{row['overhead %']:+.0f} %")
        for row in _cost()["refinements"]["rows"]
        if not row["refinement"].endswith(" none")
    ]
    guard = [
        row["overhead %"]
        for row in _cost()["refinements"]["rows"]
        if row["refinement"].endswith(" guard")
    ]
    words = (
        f"The guard costs {min(guard):.0f} to {max(guard):.0f} % (goal: at most 15). *anti* does "
        "the same work with the opposite sign: the difference between the two is noise."
    )
    return f"{table(('refinement', 'ms a step', 'overhead'), rows)}\n\n{words}"
