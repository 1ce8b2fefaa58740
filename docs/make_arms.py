"""Train the arms of arXiv 2512.03058 and store each finished run in docs/experiments/arms.

    python docs/make_arms.py --text TEXT                 # all plans, in the order below
    python docs/make_arms.py arms-text --text TEXT       # one of them
    python docs/make_arms.py --limit 3 --text TEXT       # three runs, and stop
    python docs/make_arms.py --draw                      # the picture of docs/studies-arms.md

Plans are experiments/arms-*.toml. One run at a time, all arms of a seed before the next seed; a
run that is stored is not repeated, and one that was interrupted goes on from its last state, which
lies in --folder. A run is a few kB: held-out loss, cosines of directions, effective ranks and signs
of the forward maps, every tenth of its steps.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generated.arms import within
from make_studies import shorter

from orbitlens.draw.figure import PALETTE, Figure, Panel, Points
from orbitlens.draw.figure_png import png_of
from orbitlens.errors import TrainingError
from orbitlens.lab.run import RunConfig, RunResult, run_hash
from orbitlens.lab.sweep_file import SweepCell, read_sweep
from orbitlens.lab.training import train
from orbitlens.running.loading import quiet_transformers

DOCS = Path(__file__).resolve().parent
KEPT, PLANS = DOCS / "experiments/arms", DOCS.parent / "experiments"
PICTURE = DOCS / "img/gathering.png"
SYMBOLS = ("circle", "square", "diamond")
ORDER = ("arms-text", "arms-rotary", "arms-narrow", "arms-images", "arms-pre", "arms-deep")


def planned(names: list[str], text: str) -> Iterator[tuple[str, SweepCell, int]]:
    """Yield every run that is wanted: the plan, the arm and the seed."""
    for name in names:
        file = PLANS / f"{name}.toml"
        is_text = 'task = "text"' in file.read_text(encoding="utf-8")
        sweep = read_sweep(file, {"file": text} if is_text else {})
        for seed in sweep.seeds:
            for cell in sweep.cells:
                yield name, cell, seed


def stored_file(plan: str, arm: str, seed: int) -> Path:
    """Return where a finished run is kept."""
    return KEPT / f"{plan}-{arm}-{seed}.json"


def as_stored(plan: str, arm: str, config: RunConfig, result: RunResult | str) -> dict[str, Any]:
    """Return what is kept of a run: no path of any machine."""
    kept: dict[str, Any] = {"plan": plan, "arm": arm, "seed": config.seed, "run": run_hash(config)}
    kept["date"] = time.strftime("%Y-%m-%d", time.gmtime())
    if isinstance(result, str):
        return kept | {"failed": result}
    names = ("loss", "accuracy", "steps", "cpu_seconds", "parameters", "measured")
    numbers = {name: getattr(result, name) for name in names}
    return kept | shorter(numbers)  # type: ignore[operator]


def run(plan: str, cell: SweepCell, seed: int, folder: Path) -> None:
    """Train one run and keep it; one whose loss is not finite is kept as failed."""
    config, file = cell.config(seed), stored_file(plan, cell.label, seed)
    try:
        with quiet_transformers():
            result: RunResult | str = train(config, folder)
    except TrainingError as error:
        result = str(error).partition(": ")[2]
    KEPT.mkdir(exist_ok=True, parents=True)
    text = json.dumps(as_stored(plan, cell.label, config, result), ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")
    shown = f"failed: {result}" if isinstance(result, str) else f"loss {result.loss:.4f}"
    print(f"{time.strftime('%H:%M:%S')} {plan} {cell.label} {seed}: {shown}", flush=True)


def gathering_figure() -> Figure:
    """Return held-out loss against C behind the last layer, both about their group's means."""
    panels = [
        Panel(
            layers=[_group(k, *group) for k, group in enumerate(within("cosine", definite=chosen))],
            title="all settings" if chosen else "without held signs",
            x_label="C behind the last layer",
            y_label="held-out loss",
        )
        for chosen in (True, False)
    ]
    title = "Settings of the lab: cosine of directions and held-out loss"
    caption = "A mark is a setting; both numbers less the mean of its group."
    return Figure(name="gathering", title=title, caption=caption, panels=panels)


def _group(number: int, name: str, pairs: list[tuple[float, float]]) -> Points:
    x, y = zip(*pairs, strict=True)
    colour = PALETTE[number % len(PALETTE)]
    symbol = SYMBOLS[number // len(PALETTE) % len(SYMBOLS)]
    return Points(x=x, y=y, label=name, colour=colour, symbol=symbol)


def main(words: list[str]) -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("plans", nargs="*", default=list(ORDER))
    parser.add_argument("--text", help="a UTF-8 text, such as tinyshakespeare.txt")
    parser.add_argument("--draw", action="store_true", help="draw what is stored; run nothing")
    parser.add_argument("--folder", type=Path, default=Path("out/arms"), help="for states of runs")
    parser.add_argument("--limit", type=int, default=10**9, help="runs to do at most")
    given = parser.parse_args(words)
    if given.draw:
        PICTURE.write_bytes(png_of(gathering_figure()))
        return
    if given.text is None:
        parser.error("--text is missing: give a UTF-8 text to train on")
    left = [run for run in planned(given.plans, given.text) if not _is_stored(*run)]
    print(f"{len(left)} runs to do", flush=True)
    for plan, cell, seed in left[: given.limit]:
        run(plan, cell, seed, given.folder)


def _is_stored(plan: str, cell: SweepCell, seed: int) -> bool:
    return stored_file(plan, cell.label, seed).is_file()


if __name__ == "__main__":
    main(sys.argv[1:])
