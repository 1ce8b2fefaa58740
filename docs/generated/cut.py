"""Tables of docs/cut.md, from the stored run of benchmarks/cut.py."""

import json
import statistics
from pathlib import Path
from typing import Any

from generated.tables import table

STORED = Path(__file__).resolve().parents[1] / "cut-regret.json"
FAST = STORED.with_name("cut-fast.json")
METHODS = {
    "random": ("nothing", "0"),
    "magnitude": ("weights", "0"),
    "size by weights": ("weights", "0"),
    "block influence": ("one pass", "1"),
    "update size": ("one pass", "1"),
    "directions": ("one pass", "1"),
    "sampled loss": ("loss on few contexts", "1"),
    "loss of each": ("loss", "(L + 1) / 2"),
    "greedy": ("loss, one after the other", "more"),
}
LEAST_CHANGE = 0.01  # of ln(1 − C): heads that clearly gather or spread


def _stored() -> list[dict[str, Any]]:
    stored: list[dict[str, Any]] = json.loads(STORED.read_text(encoding="utf-8"))
    return stored


def _regrets(rows: list[dict[str, Any]], method: str) -> list[float]:
    return [budget["regret"][method] for row in rows for budget in row["budgets"]]


def _fast() -> list[dict[str, Any]]:
    stored: list[dict[str, Any]] = json.loads(FAST.read_text(encoding="utf-8"))
    return stored


def fast() -> str:
    """Return what layers cost on a sample, and whether they are those of exact losses."""
    lines = []
    for row in _fast():
        for budget in row["budgets"]:
            same = budget["fast"] == budget["exact"]
            lines.append(
                [
                    row["model"],
                    f"{budget['cut']} of {row['layers']}",
                    str(row["contexts"]),
                    f"{(row['layers'] + 1) / 2:.1f}",
                    f"{budget['passes']:.2f}",
                    f"{budget['passes'] / row['layers']:.2f}",
                    "the same" if same else f"another (+{budget['lost']:.3f})",
                ]
            )
    names = ("Model", "cut", "contexts", "exact", "sample", "sample, a layer", "layers chosen")
    return table(names, lines)


def fast_words() -> str:
    """Return how often the sets are the same, at what cost."""
    budgets = [(row, budget) for row in _fast() for budget in row["budgets"]]
    same = sum(budget["fast"] == budget["exact"] for _, budget in budgets)
    shares = [budget["passes"] / row["layers"] for row, budget in budgets]
    within = [sum(budget["within"][k] for _, budget in budgets) for k in (0, 1)]
    met = "met" if max(shares) <= 1 / 3 else "missed"
    return (
        f"In {same} of {len(budgets)} cuts of {len(_fast())} models the layers are those of "
        f"exact losses, at {statistics.median(shares):.2f} passes a layer in median and "
        f"{max(shares):.2f} at most: the goal of a third is {met}. Exact losses lie within two "
        f"standard errors of {within[0]} of {within[1]} estimates."
    )


def regret() -> str:
    """Return median and mean regret of every method, at hand and in the frozen run."""
    rows = _stored()
    groups = [[row for row in rows if row["frozen"] is frozen] for frozen in (False, True)]
    lines = []
    for method, (knows, passes) in METHODS.items():
        cells = [method, knows, passes]
        for group in groups:
            values = _regrets(group, method)
            cells += [f"{statistics.median(values):.3f}", f"{statistics.fmean(values):.3f}"]
        lines.append(cells)
    counts = [f"models {len(group)}, cuts {len(_regrets(group, 'random'))}" for group in groups]
    names = ["at hand: median", "mean", "frozen: median", "mean"]
    head = f"At hand: {counts[0]}. Frozen: {counts[1]}.\n\n"
    return head + table(("Method", "knows", "passes over the text", *names), lines)


def by_model() -> str:
    """Return for every cut the best loss found, and what three methods lose beside it."""
    methods = ("random", "size by weights", "block influence", "sampled loss", "greedy")
    lines = []
    for row in _stored():
        for budget in row["budgets"]:
            lost = [f"{budget['regret'][method]:.3f}" for method in methods]
            lines.append(
                [
                    row["model"] + (" (frozen)" if row["frozen"] else ""),
                    f"{budget['cut']} of {row['layers']}",
                    f"{round(row['whole'], 2) + 0.0:.2f}",
                    f"{budget['best']:.2f}",
                    *lost,
                ]
            )
    return table(("Model", "cut", "whole", "best found", *methods), lines)


def heads() -> str:
    """Return whether heads that gather directions matter more, model by model."""
    lines = []
    for row in _stored():
        if not row["heads"]:
            continue
        changes, losses = zip(*row["heads"], strict=True)
        gather = [b for a, b in row["heads"] if a < -LEAST_CHANGE]
        spread = [b for a, b in row["heads"] if a > LEAST_CHANGE]
        lines.append(
            [
                row["model"],
                str(len(losses)),
                *(
                    f"{statistics.median(part):+.4f} ({len(part)})" if part else "– (0)"
                    for part in (gather, spread)
                ),
                f"{_rank_correlation(changes, losses):+.2f}",
                f"{_rank_correlation([abs(change) for change in changes], losses):+.2f}",
            ]
        )
    names = (
        "median loss without a head that gathers directions",
        "that spreads directions",
        "ρ with ΔS",
        "ρ with |ΔS|",
    )
    return table(("Model", "heads", *names), lines)


def _rank_correlation(a: Any, b: Any) -> float:  # noqa: ANN401 - sequences of numbers
    from scipy.stats import spearmanr

    return float(spearmanr(a, b)[0])


def regret_words() -> str:
    """Return what the table of regrets comes to."""
    lines = []
    for frozen, name in ((False, "On the models at hand"), (True, "In the frozen run")):
        rows = [row for row in _stored() if row["frozen"] is frozen]
        means = {m: statistics.fmean(_regrets(rows, m)) for m in METHODS}
        wins = _wins(rows, "sampled loss", "block influence")
        lines.append(
            f"{name} the sampled loss has a mean regret of {means['sampled loss']:.3f}, block "
            f"influence at the same cost {means['block influence']:.3f}; it is better in {wins[0]} "
            f"cuts, worse in {wins[1]}, equal in {wins[2]}. Without running anything, sizes of "
            f"maps have {means['size by weights']:.3f}, magnitude {means['magnitude']:.3f} and "
            f"chance {means['random']:.3f}."
        )
    return "\n\n".join(lines)


def _wins(rows: list[dict[str, Any]], ours: str, other: str) -> tuple[int, int, int]:
    pairs = list(zip(_regrets(rows, ours), _regrets(rows, other), strict=True))
    better, worse = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
    return better, worse, len(pairs) - better - worse


def heads_words() -> str:
    """Return whether heads that gather directions matter more, over all heads."""
    signs = []
    for row in _stored():
        if not row["heads"]:
            continue
        gather = [b for a, b in row["heads"] if a < -LEAST_CHANGE]
        spread = [b for a, b in row["heads"] if a > LEAST_CHANGE]
        if gather and spread:
            signs.append(statistics.median(gather) > statistics.median(spread))
    every = [pair for row in _stored() for pair in row["heads"] or ()]
    return (
        f"Over {len(every)} heads: the median loss without a head is higher for heads that gather "
        f"directions than for heads that spread directions in {sum(signs)} of the {len(signs)} "
        "models that have both."
    )
