"""Does a watcher warn in time? Runs that go well or wrong; detectors learned on some, then judged.

    python benchmarks/watch_detectors.py run --group learn --text FILE --runs LEARN.jsonl
    python benchmarks/watch_detectors.py learn --runs LEARN.jsonl    # docs/watch-frozen.json
    python benchmarks/watch_detectors.py run --group judge --text FILE --runs JUDGE.jsonl
    python benchmarks/watch_detectors.py judge --runs JUDGE.jsonl    # docs/watch-detectors.json
    python benchmarks/watch_detectors.py plant --text FILE
    python benchmarks/watch_detectors.py act --text FILE --runs JUDGE.jsonl --acts ACTS.jsonl

`run` and `act` can be stopped and started again: what is in their file is not repeated. `judge`
writes what alarms say of themselves, too (src/orbitlens/watching/evidence.json). Runs of the group
"judge" have other seeds and other settings than those of the group "learn".
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from _watch_acts import act_on, alarmed, plant_all
from _watch_learning import judge, learn
from _watch_runs import GROUPS, Group, run_config, train_logged

DOCS = Path(__file__).resolve().parents[1] / "docs"
FROZEN, JUDGED = DOCS / "watch-frozen.json", DOCS / "watch-detectors.json"
EVIDENCE = DOCS.parent / "src" / "orbitlens" / "watching" / "evidence.json"
PARTS = {
    "run": "train what is missing",
    "learn": "choose thresholds",
    "judge": "judge frozen thresholds on other runs",
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


def run_all(text: str | None, path: Path, group: Group) -> None:
    """Train what is missing of a group, one line a run."""
    done = {(run["setting"], run["seed"]) for run in read_runs(path)}
    for number, chosen in group.settings().items():
        for seed in group.seeds:
            if (number, seed) in done:
                continue
            logged, _ = train_logged(run_config(chosen, seed, text))
            line = {"setting": number, "seed": seed, "group": group.name, "chosen": chosen}
            append(path, line | logged.to_json())
            print(number, seed, f"{logged.losses[-1]:.2f}", flush=True)


def act_all(
    options: argparse.Namespace, runs: list[dict[str, Any]], frozen: dict[str, Any]
) -> list[dict[str, Any]]:
    """Act on the first alarms of the judged runs, one line a run; what is in the file is kept."""
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


def evidence(alarms: dict[str, Any]) -> dict[str, Any]:
    """Return what the library says of its own alarms."""
    kept = ("threshold", "failed", "in_time", "sound", "false")
    return {
        kind: {name: row[name] for name in kept}
        for kind, row in alarms.items()
        if "threshold" in row
    }


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
        if name != "plant":
            part.add_argument("--runs", type=Path, required=True, help="a line of JSON a run")
        part.add_argument("--text", help="a UTF-8 text; by default the package's own passage")
        part.add_argument(
            "--group", choices=list(GROUPS), default="learn", help="that `run` trains"
        )
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
        run_all(options.text, options.runs, GROUPS[options.group])
        return
    if options.part == "learn":
        write(options.frozen, learn(read_runs(options.runs)))
        return
    frozen = json.loads(options.frozen.read_text(encoding="utf-8"))
    found = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
    if options.part == "judge":
        found |= judge(read_runs(options.runs), frozen)
        write(EVIDENCE, evidence(found["alarms"]))
    elif options.part == "plant":
        found["planted"] = list(plant_all(options.text, frozen))
    else:
        found["acts"] = act_all(options, read_runs(options.runs), frozen)
    write(options.out, found)


if __name__ == "__main__":
    main()
