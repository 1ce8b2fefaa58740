"""Does a watcher warn in time? Runs that go well or wrong, and detectors judged on half of them.

    python benchmarks/watch_detectors.py run --text FILE --runs RUNS.jsonl
    python benchmarks/watch_detectors.py learn --runs RUNS.jsonl     # docs/watch-frozen.json
    python benchmarks/watch_detectors.py judge --runs RUNS.jsonl     # docs/watch-detectors.json
    python benchmarks/watch_detectors.py plant --text FILE --runs RUNS.jsonl
    python benchmarks/watch_detectors.py act --text FILE --runs RUNS.jsonl --acts ACTS.jsonl

`run` and `act` can be stopped and started again: what is in their file is not repeated. `learn`
sees one half of the settings, `judge` and `act` the other.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from _watch_acts import act_on, alarmed, plant_all
from _watch_learning import judge, learn
from _watch_runs import SEEDS, half_of, run_config, settings, train_logged

DOCS = Path(__file__).resolve().parents[1] / "docs"
FROZEN, JUDGED = DOCS / "watch-frozen.json", DOCS / "watch-detectors.json"
PARTS = {
    "run": "train what is missing",
    "learn": "choose thresholds on one half of the settings",
    "judge": "judge frozen thresholds on the other half",
    "plant": "plant failures of each kind",
    "act": "go on from the state before an alarm in several ways",
}


def write(path: Path, found: dict[str, Any]) -> None:
    """Write JSON of few lines."""
    path.write_text(json.dumps(found, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")


def read_runs(path: Path) -> list[dict[str, Any]]:
    """Return the runs of a file; a last line that was cut off is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]


def run_all(text: str | None, path: Path, n_settings: int) -> None:
    """Train what is missing, one line a run."""
    done = {(run["setting"], run["seed"]) for run in read_runs(path)}
    drawn = settings(n_settings)
    halves = {number: half_of(chosen) for number, chosen in drawn.items()}
    # The half that thresholds are learned on comes first: they are frozen before the other is run.
    for count, number in enumerate(sorted(halves, key=lambda k: (halves[k] == "judge", k))):
        chosen = drawn[number]
        for seed in SEEDS:
            if (number, seed) in done:
                continue
            logged, _ = train_logged(run_config(chosen, seed, text))
            line = {"setting": number, "seed": seed, "half": halves[number], "chosen": chosen}
            append(path, line | logged.to_json())
            print(f"{count + 1}/{n_settings} seed {seed}: {logged.losses[-1]:.2f}", flush=True)


def act_all(
    options: argparse.Namespace, runs: list[dict[str, Any]], frozen: dict[str, Any]
) -> list[dict[str, Any]]:
    """Act on the first alarms of the judged half, one line a run; what is in the file is kept."""
    done = {(line["setting"], line["seed"]): line for line in read_runs(options.acts)}
    rows = []
    for run, step in alarmed(runs, frozen)[: options.alarms]:
        key = run["setting"], run["seed"]
        if key not in done:
            done[key] = act_on(options.text, run, step)
            append(options.acts, done[key])
            print(*key, step, done[key]["ends"], flush=True)
        rows.append(done[key])
    return rows


def append(path: Path, line: dict[str, Any]) -> None:
    """Add a line of JSON."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")


def parser() -> argparse.ArgumentParser:
    """Return what the command line takes."""
    whole = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = whole.add_subparsers(dest="part", required=True)
    for name, words in PARTS.items():
        part = parts.add_parser(name, help=words)
        part.add_argument("--runs", type=Path, required=True, help="a line of JSON a run")
        part.add_argument("--text", help="a UTF-8 text; by default the package's own passage")
        part.add_argument("--settings", type=int, default=100)
        part.add_argument("--frozen", type=Path, default=FROZEN, help="what `learn` writes")
        part.add_argument("--out", type=Path, default=JUDGED, help="what the others write")
        part.add_argument("--alarms", type=int, default=24, help="that `act` acts on")
        part.add_argument("--acts", type=Path, help="where `act` keeps a line of JSON a run")
    return whole


def main() -> None:
    """Run one part of the experiment."""
    options = parser().parse_args()
    torch.set_num_threads(1)
    if options.part == "run":
        run_all(options.text, options.runs, options.settings)
        return
    runs = read_runs(options.runs)
    if options.part == "learn":
        write(options.frozen, learn(runs))
        return
    frozen = json.loads(options.frozen.read_text(encoding="utf-8"))
    found = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
    if options.part == "judge":
        found |= judge(runs, frozen)
    elif options.part == "plant":
        found["planted"] = list(plant_all(options.text, frozen))
    else:
        found["acts"] = act_all(options, runs, frozen)
    write(options.out, found)


if __name__ == "__main__":
    main()
