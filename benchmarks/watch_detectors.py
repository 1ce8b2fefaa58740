"""Does a watcher warn in time? Runs that go well or wrong, and detectors judged on half of them.

    python benchmarks/watch_detectors.py run --text FILE --runs RUNS.jsonl --settings 104
    python benchmarks/watch_detectors.py learn RUNS.jsonl --out docs/watch-thresholds.json
    python benchmarks/watch_detectors.py judge RUNS.jsonl --thresholds ... --out docs/watch-detectors.json

`run` can be stopped and started again: a run that is in the file is not repeated.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from _watch_runs import SEEDS, half_of, run_config, setting, train_logged


def read_runs(path: Path) -> list[dict[str, Any]]:
    """Return the runs of a file; a last line that was cut off is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines if line]


def run_all(text: str | None, path: Path, n_settings: int) -> None:
    """Train what is missing, one line a run."""
    done = {(run["setting"], run["seed"]) for run in read_runs(path)}
    halves = {number: half_of(setting(number)) for number in range(n_settings)}
    # The half that thresholds are learned on comes first: they can be frozen before the other is run.
    for count, number in enumerate(sorted(halves, key=lambda k: (halves[k] == "judge", k))):
        chosen = setting(number)
        for seed in SEEDS:
            if (number, seed) in done:
                continue
            logged, _ = train_logged(run_config(chosen, seed, text))
            line = {"setting": number, "seed": seed, "half": halves[number], "chosen": chosen}
            with path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(line | logged.to_json()) + "\n")
            print(f"{count + 1}/{n_settings} seed {seed}: {logged.losses[-1]:.2f}", flush=True)


def main() -> None:
    """Run, learn or judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    run = parts.add_parser("run", help="train, one line of JSON a run")
    run.add_argument("--text", help="a UTF-8 text; by default the package's own passage")
    run.add_argument("--runs", type=Path, required=True)
    run.add_argument("--settings", type=int, default=104)
    options = parser.parse_args()
    torch.set_num_threads(1)
    run_all(options.text, options.runs, options.settings)


if __name__ == "__main__":
    main()
