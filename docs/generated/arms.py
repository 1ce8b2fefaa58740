"""Tables of docs/studies-arms.md: the arms of arXiv 2512.03058, from the runs in docs/experiments.

The orderings were fixed, and committed, before the first of these runs.
"""

import json
import math
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from generated.tables import table

from orbitlens.lab.summary import Interval, interval

STORED = Path(__file__).parents[1] / "experiments"
PLANS = Path(__file__).parents[2] / "experiments"
FEWEST = 3  # seeds that a word about an ordering needs


@dataclass(frozen=True, kw_only=True)
class Ordering:
    """A claim about two arms: the held-out loss of `worse` exceeds that of `better`."""

    key: str
    worse: str
    better: str
    source: str
    least: float = 0.01  # nats; a hundredth would not matter to anybody


PAPER = "arXiv 2512.03058, experiments"
ORDERINGS = (
    Ordering(key="R1", worse="released-negative", better="released-positive", source=PAPER),
    Ordering(key="R2", worse="released-half", better="released-positive", source=PAPER),
    Ordering(key="R3", worse="plain", better="released-positive", source=PAPER),
    Ordering(key="D1", worse="plain", better="diagonal", source=PAPER),
    Ordering(key="T1", worse="theorem-negative", better="theorem-positive", source="ours"),
    Ordering(key="T2", worse="theorem-half", better="theorem-positive", source="ours"),
    Ordering(key="T3", worse="plain", better="theorem-positive", source="ours"),
    Ordering(key="C1", worse="plain", better="centred-fixed", source="ours"),
    Ordering(key="C2", worse="plain", better="centred", source="ours"),
    Ordering(
        key="P1", worse="averaging", better="plain", source="ours: positive control", least=0.1
    ),
)


@cache
def runs() -> dict[str, dict[str, dict[int, dict[str, Any]]]]:
    """Return the stored runs: plan, arm, seed; those that failed are left out."""
    found: dict[str, dict[str, dict[int, dict[str, Any]]]] = {}
    for file in sorted((STORED / "arms").glob("*.json")):
        run = json.loads(file.read_text(encoding="utf-8"))
        if "failed" not in run:
            found.setdefault(run["plan"], {}).setdefault(run["arm"], {})[run["seed"]] = run
    return found


def progress() -> str:
    """Return how many runs of each plan are stored."""
    rows = []
    for file in sorted(PLANS.glob("arms-*.toml")):
        plan = tomllib.loads(file.read_text(encoding="utf-8"))
        done = sum(len(seeds) for seeds in runs().get(file.stem, {}).values())
        wanted = plan["seeds"] * len(plan["variants"])
        base = plan["base"]
        what = f"{base['task']}, {base['position']}, {base['layers']} {base['norm']}-norm layers"
        rows.append((f"`{file.stem}`", what, str(wanted), str(done)))
    return table(("plan", "setting", "runs planned", "stored"), rows)


def losses() -> str:
    """Return every arm that has a run: loss, directions at the end, signs of forward maps."""
    rows = []
    for plan, arms in runs().items():
        for arm, seeds in arms.items():
            own = list(seeds.values())
            rows.append((plan, arm, str(len(own)), *_arm_cells(own)))
    header = ("plan", "arm", "seeds", "held-out loss", "C, last layer", "rank, last layer")
    ends = ("positive directions, first to last look", "size of V, first to last", "parameters")
    return table((*header, *ends), rows)


def _arm_cells(own: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    measured = [run["measured"] for run in own]
    signs = [[look["watched"]["signs"] for look in m["history"]] for m in measured]
    cells = [
        written(interval([run["loss"] for run in own])),
        written(interval([m["directions"][-1] for m in measured])),
        written(interval([m["rank"][-1] for m in measured]), digits=1),
    ]
    for name, digits in (("positive", 2), ("value_norm", 1)):
        ends = [
            [fmean(looks[end][name]) for looks in signs if looks[end] is not None]
            for end in (0, -1)
        ]
        cells.append(" to ".join(f"{fmean(end):.{digits}f}" for end in ends if end) or "–")
    return (*cells, f"{own[0]['parameters']:,}")


def written(value: Interval, digits: int = 3) -> str:
    """Return a mean, and its half-width where there is one."""
    half = "" if value.half_width is None else f" ± {value.half_width:.{digits}f}"
    return f"{value.mean:.{digits}f}{half}"


def orderings() -> str:
    """Return what the stored runs say about every ordering that was fixed beforehand."""
    rows = []
    for plan, arms in runs().items():
        for each in ORDERINGS:
            pairs = sorted(set(arms.get(each.worse, {})) & set(arms.get(each.better, {})))
            if pairs:
                gaps = [arms[each.worse][s]["loss"] - arms[each.better][s]["loss"] for s in pairs]
                rows.append((plan, *_ordering_cells(each, interval(gaps))))
    header = ("plan", "", "loss of", "less that of", "source", "wanted", "nats", "seeds", "so far")
    return table(header, rows)


def _ordering_cells(each: Ordering, gap: Interval) -> tuple[str, ...]:
    word = f"undecided: fewer than {FEWEST} seeds"
    if gap.n >= FEWEST and gap.half_width is not None:
        low, high = gap.mean - gap.half_width, gap.mean + gap.half_width
        word = "holds" if low > each.least else "undecided"
        word = "not seen at this scale" if high < each.least else word
    sides = (each.worse, each.better, each.source, f"above {each.least:g}")
    return (each.key, *sides, written(gap), str(gap.n), word)


# --- does gathering go with a higher loss? ---------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One trained setting: the group it is compared in, and its numbers."""

    group: str
    label: str
    loss: float
    numbers: dict[str, float]


HELD = ("definite", "released", "theorem")  # arms that hold the signs of their maps
LEAST_APART = 1e-6  # of 1 - C: cosines are stored with six digits, and collapsed arms have 1

NAMES = {
    "cosine": "C behind the last layer",
    "delta_s": "ΔS from first to last layer",
    "rank": "effective rank behind the last layer",
    "log_distance": "change of ln distance (raw)",
}
TEXT = ("convergence-text", "refinements")  # one setting, in two sweeps


def settings() -> list[Setting]:
    """Return what was trained with one budget and measured: sweeps by their means, arms by run."""
    found: dict[tuple[str, float], Setting] = {}
    for file in sorted(STORED.glob("*.json")):
        data = json.loads(file.read_text(encoding="utf-8"))
        for row in data.get("summary", ()):
            if row["measured"] and not row["label"].endswith(("as large", "as long")):
                one = _of_sweep(file.stem, row)
                found.setdefault((one.group, one.loss), one)
    return [*found.values(), *_of_arms()]


def _of_sweep(name: str, row: dict[str, Any]) -> Setting:
    parts = row["label"].rpartition(" ")[0]
    group = f"{'text' if name in TEXT else name} {parts}".strip().replace(" plain,", "")
    measured = row["measured"]
    numbers = {
        "cosine": measured["cosine_last"]["mean"],
        "log_distance": measured["log_distance_change"]["mean"],
    }
    return Setting(group=group, label=row["label"], loss=row["loss"]["mean"], numbers=numbers)


def _of_arms() -> Iterable[Setting]:
    for plan, arms in runs().items():
        for arm, seeds in arms.items():
            for seed, run in seeds.items():
                measured = run["measured"]
                first, last = (measured["directions"][end] for end in (0, -1))
                apart = [max(1 - cosine, LEAST_APART) for cosine in (first, last)]
                numbers = {
                    "cosine": last,
                    "delta_s": math.log(apart[1]) - math.log(apart[0]),
                    "rank": measured["rank"][-1],
                    "log_distance": measured["log_distance_change"],
                }
                yield Setting(
                    group=f"{plan}, seed {seed}", label=arm, loss=run["loss"], numbers=numbers
                )


def within(name: str, *, definite: bool = True) -> list[tuple[str, list[tuple[float, float]]]]:
    """Return by group the number and the loss of its settings, about the group's means."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for one in settings():
        if name in one.numbers and (definite or not any(kind in one.label for kind in HELD)):
            groups.setdefault(one.group, []).append((one.numbers[name], one.loss))
    centred = []
    for group, pairs in groups.items():
        if len(pairs) >= FEWEST:
            means = [fmean(column) for column in zip(*pairs, strict=True)]
            centred.append((group, [(x - means[0], y - means[1]) for x, y in pairs]))
    return centred


def correlation(pairs: Sequence[tuple[float, float]], n_groups: int) -> tuple[float, float, float]:
    """Return r of pairs about their groups' means, with Fisher's 95 % interval."""
    xx, yy, xy = (
        math.fsum(a * b for a, b in products)
        for products in (
            [(x, x) for x, _ in pairs],
            [(y, y) for _, y in pairs],
            [(x, y) for x, y in pairs],
        )
    )
    r = xy / math.sqrt(xx * yy)
    free = len(pairs) - n_groups - 2
    half = 1.96 / math.sqrt(free) if free > 0 else math.inf
    z = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, r)))
    return r, math.tanh(z - half), math.tanh(z + half)


def correlations() -> str:
    """Return how each number goes with held-out loss, within groups and in each of them."""
    rows = []
    for name, words in NAMES.items():
        groups = within(name)
        for where, chosen in (
            ("all groups", groups),
            ("all groups, held signs left out", within(name, definite=False)),
        ):
            pooled = [pair for _, pairs in chosen for pair in pairs]
            if pooled:
                rows.append(_correlation_row(f"**{words}**", where, pooled, len(chosen)))
        rows += [_correlation_row(words, group, pairs, 1) for group, pairs in groups]
    return table(("number", "within", "settings", "r with held-out loss"), rows)


def _correlation_row(
    words: str, group: str, pairs: list[tuple[float, float]], n_groups: int
) -> tuple[str, ...]:
    r, low, high = correlation(pairs, n_groups)
    shown = f"{r:+.2f} [{low:+.2f}, {high:+.2f}]" if len(pairs) - n_groups > 2 else f"{r:+.2f}"
    return words, group, str(len(pairs)), shown
