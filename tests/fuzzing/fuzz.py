"""Run damaged files against orbitlens: anything but success or its own error is a finding.

So is more time or memory than the bounds below allow. Cases run in a process of their own, which is
started anew after each that dies or hangs. `python tests/fuzzing/fuzz.py --files 10000` prints a
ledger and ends with the number of findings as its exit code (0: none; at most 100).
"""

import argparse
import multiprocessing
import os
import resource
import shutil
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

SECONDS = 20.0  # of the processor for one case: its files have a few kilobytes
PATIENCE = 120.0  # seconds after which a case is taken to hang
MEGABYTES = 400  # above what the process had before the case
BLOCK = 400  # cases of one process
HEADROOM = 4_000  # megabytes of addresses that a case may ask for: more is refused by the system


@dataclass
class Ledger:
    """What became of all cases."""

    counts: Counter = field(default_factory=Counter)  # by format and outcome
    findings: list = field(default_factory=list)  # (format, number, what)
    slowest: float = 0.0
    largest: float = 0.0  # megabytes

    def take(self, kind, number, outcome, what, seconds, megabytes):
        self.slowest = max(self.slowest, seconds)
        self.largest = max(self.largest, megabytes)
        if outcome in {"read", "refused"} and seconds > SECONDS:
            outcome, what = "slow", f"{seconds:.1f} s, at most {SECONDS:g} are allowed"
        if outcome in {"read", "refused"} and megabytes > MEGABYTES:
            outcome, what = "large", f"{megabytes:.0f} MB, at most {MEGABYTES} are allowed"
        self.counts[kind, outcome] += 1
        if outcome not in {"read", "refused"}:
            self.findings.append((kind, number, f"{outcome}: {what}"))


def one_case(action):
    """Do what a case asks for; return its outcome and what was said."""
    from orbitlens.errors import OrbitlensError

    try:
        action()
    except OrbitlensError as error:
        return "refused", str(error)[:200]
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        own = [f for f in traceback.extract_tb(error.__traceback__) if "orbitlens/" in f.filename]
        near = f" via {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
        where = f"{Path(place.filename).name}:{place.lineno}{near}"
        return "raised", f"{type(error).__name__} at {where}: {str(error)[:200]}"
    return "read", ""


def _work(cases, folder, pipe, maker):
    """Run cases in this process, and tell of each when it begins and ends."""
    import torch

    torch.set_num_threads(1)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + HEADROOM * 1_000_000, resource.RLIM_INFINITY))
    for case in cases:
        pipe.send(("begun", case))
        action = maker(*case, Path(folder))
        before = _peak(reset=True)
        start = time.process_time()  # others may use the machine too
        outcome, what = one_case(action)
        seconds = time.process_time() - start
        pipe.send(("ended", case, outcome, what, seconds, max(0.0, _peak() - before)))
    pipe.send(("done",))


def _peak(reset=False):
    """Return the largest memory of this process since the last reset, in megabytes."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1000
    return 0.0


def _is_starved(pid):
    """Say whether a process would run, and gets next to no time: others have it."""
    before, _ = _cpu_seconds(pid)
    time.sleep(1.0)
    after, state = _cpu_seconds(pid)
    return state == "R" and after - before < 0.5


def _cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK"), fields[0]


def run_cases(cases, folder, maker, *, tell=None):
    """Run every case; a process that dies or hangs costs one finding, and the rest goes on."""
    context = multiprocessing.get_context("fork")
    ledger, left = Ledger(), list(cases)
    while left:
        here, there = context.Pipe(duplex=False)
        process = context.Process(
            target=_work, args=(left[:BLOCK], folder, there, maker), daemon=True
        )
        process.start()
        there.close()
        n_done, running = 0, None
        while True:
            try:
                while not (ready := here.poll(PATIENCE)) and _is_starved(process.pid):
                    pass
                heard = here.recv() if ready else None
            except EOFError:
                heard = ("died",)
            if heard is None or heard[0] == "died":
                process.kill()
                process.join()
                code = "did not end" if heard is None else f"ended with {process.exitcode}"
                kind, number = running or left[n_done]
                ledger.take(kind, number, "hung" if heard is None else "died", code, 0.0, 0.0)
                n_done += 1
                break
            if heard[0] == "done":
                process.join()
                break
            if heard[0] == "begun":
                running = heard[1]
            else:
                ledger.take(*heard[1], *heard[2:])
                n_done += 1
                if tell is not None:
                    tell(ledger)
        left = left[n_done:]
    shutil.rmtree(folder, ignore_errors=True)
    return ledger


def show(ledger, seconds):
    kinds = sorted({kind for kind, _ in ledger.counts})
    for kind in kinds:
        own = {what: n for (k, what), n in sorted(ledger.counts.items()) if k == kind}
        print(
            f"{kind}: {sum(own.values())} files, " + ", ".join(f"{n} {w}" for w, n in own.items())
        )
    print(
        f"slowest {ledger.slowest:.2f} s, largest {ledger.largest:.0f} MB, {seconds:.0f} s in all"
    )
    for kind, number, what in ledger.findings[:200]:
        print(f"FINDING {kind} {number}: {what}")
    print(f"{len(ledger.findings)} findings")


def main():
    from fuzzing import cases, wholes

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--format", choices=cases.FORMATS, help="one alone")
    chosen = parser.parse_args()
    kinds = cases.FORMATS if chosen.format is None else (chosen.format,)
    todo = [(kinds[k % len(kinds)], chosen.first + k // len(kinds)) for k in range(chosen.files)]
    folder = Path(wholes.scratch()) / "case"
    wholes.make_all()
    started = time.perf_counter()
    ledger = run_cases(todo, folder, cases.make)
    show(ledger, time.perf_counter() - started)
    return min(100, len(ledger.findings))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(main())
