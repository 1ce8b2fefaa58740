"""Sweeps write each cell once, whole, and go on where they stopped."""

import json
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import pytest

from orbitlens.errors import InputError
from orbitlens.simulate.phase import Axis, Sweep, run_sweep
from orbitlens.simulate.setup import Setup, build

BASE = Setup(system="mixed", n_tokens=6, d_model=2, until=3.0)
SWEEP = Sweep(
    base=BASE,
    x=Axis(name="beta", values=(0.5, 2.0)),
    y=Axis(name="alignment", values=(-1.0, 1.0)),
    n_seeds=2,
)


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


def test_the_extremes_of_alignment_end_as_they_must(tmp_path):
    with ThreadPoolExecutor(1) as pool:
        diagram = run_sweep(SWEEP, tmp_path, pool)
    shares = {(cell.x, cell.y): (cell.converging, cell.diverging) for cell in diagram.cells}
    assert shares[0.5, -1.0] == shares[2.0, -1.0] == (1.0, 0.0)
    assert shares[0.5, 1.0] == shares[2.0, 1.0] == (0.0, 1.0)
    assert json.loads(json.dumps(diagram.to_json()))["n_seeds"] == 2


def test_an_interrupted_sweep_loses_nothing_and_resumes(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run_sweep(SWEEP, tmp_path, Interrupted(2))
    kept = {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("cell-*.json")}
    assert 0 < len(kept) <= 2
    with ThreadPoolExecutor(1) as pool:
        diagram = run_sweep(SWEEP, tmp_path, pool)
    assert diagram.n_reused == len(kept)
    assert len(diagram.cells) == 4
    for name, written in kept.items():
        assert (tmp_path / name).stat().st_mtime_ns == written  # each cell is written once
    assert not list(tmp_path.glob(".cell-*"))
    with ThreadPoolExecutor(1) as pool:
        again = run_sweep(SWEEP, tmp_path, pool)
    assert (again.n_reused, again.cells) == (4, diagram.cells)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Axis(name="colour", values=(1.0,)), "cannot be swept"),
        (lambda: Axis(name="beta", values=()), "no values"),
        (lambda: list(Sweep(base=BASE, x=SWEEP.x, y=SWEEP.x).setups()), "two parameters"),
        (lambda: list(Sweep(base=BASE, x=SWEEP.x, y=SWEEP.y, n_seeds=0).setups()), "seeds"),
        (lambda: build(Setup(system="unheard-of")), "Known"),
        (lambda: build(Setup(position="left")), "unknown"),
        (lambda: build(Setup(n_tokens=0)), "at least 1"),
        (lambda: build(Setup(position="rotary", d_model=1)), "2 wide"),
    ],
)
def test_what_cannot_be_swept_is_refused(make, word):
    with pytest.raises(InputError, match=word):
        make()
