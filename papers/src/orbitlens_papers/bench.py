"""What an experiment is given: its scale, its seeds, a place for runs, and workers.

Enters: settings. Leaves: a `Bench`, which picks sizes by scale, hands out generators that depend on
nothing but names and seeds (so that a resumed run draws the same numbers), and spreads work.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Executor, as_completed
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import torch

from orbitlens.errors import InputError, OrbitlensError
from orbitlens.running.workers import local_workers

Item = TypeVar("Item")
Made = TypeVar("Made")


class WorkerError(OrbitlensError):
    """A process that did part of the work is gone."""


class Scale(StrEnum):
    """How much to run: seconds, minutes, or as long as it takes."""

    SMOKE = "smoke"
    DEFAULT = "default"
    FULL = "full"


SEEDS: Mapping[Scale, int] = {Scale.SMOKE: 3, Scale.DEFAULT: 4, Scale.FULL: 8}


def scale_of(name: str) -> Scale:
    """Return the scale of that name.

    Raises:
        InputError: there is none.
    """
    try:
        return Scale(name)
    except ValueError as error:
        known = ", ".join(scale.value for scale in Scale)
        raise InputError(f"the scale {name!r} is unknown. Expected one of: {known}.") from error


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a study is run with."""

    scale: Scale = Scale.DEFAULT
    seeds: int = 0  # 0: as many as the scale has
    base_seed: int = 0
    models: tuple[str, ...] = ()  # folders of models, beside those of the package
    text: str | None = None  # a file for language modelling
    data: str | None = None  # a folder of data sets, by the names they are published under
    claims: tuple[str, ...] = ()  # keys of the claims to test; none: all of them

    def __post_init__(self) -> None:
        """Refuse numbers of seeds that mean nothing."""
        if self.seeds < 0 or self.seeds > 1000:
            raise InputError(f"{self.seeds} seeds: expected 1 to 1000.")

    def check_files(self) -> None:
        """Refuse files that are not there, before anything runs."""
        if self.text is not None and not Path(self.text).is_file():
            raise InputError(f"{self.text}: there is no such file. Expected UTF-8 text.")
        if self.data is not None and not Path(self.data).is_dir():
            raise InputError(
                f"{self.data}: there is no such folder. Expected one with data sets such as "
                "fsdd.zip; without a folder, studies use data they make themselves."
            )

    def data_file(self, name: str) -> Path | None:
        """Return a file of the folder of data; None where no folder was given, or it has none."""
        file = None if self.data is None else Path(self.data) / name
        return file if file is not None and file.is_file() else None

    @property
    def n_seeds(self) -> int:
        """How many seeds are run."""
        return self.seeds or SEEDS[self.scale]


class Bench:
    """Settings, workers and a memory for the time of one run."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        *,
        executor: Executor | None = None,
        step: Callable[[float], None] | None = None,
    ) -> None:
        """Prepare a bench whose training runs are kept below `folder`."""
        self.settings = settings
        self.folder = folder
        self.scale = settings.scale
        self._executor = executor
        self._own: Executor | None = None
        self._step = step or (lambda share: None)
        self._made: dict[str, Any] = {}

    @property
    def seeds(self) -> range:
        """The seeds to run."""
        return range(self.settings.base_seed, self.settings.base_seed + self.settings.n_seeds)

    def first_seeds(self, n: int) -> range:
        """Return n seeds or, where the user asked for more, those: for claims with their own n."""
        first = self.settings.base_seed
        return range(first, first + max(n, self.settings.seeds))

    def data_file(self, name: str) -> Path | None:
        """Return a data set of the user's; None where no folder was given, or it has no such."""
        return self.settings.data_file(name)

    def pick(self, smoke: Item, default: Item, full: Item) -> Item:
        """Return what belongs to this scale."""
        return {Scale.SMOKE: smoke, Scale.DEFAULT: default, Scale.FULL: full}[self.scale]

    def generator(self, name: str, seed: int = 0) -> torch.Generator:
        """Return a generator that depends on the name, the seed and the study's own seed alone."""
        text = f"{self.settings.base_seed}/{name}/{seed}"
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
        return torch.Generator().manual_seed(number)

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """Return what `make` makes, made once a run and shared between claims."""
        if name not in self._made:
            self._made[name] = make()
        made: Made = self._made[name]
        return made

    def step(self, part: float) -> None:
        """Say which part of the present claim is done."""
        self._step(part)

    def map(self, function: Callable[[Item], Made], items: Iterable[Item]) -> list[Made]:
        """Return the function of every item, in order; side by side where that pays."""
        todo = list(items)
        executor = self._workers(len(todo))
        if executor is None:
            return list(self._one_by_one(function, todo))
        pending = {executor.submit(function, item): k for k, item in enumerate(todo)}
        try:
            for done, _ in enumerate(as_completed(pending), 1):
                self.step(done / len(todo))
        except BaseException:
            for future in pending:
                future.cancel()
            raise
        try:
            return [future.result() for future in pending]
        except BrokenExecutor as error:
            raise WorkerError(
                "a worker process ended before its work was done (killed, or out of memory). What "
                "is done is kept: the same command goes on from there."
            ) from error

    def _one_by_one(self, function: Callable[[Item], Made], todo: list[Item]) -> Iterator[Made]:
        for k, item in enumerate(todo, 1):
            yield function(item)
            self.step(k / len(todo))

    def _workers(self, n_items: int) -> Executor | None:
        """Return who does the work: the given executor, processes of our own, or nobody else."""
        if self._executor is not None or n_items < 2:
            return self._executor
        if self.scale is Scale.SMOKE or (os.cpu_count() or 1) < 2:
            return None  # starting processes would take longer than the work
        if self._own is None:
            self._own = local_workers()
        return self._own

    def close(self) -> None:
        """Let the processes go."""
        if self._own is not None:
            self._own.shutdown(wait=False, cancel_futures=True)
            self._own = None
