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
ENOUGH = 4  # seeds that an interval about an arm needs


@dataclass(frozen=True, kw_only=True)
class Ordering:
    """A claim about two arms: the held-out loss of `worse` exceeds that of `better`."""

    key: str
    worse: str
    better: str
    source: str
    least: float = 0.01  # nats; a hundredth would not matter to anybody


COLLAPSED = 0.999  # C above which tokens are in one direction
DATA = {"arms-mnist": "MNIST", "arms-bytes": "bytes of a text"}  # where a task's name says less
NOT_COMPARABLE = "not comparable: an arm did not learn"
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


Runs = dict[str, dict[str, dict[int, dict[str, Any]]]]  # plan, arm, seed


@cache
def runs(*, noise: bool = False) -> Runs:
    """Return the stored runs, or the controls; those that failed are left out."""
    found: Runs = {}
    for file in sorted((STORED / "arms").glob("*.json")):
        run = json.loads(file.read_text(encoding="utf-8"))
        if "failed" not in run and run.get("noise", False) == noise:
            found.setdefault(run["plan"], {}).setdefault(run["arm"], {})[run["seed"]] = run
    return found


def collected() -> dict[str, Any]:
    """Return the losses that the study judges: plan, arm, seed, and the controls as `noise`."""
    losses: dict[str, Any] = {"noise": {}}
    for noise, place in ((False, losses), (True, losses["noise"])):
        for plan, arms in runs(noise=noise).items():
            place[plan] = {
                arm: {seed: own[seed]["loss"] for seed in sorted(own)} for arm, own in arms.items()
            }
    return losses


def progress() -> str:
    """Return how many runs of each plan are stored."""
    rows = []
    for file in sorted(PLANS.glob("arms-*.toml")):
        plan = tomllib.loads(file.read_text(encoding="utf-8"))
        done = sum(len(seeds) for seeds in runs().get(file.stem, {}).values())
        wanted = plan["seeds"] * len(plan["variants"])
        base = plan["base"]
        task = DATA.get(file.stem, base["task"])
        what = f"{task}, {base['position']}, {base['layers']} {base['norm']}-norm layers"
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
        spread([run["loss"] for run in own]),
        spread([m["directions"][-1] for m in measured]),
        spread([m["rank"][-1] for m in measured], digits=1),
    ]
    for name, digits in (("positive", 2), ("value_norm", 1)):
        ends = [
            [fmean(looks[end][name]) for looks in signs if looks[end] is not None]
            for end in (0, -1)
        ]
        cells.append(" to ".join(f"{fmean(end):.{digits}f}" for end in ends if end) or "–")
    return (*cells, f"{own[0]['parameters']:,}")


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Return a mean with its interval; of few seeds, whose interval says little, with its range."""
    if len(values) >= ENOUGH:
        return written(interval(values), digits)
    low, high = (f"{end(values):.{digits}f}" for end in (min, max))
    return low if low == high else f"{fmean(values):.{digits}f} ({low} to {high})"


def written(value: Interval, digits: int = 3) -> str:
    """Return a mean, and its half-width where there is one."""
    half = "" if value.half_width is None else f" ± {value.half_width:.{digits}f}"
    return f"{value.mean:.{digits}f}{half}"


def orderings() -> str:
    """Return what the stored runs say about every ordering that was fixed beforehand."""
    rows = []
    for plan, arms in runs().items():
        for each in ORDERINGS:
            gaps = _gaps(arms, each)
            if gaps:
                cells = _ordering_cells(each, interval(gaps))
                if _has_collapsed(arms[each.worse]) or _has_collapsed(arms[each.better]):
                    cells = (*cells[:-1], NOT_COMPARABLE)
                rows.append((plan, *cells))
    header = ("plan", "", "loss of", "less that of", "source", "wanted", "nats", "seeds", "so far")
    return table(header, rows)


def _has_collapsed(seeds: dict[int, dict[str, Any]]) -> bool:
    """Say whether an arm ends with its tokens in one direction: then it has learnt nothing."""
    return fmean(run["measured"]["directions"][-1] for run in seeds.values()) >= COLLAPSED


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

    @property
    def task(self) -> str:
        """What is learnt, read off the group's name."""
        names = {"images": ("images", "mnist"), "text": ("text", "arms", "deep", "shared")}
        for task, parts in names.items():
            if any(part in self.group for part in parts):
                return task
        return "addition"


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


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Which settings a correlation is about."""

    words: str
    extremes: bool = True  # collapsed settings, and averaging
    held: bool = True  # arms that hold the signs of their maps
    task: str = ""  # of this task alone
    one_arm: bool = False  # groups are an arm over its seeds, not a seed over its arms

    def has(self, one: Setting) -> bool:
        """Whether a setting belongs to it."""
        extreme = "averaging" in one.label or one.numbers["cosine"] >= COLLAPSED
        held = any(kind in one.label for kind in HELD)
        chosen = (self.extremes or not extreme) and (self.held or not held)
        return chosen and self.task in {"", one.task}


ALL = Kept(words="all")
INNER = Kept(words="without collapsed settings and averaging", extremes=False)
SUBSETS = (
    ALL,
    INNER,
    Kept(words="of these, text", extremes=False, task="text"),
    Kept(words="of these, text without held signs", extremes=False, task="text", held=False),
    Kept(words="of these, images", extremes=False, task="images"),
    Kept(words="of these, addition", extremes=False, task="addition"),
    Kept(words="text, one arm over its seeds", extremes=False, task="text", one_arm=True),
)
Pairs = list[tuple[float, float]]


def within(name: str, *, kept: Kept = ALL) -> list[tuple[str, Pairs]]:
    """Return by group the number and the loss of its settings, about the group's means."""
    groups: dict[str, Pairs] = {}
    for one in settings():
        if name in one.numbers and kept.has(one):
            group = f"{by_seed(one.group)} {one.label}" if kept.one_arm else one.group
            groups.setdefault(group, []).append((one.numbers[name], one.loss))
    centred = []
    for group, pairs in groups.items():
        if len(pairs) >= FEWEST:
            means = [fmean(column) for column in zip(*pairs, strict=True)]
            centred.append((group, [(x - means[0], y - means[1]) for x, y in pairs]))
    return centred


def by_plan(groups: Sequence[tuple[str, Pairs]]) -> list[tuple[str, list[Pairs]]]:
    """Return groups that differ by their seed alone side by side, under the name of their plan."""
    found: dict[str, list[Pairs]] = {}
    for group, pairs in groups:
        found.setdefault(by_seed(group), []).append(pairs)
    return list(found.items())


def by_seed(group: str) -> str:
    """Return the name of a group without its seed."""
    return group.partition(", seed ")[0]


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
    """Return how each number goes with held-out loss, within groups: over all, by kind."""
    rows = []
    for name, words in NAMES.items():
        for kept in SUBSETS:
            pairs = [own for _, own in within(name, kept=kept)]
            if pairs:
                rows.append(_correlation_row(words, kept.words, pairs))
    return table(("number", "settings", "n", "groups", "r with held-out loss"), rows)


def correlations_by_group() -> str:
    """Return the same for C, in each group by itself; seeds of one plan are pooled."""
    groups = by_plan(within("cosine", kept=INNER))
    rows = [_correlation_row(NAMES["cosine"], group, pairs)[1:] for group, pairs in groups]
    return table(("group", "n", "seeds or sweeps", "r of C with held-out loss"), rows)


def _correlation_row(words: str, where: str, groups: Sequence[Pairs]) -> tuple[str, ...]:
    pooled = [pair for pairs in groups for pair in pairs]
    r, low, high = correlation(pooled, len(groups))
    enough = len(pooled) - len(groups) > 2
    shown = f"{r:+.2f} [{low:+.2f}, {high:+.2f}]" if enough else f"{r:+.2f}"
    return words, where, str(len(pooled)), str(len(groups)), shown


def controls() -> str:
    """Return the orderings of the paper where there is nothing to learn."""
    rows = []
    for plan, arms in runs(noise=True).items():
        for each in ORDERINGS:
            gaps = _gaps(arms, each)
            if gaps:
                gap = interval(gaps)
                rows.append((plan, each.key, each.worse, each.better, written(gap), str(gap.n)))
    return table(("plan", "", "loss of", "less that of", "nats, nothing to learn", "seeds"), rows)


def _gaps(arms: dict[str, dict[int, dict[str, Any]]], each: Ordering) -> list[float]:
    pairs = sorted(set(arms.get(each.worse, {})) & set(arms.get(each.better, {})))
    return [arms[each.worse][seed]["loss"] - arms[each.better][seed]["loss"] for seed in pairs]
