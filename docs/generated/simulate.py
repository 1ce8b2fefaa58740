"""Tables of docs/simulate.md, from what benchmarks stored in simulate-speed and simulate-layers."""

import json
from pathlib import Path

from generated.tables import table

from orbitlens.flows._fast.lanes import WIDEST_LANES

STORED = Path(__file__).parents[1] / "simulate-speed.json"
PROBLEMS = json.loads(STORED.read_text(encoding="utf-8"))["problems"]
LAYERS = STORED.with_name("simulate-layers.json")
CLOCK = "2026-11-16, by the clock"
WIDE = 16  # heads wider than this are mixed between two matrix products


def speed() -> str:
    """Return how fast whole runs are beside the fastest method of each peer."""
    rows = []
    for row in PROBLEMS:
        name = f"{row['problem']['what']} ({row['problem']['name']})"
        by_processor = "load" in row  # earlier runs compared times by the clock
        time = f"{1e3 * row['results'][0]['cpu' if by_processor else 'wall']:.1f} ms"
        when = f"{row.get('date', CLOCK)}, {row['processor']}"
        measured = f"{when}, load {row['load'][0]:.0f}" if by_processor else when
        for goal in row["goals"]:
            word = "met" if goal["met"] else "missed"
            rows.append((name, goal["peer"], f"{goal['ratio']:.2f}", f"{goal['goal']:g}, {word}"))
            rows[-1] += (time, *_least(row, goal), measured)
            name = ""
    head = ["Problem", "Against", "Times as fast", "Goal", "Ours"]
    head += ["Exponentials alone", "Products alone", "At most times as fast", "Measured"]
    return table(head, rows)


def _least(row: dict, goal: dict) -> tuple[str, str, str]:
    """Return what a run's exponentials and products would take alone, and the ratio they allow."""
    found, ours = row.get("least"), row["results"][0]["cpu"]
    if found is None:  # an earlier run, which counted exponentials alone
        before = row.get("exponentials")
        alone = (
            "" if before is None else f"{1e3 * before['seconds']:.1f} ms ({before['share']:.0%})"
        )
        return alone, "", ""
    shares = [
        f"{1e3 * found[k]:.1f} ms ({found[k] / ours:.0%})" for k in ("exponentials", "products")
    ]
    if row["problem"]["d_head"] > WIDEST_LANES and _tiles_beat_torch():
        return shares[0], shares[1], "–"
    return shares[0], shares[1], f"{goal['ratio'] / found['share']:.1f}"


def _tiles_beat_torch() -> bool:
    """Say whether some run took less than its products by torch: then these bound nothing."""
    return any(row.get("least", {}).get("share", 0.0) > 1 for row in PROBLEMS)


def at_once() -> str:
    """Return what runs of a few milliseconds take where their code and data are in the cache."""
    lines = []
    for row in PROBLEMS:
        ours, name = row["results"][0].get("again"), row["problem"]["name"]
        by_solver = {result["solver"]: result.get("again") for result in row["results"]}
        for peer in dict.fromkeys(goal["peer"] for goal in row["goals"]):
            if ours is not None and by_solver[peer] is not None:
                times = f"{1e3 * ours:.1f} ms against {1e3 * by_solver[peer]:.1f} ms"
                lines.append(
                    f"- {name}, {peer}: {times}, {by_solver[peer] / ours:.2f} times as fast"
                )
    return "\n".join(lines)


def gradients() -> str:
    """Return what gradients cost, in units of a flow."""
    stored = json.loads(STORED.with_name("simulate-gradients.json").read_text(encoding="utf-8"))
    rows = [
        (
            row["what"],
            f"{1e3 * row['flow']:.1f} ms",
            f"{1e3 * row['gradient']:.1f} ms",
            f"{row['ratio']:.1f}, {'met' if row['ratio'] <= row['goal'] else 'missed'}",
        )
        for row in stored["rows"]
    ]
    return table(["", "Flow", "Gradient", "Times a flow"], rows)


def evaluations() -> str:
    """Return one evaluation of wide heads beside the products of all pairs alone."""
    rows = []
    for row in PROBLEMS:
        times = row.get("evaluation")
        if times and row["problem"]["d_head"] > WIDE:
            share = times["products"] / times["evaluation"]
            whole, products = (f"{1e3 * times[key]:.1f} ms" for key in ("evaluation", "products"))
            rows.append((row["problem"]["what"], whole, f"{products} ({share:.0%})"))
    return table(["", "One evaluation", "The products alone, by torch"], rows)


def layers() -> str:
    """Return how near one unit of a flow's time is to one layer of its model."""
    rows = [
        (
            row["model"],
            row["part"],
            row["way"],
            row["n"],
            f"{row['correlation']:.2f}",
            f"{row['mean_error']:.3f} of {row['mean_size']:.3f}",
            f"{row['n_right']} of {row['n_clear']} ({row['n_majority']})",
        )
        for row in json.loads(LAYERS.read_text(encoding="utf-8"))["rows"]
    ]
    head = ["Model", "Of", "Tokens at", "Number", "r", "Mean error", "Signs right (majority)"]
    return table(head, rows)
