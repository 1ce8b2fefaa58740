"""Kill processes that train, sweep, study and write reports; what they leave must be the same.

A round gives one kind of work a folder of its own, kills it a few times at random moments, lets it
end, and compares what is there, byte by byte but for clocks, with what work that nobody disturbed
leaves. `python tests/killing/kills.py --kills 50` prints a ledger; its exit code is the number of
rounds that differ.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from unittest import mock

FORK = multiprocessing.get_context("fork")
CLOCKS = {"seconds", "cpu_seconds", "date"}
PER_ROUND = 5  # kills


# --- work ------------------------------------------------------------------------------------


def _settings():
    from orbitlens.lab.run import run_config

    return {"task": "addition", "digits": 1, "layers": 1, "heads": 2, "width": 8, "steps": 60,
            "batch": 8, "judged": 64, "warmup": 4}, run_config  # fmt: skip


def every_state():
    """Have runs write their state after every step, for a while."""
    from orbitlens.lab import training

    return mock.patch.object(training, "STATE_EVERY", 0.0)


def train_one(folder):
    """Train a run that writes its state after every step."""
    from orbitlens.lab import training

    settings, run_config = _settings()
    with every_state():
        training.train(run_config(settings), folder)


def sweep_some(folder):
    """Run a sweep of two settings and two seeds."""
    from orbitlens.lab.sweep import run_sweep
    from orbitlens.lab.sweep_file import read_sweep

    settings, _ = _settings()
    lines = [f"{name} = {json.dumps(value)}" for name, value in (settings | {"steps": 20}).items()]
    text = "\n".join(["seeds = 2", "[base]", *lines, "[grid]", 'position = ["none", "rotary"]'])
    file = folder.parent / "sweep.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    with every_state():
        run_sweep(read_sweep(file), folder, partial(ThreadPoolExecutor, 1))


def measure_trained(bench):
    """Measure something that needs two training runs."""
    from orbitlens_papers.claim import Outcome
    from orbitlens_papers.estimate import largest
    from orbitlens_papers.trained import train_all

    settings, run_config = _settings()
    runs = train_all(bench, [run_config(settings | {"steps": 20, "seed": s}) for s in (0, 1)])
    losses = [run.result.loss for run in runs]
    return Outcome(result=largest(losses, of="runs"), control=largest([1e9], of="runs"))


def study_claims(folder):
    """Run a study of two claims."""
    from orbitlens_papers.bench import Scale, Settings
    from orbitlens_papers.claim import Claim, Kind, Protocol, Side
    from orbitlens_papers.running import run_study
    from orbitlens_papers.study import Parts, Study

    words = dict.fromkeys(("text", "measured", "why", "control"), "loss")
    words |= {"source": "p, here", "protocol": Protocol.AS_STATED, "kind": Kind.EXPERIMENT}
    claims = tuple(Claim(key=k, side=Side.BELOW, threshold=1e3, **words) for k in "12")
    measures = dict.fromkeys("12", measure_trained)
    study = Study(
        name="killed", title="t", paper="p", question="q", gap="g", read="r", claims=claims,
        parts=lambda: Parts(measures=measures, figures=lambda result: ()),
    )  # fmt: skip
    with every_state():
        run_study(study, Settings(scale=Scale.SMOKE, seeds=1), folder)


def write_reports(folder):
    """Write a page and its data again and again, each of the two in turn."""
    folder.mkdir(parents=True, exist_ok=True)
    first, second = reports()
    for report in (first, second) * 10 + (first,):
        report.save(folder / "report.html")
        report.save(folder / "report.json")


_REPORTS = []


def reports():
    """Return two reports that differ, made once."""
    if not _REPORTS:
        import orbitlens as ol
        from orbitlens.reporting.options import ReportOptions

        options = ReportOptions(max_tokens=64, samples=2, permutations=2, controls=1)
        for name in ("orbit-nano-none", "orbit-nano-rotary"):
            made = ol.report([name], options=options)
            assert made.html  # cached, so that processes started from here do not render it again
            _REPORTS.append(made)
    return _REPORTS


WORK = {"train": train_one, "sweep": sweep_some, "study": study_claims, "report": write_reports}


# --- killing ---------------------------------------------------------------------------------


def content(folder):
    """Return what a folder holds, by path: bytes, and JSON without its clocks."""
    held = {}
    for path in sorted(folder.rglob("*")):
        if path.is_dir() or path.name.startswith(".lock"):
            continue
        name = str(path.relative_to(folder))
        if path.suffix == ".jsonl":
            lines = path.read_text().splitlines()
            held[name] = json.dumps([_timeless(json.loads(line)) for line in lines])
        elif path.suffix == ".json":
            held[name] = json.dumps(_timeless(json.loads(path.read_text())))
        else:
            held[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return held


def _timeless(data):
    if isinstance(data, dict):
        return {k: _timeless(v) for k, v in data.items() if k not in CLOCKS}
    return [_timeless(v) for v in data] if isinstance(data, list) else data


def undisturbed(work, folder):
    """Let work end, and return what it leaves and how long it takes once all is imported."""
    work(folder.with_name("warm"))  # in this process: those started from here have it in memory
    started = time.perf_counter()
    _whole(work, folder)
    return content(folder), time.perf_counter() - started


def _whole(work, folder):
    process = FORK.Process(target=work, args=(folder,))
    process.start()
    process.join()
    assert process.exitcode == 0, f"{work.__name__} ended with {process.exitcode}"


def killed(work, folder, n_kills, seconds, moments):
    """Kill work up to `n_kills` times, let it end; return how often it was alive when killed."""
    n_hit = 0
    for _ in range(n_kills):
        process = FORK.Process(target=work, args=(folder,))
        process.start()
        time.sleep(moments.uniform(0, 0.6 * seconds))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        n_hit += process.exitcode == -signal.SIGKILL
    _whole(work, folder)
    return n_hit


def rounds(kind, n_kills, *, seed=0):
    """Kill one kind of work until `n_kills` hit; return kills, rounds and rounds that differ."""
    work, moments = WORK[kind], random.Random(f"{kind}/{seed}")
    if kind == "report":
        reports()
    n_hit = n_rounds = n_differ = 0
    with tempfile.TemporaryDirectory(prefix="orbitlens-kills-") as home:
        whole, seconds = undisturbed(work, Path(home) / "whole" / "out")
        while n_hit < n_kills:
            folder = Path(home) / f"round-{n_rounds}" / "out"
            n_hit += killed(work, folder, min(PER_ROUND, n_kills - n_hit), seconds, moments)
            n_rounds += 1
            left = content(folder)
            odd = sorted(name for name in left | whole if left.get(name) != whole.get(name))
            if odd:
                print(f"{kind}, round {n_rounds}: {', '.join(odd)}", flush=True)
            n_differ += bool(odd)
    return n_hit, n_rounds, n_differ


def two_writers(kind, folder):
    """Start work twice at once; return what each says, and what is left."""
    told = FORK.Queue()

    def job():
        from orbitlens.errors import OrbitlensError

        try:
            WORK[kind](folder)
            told.put("done")
        except OrbitlensError as error:
            told.put(str(error))

    processes = [FORK.Process(target=job) for _ in range(2)]
    for each in processes:
        each.start()
    said = [told.get(timeout=300) for _ in processes]
    for each in processes:
        each.join()
    return said, content(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    chosen = parser.parse_args()
    each, rest = divmod(chosen.kills, len(WORK))
    differ = 0
    for k, kind in enumerate(WORK):
        n_hit, n_rounds, n_differ = rounds(kind, each + (k < rest))
        differ += n_differ
        print(f"{kind}: {n_hit} kills in {n_rounds} rounds, {n_differ} differ", flush=True)
    return differ


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    sys.exit(main())
