"""How often theory is right before a run: 2,000 random single-head systems in each setting.

    python benchmarks/prediction.py                  # everything, 2 processes
    python benchmarks/prediction.py --systems 100    # does it run?

Systems come from all named families (random, aligned and anti-aligned with and without
antisymmetric parts, and the family between), with centred and with shifted clouds. Where a
certificate speaks, the run lasts as long as the theorem asks: until the certified direction has
grown a millionfold (T3, T4), or, where no rate is proved (T2), four times longer again and again
until the cloud has made up its mind. Where only signs or the closure speak, all runs last the same
time. Printed: agreement of the predicted with the simulated fate by setting and source, and how
reliable the closure is by the size of its index, beside the rival prediction that needs the
eigenvalues of V alone. A certified run that the limit on steps ends before the theorem's time says
nothing, and is counted apart as unfinished. Exit code 1 if any certificate was wrong.
"""

import argparse
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import itertools

import torch

from orbitlens._types import Tokens
from orbitlens.flows.integrate import IntegrateOptions, integrate_flow
from orbitlens.flows.outcome import Fate, fate
from orbitlens.flows.prediction import Ground, Prediction, heads_of, predict
from orbitlens.flows.setup import Setup, build
from orbitlens.flows.system import Mask, System
from orbitlens.theory.rates import layer_rates
from orbitlens.trajectory import Status

FAMILIES = ("random", "random", "symmetric-pd", "symmetric-nd", "pd", "hd", "nd", "mixed")
SETTINGS = {
    f"{mask.value}, {position}": (mask, position)
    for mask in Mask
    for position in ("none", "absolute", "rotary", "alibi")
}
LONG = 30.0  # time of a run that no certificate speaks of
LONGEST = 5e4  # time at which a cloud that has not made up its mind is given up
GROWN = math.log(1e6)
OPTIONS = IntegrateOptions(rtol=1e-6, n_saved=17, max_steps=1500)
CERTIFIED_OPTIONS = replace(OPTIONS, max_steps=20_000)  # what is proved is given more time
BINS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One system: what was said of it and what it did."""

    setting: str
    source: Ground
    theorem: str  # of a certificate, else ""
    predicted: Fate
    found: Fate
    index: float  # expansion index
    abscissa: float  # largest real part of an eigenvalue of V
    cut: bool  # stopped by the limit on steps
    until: float
    seed: int

    @property
    def unfinished(self) -> bool:
        """Whether a certified run was stopped before the time by which the theorem speaks."""
        return self.source is Ground.CERTIFICATE and self.cut and self.found is Fate.MIXED


def draw(setting: str, seed: int, n_tokens: int) -> tuple[System, Tokens]:
    """Return a system of the setting, and its tokens: centred, or (odd seeds) shifted."""
    mask, position = SETTINGS[setting]
    generator = torch.Generator().manual_seed(7_000_000 + seed)
    spread = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
    setup = Setup(
        system=FAMILIES[seed % len(FAMILIES)],
        n_tokens=n_tokens,
        d_model=2 + seed // len(FAMILIES) % 2,
        alignment=2 * spread[0] - 1,
        beta=0.25 + 1.5 * spread[1],
        mask=mask,
        position=position,
        rotary_base=20.0,
        seed=seed,
    )
    system, tokens = build(setup)
    if seed // (2 * len(FAMILIES)) % 2:
        shift = torch.randn(tokens.shape[1], generator=generator, dtype=torch.float64)
        tokens = 0.5 * tokens + 2 * shift
    return system, tokens


def certified_time(system: System, tokens: Tokens, prediction: Prediction) -> float:
    """Return the time by which a proved rate has made the cloud a million times as large."""
    x = tokens if system.positions is None else tokens + system.positions
    largest = x.norm(dim=-1).max().item()
    held = {c.name: c.numbers for c in prediction.certificates if c.holds}
    for name in ("T3", "T4"):  # some token is start exp(rate t) - less long
        if prediction.why.startswith(name):
            proved = held[name]
            grown = (2e6 * largest + proved.get("less", 0.0)) / proved["start"]
            return max(math.log(grown), 1.0) / proved["rate"]
    return LONG


def run(system: System, tokens: Tokens, prediction: Prediction) -> tuple[Fate, bool, float]:
    """Return the fate of a run that lasts as long as its prediction asks for."""
    until, options = LONG, OPTIONS
    if prediction.source is Ground.CERTIFICATE:
        until, options = certified_time(system, tokens, prediction), CERTIFIED_OPTIONS
    while True:
        found = integrate_flow(system, tokens, until=until, options=options)
        seen = fate(found)
        cut = found.status is Status.STEP_LIMIT
        decided = not prediction.why.startswith("T2") or seen is not Fate.MIXED
        if decided or cut or until > LONGEST:
            return seen, cut, until
        until *= 4


def trial(seed: int, *, setting: str, n_tokens: int) -> Trial:
    torch.set_num_threads(1)
    system, tokens = draw(setting, seed, n_tokens)
    prediction = predict(system, tokens)
    found, cut, until = run(system, tokens, prediction)
    certified = prediction.source is Ground.CERTIFICATE
    return Trial(
        setting=setting,
        source=prediction.source,
        theorem=prediction.why[:2] if certified else "",
        predicted=prediction.fate,
        found=found,
        index=layer_rates(heads_of(system)).expansion_index,
        abscissa=torch.linalg.eigvals((system.w_v @ system.w_o)[0]).real.max().item(),
        cut=cut,
        until=until,
        seed=seed,
    )


# --- tables ----------------------------------------------------------------------------------


def share(trials: list[Trial]) -> str:
    """Return the agreement with Wilson's 95 % interval."""
    unfinished = sum(t.unfinished for t in trials)
    trials = [t for t in trials if not t.unfinished]
    n = len(trials)
    if n == 0:
        return "–"
    p, z = sum(t.found is t.predicted for t in trials) / n, 1.96
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    apart = f", {unfinished} unfinished" if unfinished else ""
    return f"{p:.1%} of {n} ({max(middle - half, 0):.0%}–{min(middle + half, 1):.0%}){apart}"


def agreement_table(trials: list[Trial]) -> list[str]:
    sources = (Ground.CERTIFICATE, Ground.INDICATION, Ground.CLOSURE)
    lines = [
        "| setting | certificate | by theorem | indication | closure |",
        "|---|---|---|---|---|",
    ]
    for setting in [*SETTINGS, "all"]:
        here = [t for t in trials if setting in {t.setting, "all"}]
        certified = Counter(t.theorem for t in here if t.theorem)
        theorems = ", ".join(f"{name} {count}" for name, count in sorted(certified.items()))
        cells = [share([t for t in here if t.source is source]) for source in sources]
        lines.append(f"| {setting} | {cells[0]} | {theorems} | {cells[1]} | {cells[2]} |")
    return lines


def reliability_table(trials: list[Trial]) -> list[str]:
    """By the size of the index: how often the closure's sign is the fate's, mixed ones apart."""
    lines = [
        "| index | systems | diverging | mixed | converging |",
        "|---|---|---|---|---|",
    ]
    spoken = [t for t in trials if t.source is Ground.CLOSURE]
    edges = sorted({-b for b in BINS} | set(BINS))
    for low, high in itertools.pairwise(edges):
        here = [t for t in spoken if low <= t.index < high or t.index == high == 1.0]
        counts = Counter(t.found for t in here)
        cells = [
            f"{counts[kind] / len(here):.0%}" if here else "–"
            for kind in (Fate.DIVERGING, Fate.MIXED, Fate.CONVERGING)
        ]
        lines.append(f"| {low:+.1f} to {high:+.1f} | {len(here)} | {' | '.join(cells)} |")
    return lines


def abscissa_table(trials: list[Trial]) -> list[str]:
    """A rival where nothing is proved: the fate of x' = V x, by the sign of V's abscissa."""
    lines = ["| source | abscissa of V | systems | diverging | mixed | converging |"]
    lines.append("|---|---|---|---|---|---|")
    for source in (Ground.INDICATION, Ground.CLOSURE):
        for name, sign in (("positive", 1), ("negative", -1)):
            here = [t for t in trials if t.source is source and sign * t.abscissa > 0]
            counts = Counter(t.found for t in here)
            cells = [
                f"{counts[kind] / len(here):.1%}" if here else "–"
                for kind in (Fate.DIVERGING, Fate.MIXED, Fate.CONVERGING)
            ]
            lines.append(f"| {source.value} | {name} | {len(here)} | {' | '.join(cells)} |")
    return lines


def confusion_table(trials: list[Trial]) -> list[str]:
    lines = ["| source | predicted | " + " | ".join(kind.value for kind in Fate) + " |"]
    lines.append("|---|---|---|---|---|")
    for source in (Ground.CERTIFICATE, Ground.INDICATION, Ground.CLOSURE):
        for said in Fate:
            here = [t for t in trials if t.source is source and t.predicted is said]
            if here:
                counts = Counter(t.found for t in here)
                cells = " | ".join(str(counts[kind]) for kind in Fate)
                lines.append(f"| {source.value} | {said.value} | {cells} |")
    return lines


def failures(trials: Iterable[Trial]) -> list[Trial]:
    """Return the certificates that a run contradicts."""
    certified = [t for t in trials if t.source is Ground.CERTIFICATE and not t.unfinished]
    return [t for t in certified if t.found is not t.predicted]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--systems", type=int, default=2000, help="in each setting")
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write every trial to a file")
    given = parser.parse_args()
    begin, trials = time.perf_counter(), []
    with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
        for setting in SETTINGS:
            job = partial(trial, setting=setting, n_tokens=given.tokens)
            trials += pool.map(job, range(given.systems), chunksize=25)
    for table in (agreement_table, confusion_table, reliability_table, abscissa_table):
        print("\n".join(table(trials)), end="\n\n")
    cut = sum(t.cut for t in trials)
    print(f"{len(trials)} systems, {cut} of them stopped by the limit on steps; ", end="")
    print(f"{time.perf_counter() - begin:.0f} s on {given.processes} processes.")
    wrong = failures(trials)
    for t in wrong:
        print(f"WRONG: {t}")
    if given.json is not None:
        data = [{**vars(t), "source": t.source.value} for t in trials]
        given.json.write_text(json.dumps(data), encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
