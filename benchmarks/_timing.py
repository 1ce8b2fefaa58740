"""Timing on a machine that others use too: alternate what is compared, keep the shortest."""

import os
import platform
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import torch


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The least a job took, in seconds: by the clock, and of all its threads together."""

    wall: float
    cpu: float

    def __add__(self, other: "Timing") -> "Timing":
        return Timing(wall=self.wall + other.wall, cpu=self.cpu + other.cpu)

    def least(self, other: "Timing") -> "Timing":
        return Timing(wall=min(self.wall, other.wall), cpu=min(self.cpu, other.cpu))


def time_once(job: Callable[[], object]) -> Timing:
    """Run a job once; processes it starts and waits for are counted."""
    cpu, wall = _cpu_seconds(), time.perf_counter()
    job()
    return Timing(wall=time.perf_counter() - wall, cpu=_cpu_seconds() - cpu)


def time_in_turns(
    jobs: Mapping[str, Callable[[], object]], *, repeats: int, warm_up: bool = True
) -> dict[str, Timing]:
    """Run jobs in turns, so that a busy spell hits them all, and return the least of each."""
    if warm_up:
        for job in jobs.values():
            job()
    best: dict[str, Timing] = {}
    for _ in range(repeats):
        for name, job in jobs.items():
            now = time_once(job)
            best[name] = now.least(best.get(name, now))
    return best


def _cpu_seconds() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def machine() -> dict[str, object]:
    """Return what the numbers depend on besides the code."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:  # noqa: PTH123
            return next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
