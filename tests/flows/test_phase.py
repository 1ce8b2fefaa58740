"""Sweeps write each cell once, whole, and go on where they stopped."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context

import pytest

from orbitlens import files
from orbitlens.cli.app import app
from orbitlens.errors import InputError
from orbitlens.flows import phase
from orbitlens.flows.integrate import IntegrateOptions, integrate_flow
from orbitlens.flows.outcome import Fate, fate
from orbitlens.flows.phase import SWEPT, Axis, PhaseGrid, run_cell, run_sweep
from orbitlens.flows.setup import Setup, build
from orbitlens.flows.system import Geometry

BASE = Setup(system="mixed", n_tokens=6, d_model=2, until=3.0)
SWEEP = PhaseGrid(
    base=BASE,
    x=Axis(name="beta", values=(0.5, 2.0)),
    y=Axis(name="alignment", values=(-1.0, 1.0)),
    n_seeds=2,
)


class Now(Executor):
    """Runs cells at once, in order, and counts them."""

    def __init__(self):
        self.ran = []

    def submit(self, function, *arguments):
        self.ran.append(arguments)
        future = Future()
        future.set_result(function(*arguments))
        return future


class Interrupted(Executor):
    """Runs so many cells, then behaves as if the user had pressed Ctrl-C."""

    def __init__(self, cells):
        self.left = cells

    def submit(self, function, *arguments):
        future = Future()
        if self.left > 0:
            self.left -= 1
            future.set_result(function(*arguments))
        else:
            future.set_exception(KeyboardInterrupt())
        return future


def cell_files(folder):
    return {file.name: file.stat().st_mtime_ns for file in folder.glob("cell-*.json")}


# --- what a cell holds -----------------------------------------------------------------------


def test_the_extremes_of_alignment_end_as_they_must(tmp_path):
    diagram = run_sweep(SWEEP, tmp_path, Now())
    shares = {(cell.x, cell.y): (cell.converging, cell.diverging) for cell in diagram.cells}
    assert shares[0.5, -1.0] == shares[2.0, -1.0] == (1.0, 0.0)
    assert shares[0.5, 1.0] == shares[2.0, 1.0] == (0.0, 1.0)
    assert all(cell.agreement == 1.0 for cell in diagram.cells)  # T2 certifies both
    growth = {(cell.x, cell.y): cell.log_growth for cell in diagram.cells}
    assert growth[0.5, -1.0] < 0 < growth[0.5, 1.0]


def test_a_cell_is_the_mean_over_its_seeds():
    setup = replace(BASE, alignment=0.1, beta=1.5, seed=7)
    cell = run_cell(setup, 4)
    fates, clusters = [], []
    for seed in range(7, 11):
        system, tokens = build(replace(setup, seed=seed))
        options = IntegrateOptions(rtol=setup.rtol, n_saved=9)
        found = integrate_flow(system, tokens, until=setup.until, options=options)
        fates.append(fate(found))
        clusters.append(found.n_clusters)
    assert cell["diverging"] == fates.count(Fate.DIVERGING) / 4
    assert cell["diverging"] + cell["converging"] + cell["mixed"] == pytest.approx(1.0)
    assert cell["n_clusters"] == sum(clusters) / 4


def test_cells_come_column_by_column_with_their_places(tmp_path):
    diagram = run_sweep(SWEEP, tmp_path, Now())
    assert [(cell.x, cell.y) for cell in diagram.cells] == [
        (0.5, -1.0),
        (0.5, 1.0),
        (2.0, -1.0),
        (2.0, 1.0),
    ]


def test_a_diagram_is_plain_data(tmp_path):
    sweep = replace(SWEEP, base=replace(BASE, geometry=Geometry.SPHERE))
    data = json.loads(json.dumps(run_sweep(sweep, tmp_path, Now()).to_json(), allow_nan=False))
    assert data["n_seeds"] == 2
    assert data["base"]["geometry"] == "sphere"
    assert data["x"] == {"name": "beta", "values": [0.5, 2.0]}
    assert len(data["cells"]) == 4


@pytest.mark.parametrize("name", sorted(SWEPT))
def test_every_number_of_a_setup_can_be_swept(name, tmp_path):
    base = replace(BASE, position="rotary", until=0.5)
    values = {"window": (0.0, 2.0), "rtol": (1e-6, 1e-5), "alignment": (0.0, 0.5)}
    x = Axis(name=name, values=values.get(name, (2.0, 3.0)))
    y = Axis(name="beta" if name != "beta" else "until", values=(1.0,))
    diagram = run_sweep(PhaseGrid(base=base, x=x, y=y, n_seeds=1), tmp_path, Now())
    assert len(diagram.cells) == 2


# --- once, whole, and resumed ----------------------------------------------------------------


def test_a_rerun_reuses_every_cell(tmp_path):
    first, executor = run_sweep(SWEEP, tmp_path, Now()), Now()
    before = cell_files(tmp_path)
    again = run_sweep(SWEEP, tmp_path, executor)
    assert not executor.ran
    assert (first.n_reused, again.n_reused) == (0, 4)
    assert again.cells == first.cells
    assert cell_files(tmp_path) == before


def test_a_larger_sweep_reuses_what_it_shares(tmp_path):
    run_sweep(SWEEP, tmp_path, Now())
    wider = replace(SWEEP, x=Axis(name="beta", values=(0.5, 1.0, 2.0)))
    assert run_sweep(wider, tmp_path, Now()).n_reused == 4
    assert len(cell_files(tmp_path)) == 6


def test_another_setup_or_number_of_seeds_shares_nothing(tmp_path):
    run_sweep(SWEEP, tmp_path, Now())
    for other in (
        replace(SWEEP, n_seeds=3),
        replace(SWEEP, base=replace(BASE, until=2.0)),
        replace(SWEEP, base=replace(BASE, seed=1)),
    ):
        assert run_sweep(other, tmp_path, Now()).n_reused == 0


def test_values_that_are_one_whole_number_are_one_cell(tmp_path):
    sweep = replace(SWEEP, x=Axis(name="n_tokens", values=(4.0, 4.2)))
    executor = Now()
    diagram = run_sweep(sweep, tmp_path, executor)
    assert len(executor.ran) == len(cell_files(tmp_path)) == 2
    assert [cell.x for cell in diagram.cells] == [4.0, 4.0, 4.2, 4.2]


@pytest.mark.parametrize("damage", ["", "{", "[1, 2]", '{"diverging": 1.0}'])
def test_a_damaged_cell_is_computed_anew(tmp_path, damage):
    first = run_sweep(SWEEP, tmp_path, Now())
    file = next(tmp_path.glob("cell-*.json"))
    file.write_text(damage, encoding="utf-8")
    again = run_sweep(SWEEP, tmp_path, Now())
    assert again.n_reused == 3
    assert again.cells == first.cells


@pytest.mark.parametrize("cells", [0, 1, 3])
def test_an_interrupted_sweep_loses_nothing_and_resumes(tmp_path, cells):
    with pytest.raises(KeyboardInterrupt):
        run_sweep(SWEEP, tmp_path, Interrupted(cells))
    kept = cell_files(tmp_path)
    assert len(kept) == cells  # all that was done, though the interruption may have come first
    diagram = run_sweep(SWEEP, tmp_path, Now())
    assert diagram.n_reused == cells
    assert len(diagram.cells) == 4
    after = cell_files(tmp_path)
    assert {name: after[name] for name in kept} == kept  # each cell is written once
    assert not [*tmp_path.glob(".cell-*"), *tmp_path.glob(".draft-*")]


def test_a_write_that_fails_leaves_no_cell(tmp_path, monkeypatch):
    class Full(io.FileIO):
        def write(self, data):
            super().write(data[:7])
            raise OSError("no space left on device")

    monkeypatch.setattr(files.os, "fdopen", lambda handle, mode: Full(handle, mode))
    with pytest.raises(OSError, match="no space"):
        run_sweep(SWEEP, tmp_path, Now())
    assert not cell_files(tmp_path)
    monkeypatch.undo()
    assert run_sweep(SWEEP, tmp_path, Now()).n_reused == 0


SCRIPT = """
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from orbitlens.flows.phase import Axis, PhaseGrid, run_sweep
from orbitlens.flows.setup import Setup

sweep = PhaseGrid(
    base=Setup(system="mixed", n_tokens=6, d_model=2, until=3.0),
    x=Axis(name="beta", values=tuple(0.01 * k for k in range(1, 2000))),
    y=Axis(name="alignment", values=(-1.0,)),
    n_seeds=1,
)
with ThreadPoolExecutor(1) as pool:
    run_sweep(sweep, Path(sys.argv[1]), pool)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["kill", "ctrl-c"])
def test_a_killed_process_leaves_only_whole_cells(tmp_path, how):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # A background shell lets its children ignore Ctrl-C; here it has to be heard.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 90
        while len(cell_files(tmp_path)) < 5 and process.poll() is None:
            assert time.monotonic() < deadline, "the sweep wrote nothing"
            time.sleep(0.02)
        process.send_signal(how)
        assert process.wait(timeout=60) != 0
    finally:
        if process.poll() is None:
            process.kill()
    files = list(tmp_path.glob("cell-*.json"))
    assert 5 <= len(files) < 1999
    for file in files:
        assert set(json.loads(file.read_text(encoding="utf-8"))) == phase.MEASURED
    resumed = PhaseGrid(
        base=BASE,
        x=Axis(name="beta", values=tuple(0.01 * k for k in range(1, 6))),
        y=Axis(name="alignment", values=(-1.0,)),
        n_seeds=1,
    )
    assert run_sweep(resumed, tmp_path, Now()).n_reused == 5


# --- executors -------------------------------------------------------------------------------


def test_threads_and_processes_give_the_same_diagram(tmp_path):
    here = run_sweep(SWEEP, tmp_path / "here", Now())
    with ThreadPoolExecutor(2) as pool:
        threads = run_sweep(SWEEP, tmp_path / "threads", pool)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        processes = run_sweep(SWEEP, tmp_path / "processes", pool)
    assert here.cells == threads.cells == processes.cells


@pytest.mark.filterwarnings("ignore")  # of Dask's own start and stop
def test_a_dask_cluster_gives_the_same_diagram(tmp_path):
    distributed = pytest.importorskip("distributed", reason="Dask is an optional extra")
    here = run_sweep(SWEEP, tmp_path / "here", Now())
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        there = run_sweep(SWEEP, tmp_path / "there", client.get_executor())
    assert here.cells == there.cells


@pytest.mark.filterwarnings("ignore")  # of Dask's own start and stop
def test_the_command_runs_on_a_cluster_and_lets_it_go(tmp_path):
    distributed = pytest.importorskip("distributed", reason="Dask is an optional extra")
    options = ["--x", "beta=1,2", "--y", "alignment=-1", "--tokens", "4", "--dim", "2"]
    options += ["--until", "1", "--seeds", "1"]
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        where = ["--out", str(tmp_path), "--cluster", cluster.scheduler_address]
        app(["phase", *options, *where], standalone_mode=False)
    assert len(cell_files(tmp_path)) == 2


def test_progress_counts_cells_that_were_there_already(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run_sweep(SWEEP, tmp_path, Interrupted(1))
    seen = []
    run_sweep(SWEEP, tmp_path, Now(), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(2, 4), (3, 4), (4, 4)]


# --- what cannot be swept --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Axis(name="colour", values=(1.0,)), "'colour' cannot be swept. Parameters: align"),
        (lambda: Axis(name="seed", values=(1.0,)), "cannot be swept"),
        (lambda: Axis(name="system", values=(1.0,)), "cannot be swept"),
        (lambda: Axis(name="beta", values=()), "no values"),
        (
            lambda: list(PhaseGrid(base=BASE, x=SWEEP.x, y=SWEEP.x).setups()),
            "both axes sweep 'beta'",
        ),
        (lambda: list(replace(SWEEP, n_seeds=0).setups()), "0 seeds"),
    ],
)
def test_what_cannot_be_swept_is_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_two_equal_axes_are_refused_before_anything_is_run(tmp_path):
    executor = Now()
    with pytest.raises(InputError, match="two parameters"):
        run_sweep(replace(SWEEP, y=SWEEP.x), tmp_path, executor)
    assert not executor.ran


def test_a_cell_that_cannot_be_built_says_why(tmp_path):
    sweep = replace(SWEEP, x=Axis(name="n_tokens", values=(0.0,)))
    with ThreadPoolExecutor(1) as pool, pytest.raises(InputError, match="0 tokens were asked for"):
        run_sweep(sweep, tmp_path, pool)
    assert not cell_files(tmp_path)


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    taken = tmp_path / "file"
    taken.write_text("x", encoding="utf-8")
    with pytest.raises(InputError, match="cannot be written"):
        run_sweep(SWEEP, taken, Now())
