"""Phase diagrams: two parameters swept, several seeds each, and the regime of every cell.

Enters: a `Sweep`. Leaves: a `PhaseDiagram`. Cells run in any `concurrent.futures.Executor`
(processes here, Dask on a cluster), and each is written once, whole, to a file named by what it
is: an interrupted sweep goes on where it stopped.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, as_completed
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from orbitlens.errors import InputError
from orbitlens.files import read_json, write_whole
from orbitlens.flows.agreement import FlowAgreement, agreement_of
from orbitlens.flows.integrate import IntegrateOptions, integrate_flow
from orbitlens.flows.outcome import Fate, fate, log_sizes
from orbitlens.flows.prediction import predict
from orbitlens.flows.setup import Setup, build

SWEPT = {f.name: f.type for f in fields(Setup) if f.type in (int, float) and f.name != "seed"}
LARGEST_CELL = 100_000  # bytes of a cell's file
VERSION = 3  # of the cells' files; another version is computed anew


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One parameter and the values it takes."""

    name: str
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse a parameter that a setup does not have."""
        if self.name not in SWEPT:
            raise InputError(
                f"{self.name!r} cannot be swept. Parameters: {', '.join(sorted(SWEPT))}."
            )
        if not self.values:
            raise InputError(f"the axis {self.name!r} has no values; expected at least one.")


@dataclass(frozen=True, kw_only=True)
class PhaseGrid:
    """Everything a phase diagram is made from."""

    base: Setup
    x: Axis
    y: Axis
    n_seeds: int = 4

    def setups(self) -> Iterator[tuple[int, int, Setup]]:
        """Go through the cells: column, row, and the setup without its seed."""
        if self.x.name == self.y.name:
            raise InputError(f"both axes sweep {self.x.name!r}; expected two parameters.")
        if self.n_seeds < 1:
            raise InputError(f"{self.n_seeds} seeds were asked for; expected at least 1.")
        for column, a in enumerate(self.x.values):
            for row, b in enumerate(self.y.values):
                yield column, row, self._at(a, b)

    def _at(self, a: float, b: float) -> Setup:
        changes = {self.x.name: a, self.y.name: b}
        whole = {k: round(v) if SWEPT[k] is int else float(v) for k, v in changes.items()}
        return replace(self.base, **whole)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class PhaseCell:
    """What happened at one point of the plane, over the seeds."""

    x: float
    y: float
    diverging: float  # share of the seeds
    converging: float
    mixed: float
    n_clusters: float  # mean, at the end
    log_growth: float  # mean of ln(largest length at the end / at the start)
    agreement: float  # share of the seeds whose fate was the predicted one


MEASURED = {f.name for f in fields(PhaseCell)} - {"x", "y"}


@dataclass(frozen=True, kw_only=True)
class PhaseDiagram:
    """All cells of a sweep, column by column."""

    sweep: PhaseGrid
    cells: tuple[PhaseCell, ...]
    n_reused: int  # cells found from an earlier run

    def to_json(self) -> dict[str, Any]:
        """Return the diagram as plain data."""
        return {
            "base": _plain_setup(self.sweep.base),
            "x": asdict(self.sweep.x),
            "y": asdict(self.sweep.y),
            "n_seeds": self.sweep.n_seeds,
            "cells": [asdict(cell) for cell in self.cells],
        }


def run_sweep(
    sweep: PhaseGrid,
    folder: Path,
    executor: Executor,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> PhaseDiagram:
    """Run the cells that `folder` does not hold yet, and return them all."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error}). Choose another.") from error
    wanted = [(setup, _cell_file(folder, setup, sweep.n_seeds)) for _, _, setup in sweep.setups()]
    # Whole numbers may make two values of an axis one cell: it is run once.
    missing = {file: setup for setup, file in wanted if _read(file) is None}
    n_reused = sum(file not in missing for _, file in wanted)
    done = n_reused
    pending: dict[Future[dict[str, float]], Path] = {
        executor.submit(run_cell, setup, sweep.n_seeds): file for file, setup in missing.items()
    }
    try:
        for future in as_completed(pending):
            _write(pending[future], future.result())
            done += 1
            if progress is not None:
                progress(done, len(wanted))
    finally:  # interrupted: what has not begun is dropped, what is done is kept
        for future, file in pending.items():
            if not future.cancel() and _succeeded(future) and not file.exists():
                _write(file, future.result())
    points = [(a, b) for a in sweep.x.values for b in sweep.y.values]
    cells = tuple(
        PhaseCell(x=a, y=b, **(_read(file) or {}))
        for (a, b), (_, file) in zip(points, wanted, strict=True)
    )
    return PhaseDiagram(sweep=sweep, cells=cells, n_reused=n_reused)


def run_cell(setup: Setup, n_seeds: int) -> dict[str, float]:
    """Simulate one setup with several seeds; the numbers of a `Cell`, without its place."""
    options = IntegrateOptions(rtol=setup.rtol, n_saved=9)
    fates, clusters, growth, agreed = [], [], [], []
    for seed in range(n_seeds):
        system, tokens = build(replace(setup, seed=setup.seed + seed))
        trajectory = integrate_flow(system, tokens, until=setup.until, options=options)
        sizes = log_sizes(trajectory.unit_tokens, trajectory.log_scale)
        fates.append(fate(trajectory, system.geometry))
        clusters.append(trajectory.n_clusters)
        growth.append((sizes[-1] - sizes[0]).item())
        agreement = agreement_of(predict(system, tokens), trajectory, system.geometry)
        agreed.append(agreement is FlowAgreement.YES)
    shares = {kind.value: fates.count(kind) / n_seeds for kind in Fate}
    return {
        **shares,
        "n_clusters": sum(clusters) / n_seeds,
        "log_growth": sum(growth) / n_seeds,
        "agreement": sum(agreed) / n_seeds,
    }


def _plain_setup(setup: Setup) -> dict[str, Any]:
    return {name: getattr(value, "value", value) for name, value in asdict(setup).items()}


def _cell_file(folder: Path, setup: Setup, n_seeds: int) -> Path:
    what = json.dumps([VERSION, n_seeds, _plain_setup(setup)], sort_keys=True)
    return folder / f"cell-{hashlib.sha256(what.encode()).hexdigest()[:20]}.json"


def _succeeded(future: Future[dict[str, float]]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _read(file: Path) -> dict[str, float] | None:
    """Return a cell's numbers; None where there is no cell yet, or something damaged it."""
    try:
        data = read_json(file, LARGEST_CELL)
    except (OSError, ValueError):
        return None
    is_whole = isinstance(data, dict) and set(data) == MEASURED
    return data if is_whole and all(type(v) in {int, float} for v in data.values()) else None


def _write(file: Path, data: dict[str, float]) -> None:
    """Write a cell whole or not at all."""
    write_whole(file, json.dumps(data, allow_nan=False).encode())
