"""Train the arms of arXiv 2512.03058 and store each finished run in docs/experiments/arms.

    python docs/make_arms.py --text TEXT                 # all plans, in the order below
    python docs/make_arms.py arms-text --text TEXT       # one of them
    python docs/make_arms.py arms-bytes --bytes FILE     # the same on the bytes of any file
    python docs/make_arms.py --arms plain,averaging --text TEXT      # these arms first
    python docs/make_arms.py --limit 3 --text TEXT       # three runs, and stop
    python docs/make_arms.py --noise --text TEXT --images IMAGES     # controls: nothing to learn
    python docs/make_arms.py --again arms-text plain 0 --text TEXT   # a stored run, trained anew
    python docs/make_arms.py --draw                      # the picture of docs/studies-arms.md
    python docs/make_arms.py --collect                   # what the study of the paper judges

Plans are experiments/arms-*.toml; those on MNIST want --images, that on bytes --bytes. One run at
a time, all arms of a seed before the next seed; a run that is stored is not repeated, and one that
was interrupted goes on from its last state, which lies in --folder. A run is a few
kB: held-out loss, cosines of directions, effective ranks and signs of the forward maps, every tenth
of its steps.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from generated.arms import Kept, Pairs, by_plan, collected, within
from make_studies import shorter

from orbitlens.draw.figure import PALETTE, Figure, Panel, Points
from orbitlens.draw.figure_png import png_of
from orbitlens.errors import TrainingError
from orbitlens.lab.run import RunConfig, RunResult, run_hash
from orbitlens.lab.sweep_file import read_sweep
from orbitlens.lab.training import train
from orbitlens.running.loading import quiet_transformers
from orbitlens_papers.bench import Bench, Scale, Settings
from orbitlens_papers.token_dynamics.arms import COMPARED, NOISE_STEPS, STORED
from orbitlens_papers.token_dynamics.training import noise_file

DOCS = Path(__file__).resolve().parent
KEPT, PLANS = DOCS / "experiments/arms", DOCS.parent / "experiments"
PICTURE = DOCS / "img/gathering.png"
COLLECTED = DOCS.parent / "papers/src/orbitlens_papers/token_dynamics" / STORED
DRAWN = {
    "text": Kept(words="", extremes=False, task="text"),
    "images": Kept(words="", extremes=False, task="images"),
}
SYMBOLS = ("circle", "square", "diamond")
WITHOUT_DATA = ("arms-images",)
OPTIONS = {"arms-mnist": "images", "arms-bytes": "bytes"}  # all others: text
NOISE_SEEDS = 2  # more could teach nothing
ORDER = (
    "arms-text",
    "arms-rotary",
    "arms-narrow",
    "arms-images",
    "arms-mnist",
    "arms-pre",
    "arms-bytes",
    "arms-deep",
)


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One run that is wanted."""

    plan: str
    arm: str
    config: RunConfig
    noise: bool = False  # a control: nothing to learn

    @property
    def file(self) -> Path:
        """Where it is kept once it is finished."""
        start = "noise-" if self.noise else ""
        return KEPT / f"{start}{self.plan}-{self.arm}-{self.config.seed}.json"


def planned(names: Sequence[str], given: argparse.Namespace) -> Iterator[Planned]:
    """Yield every run that is wanted and whose data was given."""
    for name in names:
        file = data_file(name, given)
        if file is None and name not in WITHOUT_DATA:
            print(f"{name}: left out; it wants --{OPTIONS.get(name, 'text')}")
            continue
        sweep = read_sweep(PLANS / f"{name}.toml", {} if file is None else {"file": file})
        for seed in sweep.seeds:
            for cell in sweep.cells:
                yield Planned(plan=name, arm=cell.label, config=cell.config(seed))


def data_file(plan: str, given: argparse.Namespace) -> str | None:
    """Return what a plan trains on; None where nothing is needed, or nothing was given."""
    if plan in WITHOUT_DATA:
        return None
    option = OPTIONS.get(plan, "text")
    file: str | None = getattr(given, option)
    return characters_of(Path(file), given.folder) if option == "bytes" and file else file


def characters_of(file: Path, folder: Path) -> str:
    """Write a text whose characters are the bytes of a file, and return its path."""
    folder.mkdir(exist_ok=True, parents=True)
    text = folder / f"{file.name}.bytes.txt"
    text.write_text(file.read_bytes().decode("latin-1"), encoding="utf-8", newline="")
    return str(text)


def controls(given: argparse.Namespace) -> Iterator[Planned]:
    """Yield the controls: what the study compares, where there is nothing to learn."""
    for plan, arms in COMPARED.items():
        if data_file(plan, given) is None:
            continue
        task = "mnist" if OPTIONS.get(plan) == "images" else "text"
        bench = Bench(Settings(text=given.text, scale=Scale.FULL), given.folder / "noise")
        sweep = read_sweep(PLANS / f"{plan}.toml", {"file": str(noise_file(bench, task))})
        for seed in sweep.seeds[:NOISE_SEEDS]:
            for cell in sweep.cells:
                if cell.label in arms:
                    config = replace(cell.config(seed), steps=NOISE_STEPS)
                    yield Planned(plan=plan, arm=cell.label, config=config, noise=True)


def as_stored(one: Planned, result: RunResult | str) -> dict[str, Any]:
    """Return what is kept of a run: no path of any machine."""
    config = one.config
    kept: dict[str, Any] = {"plan": one.plan, "arm": one.arm, "seed": config.seed}
    kept |= {"run": run_hash(config)} | ({"noise": True} if one.noise else {})
    kept["date"] = time.strftime("%Y-%m-%d", time.gmtime())
    if isinstance(result, str):
        return kept | {"failed": result}
    names = ("loss", "accuracy", "steps", "cpu_seconds", "parameters", "measured")
    numbers = {name: getattr(result, name) for name in names}
    return kept | shorter(numbers)  # type: ignore[operator]


def run(one: Planned, folder: Path) -> dict[str, Any]:
    """Train one run and return what is kept; one whose loss is not finite is kept as failed."""
    try:
        with quiet_transformers():
            result: RunResult | str = train(one.config, folder)
    except TrainingError as error:
        result = str(error).partition(": ")[2]
    shown = f"failed: {result}" if isinstance(result, str) else f"loss {result.loss:.4f}"
    print(f"{time.strftime('%H:%M:%S')} {one.file.stem}: {shown}", flush=True)
    return as_stored(one, result)


def keep(one: Planned, folder: Path) -> None:
    """Train one run and store it."""
    KEPT.mkdir(exist_ok=True, parents=True)
    text = json.dumps(run(one, folder), ensure_ascii=False)
    one.file.write_text(text + "\n", encoding="utf-8")


def again(words: Sequence[str], given: argparse.Namespace) -> None:
    """Train a stored run anew and print both losses."""
    plan, arm, seed = words[0], words[1], int(words[2])
    chosen = [p for p in planned([plan], given) if (p.arm, p.config.seed) == (arm, seed)]
    if not chosen:
        raise SystemExit(f"{' '.join(words)}: there is no such run; expected PLAN ARM SEED.")
    old = json.loads(chosen[0].file.read_text(encoding="utf-8"))
    new = run(chosen[0], given.folder / "again")
    same = "the same run" if new["run"] == old["run"] else "another run: other data or settings"
    print(f"{same}; loss {old['loss']:.6f} as stored, {new['loss']:.6f} again")


def collect() -> None:
    """Write the losses that the study of the paper judges, from all stored runs."""
    COLLECTED.write_text(json.dumps(collected(), indent=1) + "\n", encoding="utf-8")


def gathering_figure() -> Figure:
    """Return held-out loss against C behind the last layer, both about their group's means."""
    panels = [
        Panel(
            layers=[
                _group(k, *group) for k, group in enumerate(by_plan(within("cosine", kept=kept)))
            ],
            title=title,
            x_label="C behind the last layer",
            y_label="held-out loss, nats",
        )
        for title, kept in DRAWN.items()
    ]
    title = "Settings of the lab: cosine of directions and held-out loss"
    caption = (
        "A mark is a setting; both numbers less the mean of its group. "
        "Collapsed settings and averaging are left out, as in the rows of the table."
    )
    return Figure(name="gathering", title=title, caption=caption, panels=panels, height=5.2)


def _group(number: int, name: str, groups: Sequence[Pairs]) -> Points:
    x, y = zip(*(pair for pairs in groups for pair in pairs), strict=True)
    colour = PALETTE[number % len(PALETTE)]
    symbol = SYMBOLS[number // len(PALETTE) % len(SYMBOLS)]
    return Points(x=x, y=y, label=name, colour=colour, symbol=symbol)


def main(words: list[str]) -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("plans", nargs="*", default=list(ORDER))
    parser.add_argument("--text", help="a UTF-8 text, such as tinyshakespeare.txt")
    parser.add_argument("--bytes", help="any file whose bytes are tokens: wikitext2_valid.txt")
    parser.add_argument("--images", help="MNIST's images, with its labels beside them")
    parser.add_argument("--noise", action="store_true", help="the controls, not the plans")
    parser.add_argument("--again", nargs=3, metavar=("PLAN", "ARM", "SEED"), help="once more")
    parser.add_argument("--draw", action="store_true", help="draw what is stored; run nothing")
    parser.add_argument("--collect", action="store_true", help="collect losses; run nothing")
    parser.add_argument("--folder", type=Path, default=Path("out/arms"), help="for states of runs")
    parser.add_argument("--arms", help="only these, separated by commas")
    parser.add_argument("--limit", type=int, default=10**9, help="runs to do at most")
    given = parser.parse_args(words)
    if given.draw:
        PICTURE.write_bytes(png_of(gathering_figure()))
    elif given.collect:
        collect()
    elif given.again:
        again(given.again, given)
    else:
        _go_on(given)


def _go_on(given: argparse.Namespace) -> None:
    wanted = controls(given) if given.noise else planned(given.plans, given)
    arms = None if given.arms is None else given.arms.split(",")
    left = [p for p in wanted if not p.file.is_file() and (arms is None or p.arm in arms)]
    print(f"{len(left)} runs to do", flush=True)
    for each in left[: given.limit]:
        keep(each, given.folder)


if __name__ == "__main__":
    main(sys.argv[1:])
