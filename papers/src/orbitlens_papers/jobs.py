"""Arms of an experiment: its variants, each run with a few seeds, side by side.

Enters: arms by name. Leaves: the result of every run, by arm. A study says what a run is set up
with (sizes, switches, data) in a dataclass of its own, plain enough for another process.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from orbitlens_papers.bench import Bench

Setup = TypeVar("Setup")
Made = TypeVar("Made")
Key = TypeVar("Key")


@dataclass(frozen=True, kw_only=True)
class Job(Generic[Setup]):
    """One run: its setup, the seed of its random numbers, and its place within its arm."""

    setup: Setup
    seed: int
    index: int = 0


@dataclass(frozen=True, kw_only=True)
class Arm(Generic[Setup]):
    """One variant of an experiment: a setup, and the seed of each of its runs."""

    setup: Setup
    seeds: Sequence[int]

    @property
    def jobs(self) -> list[Job[Setup]]:
        """The runs of this arm."""
        return [Job(setup=self.setup, seed=s, index=k) for k, s in enumerate(self.seeds)]


def run_arms(
    bench: Bench, run: Callable[[Job[Setup]], Made], arms: Mapping[Key, Arm[Setup]]
) -> dict[Key, list[Made]]:
    """Run every job of every arm, in parallel where that pays; results by arm, in order of seeds.

    `run` is a function of a module, so that other processes can be given it.
    """
    results = iter(bench.map(run, [job for arm in arms.values() for job in arm.jobs]))
    return {name: list(islice(results, len(arm.seeds))) for name, arm in arms.items()}
