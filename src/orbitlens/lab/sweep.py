"""Sweeps: many runs side by side, compared over seeds.

Enters: a `Sweep` and a way to make an executor (processes here, Dask on a cluster). Leaves: a
`SweepResult`. Each run has its own folder, named by its hash: a sweep that is started again runs
what is missing and resumes what was interrupted. A run that fails is reported, and stops no other.
"""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from pathlib import Path
from typing import Any

from orbitlens.errors import OrbitlensError
from orbitlens.files import writable_folder, write_whole
from orbitlens.lab.ownership import LOCK, locked
from orbitlens.lab.run import RunConfig, RunResult, run_hash
from orbitlens.lab.run_state import RESULT
from orbitlens.lab.summary import Row, summary_row
from orbitlens.lab.sweep_file import Sweep, SweepCell
from orbitlens.lab.sweep_result import Failure, SweepResult
from orbitlens.lab.training import finished, train
from orbitlens.results.codec import decode
from orbitlens.running.loading import quiet_transformers

MakeExecutor = Callable[[], Executor]


def run_sweep(
    sweep: Sweep,
    folder: Path,
    make_executor: MakeExecutor,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> SweepResult:
    """Run what `folder` does not hold yet, and return everything.

    Raises:
        InputError: the folder cannot be written.
        TrainingError: another process is running a sweep there.
    """
    writable_folder(folder)
    with locked(
        folder / LOCK,
        f"{folder}: another process is running a sweep in this folder. Wait until it has ended: "
        "the runs it has done are then read; or give this one a folder of its own.",
    ):
        return _run_sweep(sweep, folder, make_executor, progress)


def _run_sweep(
    sweep: Sweep,
    folder: Path,
    make_executor: MakeExecutor,
    progress: Callable[[int, int], None] | None,
) -> SweepResult:
    wanted = {(cell.label, seed): cell.config(seed) for cell in sweep.cells for seed in sweep.seeds}
    names = {place: run_hash(config) for place, config in wanted.items()}
    runs = _Runs(folder, {names[place]: config for place, config in wanted.items()}, progress)
    n_reused = len(runs.done)
    runs.go(make_executor)
    results = {place: runs.done[name] for place, name in names.items() if name in runs.done}
    failed = [
        Failure(label=label, seed=seed, error=runs.errors[names[label, seed]])
        for label, seed in wanted
        if names[label, seed] in runs.errors
    ]
    return SweepResult(
        rows=tuple(_rows(sweep.cells, results)),
        runs=tuple(runs.done[name] for name in dict.fromkeys(names.values()) if name in runs.done),
        failed=tuple(failed),
        n_reused=n_reused,
    )


def run_one(config: RunConfig, folder: Path) -> dict[str, Any]:
    """Train one run, in a process of its own; what comes back is plain data."""
    with quiet_transformers():
        return train(config, folder).to_json()


class _Runs:
    """The runs of a sweep by name: those done, those that failed, those to come."""

    def __init__(
        self,
        folder: Path,
        configs: dict[str, RunConfig],
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.folder, self.configs, self.progress = folder, configs, progress
        self.errors: dict[str, str] = {}
        self.done: dict[str, RunResult] = {}
        for name in configs:
            result = finished(folder / name)
            if result is not None:
                self.done[name] = result
        self._show()

    @property
    def left(self) -> list[str]:
        """Names of the runs that neither are done nor failed."""
        return [n for n in self.configs if n not in self.done and n not in self.errors]

    def go(self, make_executor: MakeExecutor) -> None:
        """Run what is left, side by side; after a process died, one by one.

        A process that is killed, for instance for lack of memory, breaks the pool and all its runs.
        Run alone, the one responsible is known.
        """
        if self.left:
            self._round(self.left, make_executor)
        for name in self.left:
            self._round([name], make_executor)
            if name in self.left:
                self.errors[name] = "its process died twice; the machine may lack memory for it"
                self._show()

    def _round(self, names: Sequence[str], make_executor: MakeExecutor) -> None:
        executor, futures = make_executor(), {}
        try:
            for name in names:
                futures[executor.submit(run_one, self.configs[name], self.folder)] = name
            for future in as_completed(futures):
                self._take(futures[future], future)
        except BrokenExecutor:
            return  # what is left is run again
        finally:
            for future in futures:
                future.cancel()
            executor.shutdown(wait=False)

    def _take(self, name: str, future: "Future[dict[str, Any]]") -> None:
        error = future.exception()
        if isinstance(error, BrokenExecutor):
            raise error
        if isinstance(error, OrbitlensError):
            self.errors[name] = str(error)
        elif error is not None:
            self.errors[name] = f"{type(error).__name__}: {error}"
        else:
            self.done[name] = decode(RunResult, future.result())
            self._keep(name)
        self._show()

    def _keep(self, name: str) -> None:
        """Write a result that a worker on another machine left there."""
        file = self.folder / name / RESULT
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(self.done[name].to_json(), indent=1) + "\n"
            write_whole(file, text.encode(), onto_disk=True)

    def _show(self) -> None:
        if self.progress is not None:
            self.progress(len(self.done) + len(self.errors), len(self.configs))


def _rows(cells: Sequence[SweepCell], results: dict[tuple[str, int], RunResult]) -> list[Row]:
    by_label: dict[str, list[RunResult]] = {}
    for (label, _), result in results.items():
        by_label.setdefault(label, []).append(result)
    rows = []
    for cell in cells:
        own = by_label.get(cell.label)
        if own is None:  # all its runs failed
            continue
        other = by_label.get(cell.baseline) if cell.baseline is not None else None
        baseline = (cell.baseline, other) if cell.baseline is not None and other else None
        rows.append(summary_row(cell.label, own, settings=cell.changed, baseline=baseline))
    return rows
