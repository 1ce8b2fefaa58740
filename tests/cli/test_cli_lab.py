"""`orbitlens train` and `orbitlens sweep`: what they print, write, and refuse with exit code 2."""

import json
import os
import subprocess
import sys
from concurrent.futures import Executor, Future

import pytest
from typer.testing import CliRunner

from orbitlens.cli import lab as cli_lab
from orbitlens.cli.app import app
from orbitlens.errors import InputError, OrbitlensError

SMALL = "--layers 1 --heads 2 --width 8 --steps 3 --batch 4 --set judged=8 --set digits=1".split()


def run(*arguments):
    return CliRunner().invoke(app, [*arguments])


def test_train_prints_a_table_that_fits_and_writes_what_the_docs_promise(tmp_path):
    file = tmp_path / "train.json"
    out = str(tmp_path / "out")
    result = run("train", "addition", *SMALL, "--seeds", "2", "--out", out, "--json", str(file))
    assert result.exit_code == 0, result.output
    assert "does not see order" in result.output
    assert all(len(line) <= 80 or "model in" in line for line in result.output.splitlines())
    data = json.loads(file.read_text())
    assert set(data) == {"runs", "summary", "ceiling"}
    wanted = {"config", "seed", "loss", "accuracy", "steps", "seconds", "parameters"}
    assert [run["seed"] for run in data["runs"]] == [0, 1]
    assert all(wanted <= set(run) for run in data["runs"])
    assert data["runs"][0]["config"]["options"] == {"digits": 1}
    losses = [run["loss"] for run in data["runs"]]
    assert data["summary"][0]["loss"]["mean"] == pytest.approx(sum(losses) / 2)
    assert result.output.count("model in") == 2


def test_a_second_call_reads_what_the_first_trained(tmp_path):
    arguments = ("train", "addition", *SMALL, "--out", str(tmp_path), "--json", "-")
    first, second = (json.loads(run(*arguments).stdout) for _ in range(2))
    assert first == second  # the seconds too, which a second training would not repeat


def test_residual_takes_layers(tmp_path):
    out = str(tmp_path)
    result = run("train", "addition", *SMALL, "--residual", "0", "--out", out, "--json", "-")
    assert json.loads(result.stdout)["runs"][0]["config"]["residual"] == [0]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["train", "adition"], "Known: addition, copy"),
        (["train", "addition", "--position", "rotery"], "none, learned, sinusoidal, rotary"),
        (["train", "addition", "--refinement", "gard"], "guard"),
        (["train", "addition", "--mask", "half"], "causal, full"),
        (["train", "addition", "--width", "65"], "does not split into 4"),
        (["train", "addition", "--seeds", "0"], "at least 1"),
        (["train", "addition", "--set", "digits"], "expected NAME=VALUE"),
        (["train", "addition", "--set", "digts=2"], "Did you mean 'digits'"),
        (["train", "addition", "--set", "digits=two"], "digits='two': expected a whole number"),
        (["train", "addition", "--tracker", "paper"], "Known: tensorboard, mlflow"),
        (["train", "text", "--file", "nowhere.txt"], "cannot be read"),
        (["train", "parity", "--set", "length=3"], "too few different questions"),
        (["sweep", "nowhere.toml"], "cannot be read"),
    ],
)
def test_bad_input_is_refused_before_anything_is_trained(tmp_path, arguments, match):
    out = tmp_path / "out"
    result = run(*arguments, "--out", str(out))
    assert isinstance(result.exception, InputError)
    assert match in str(result.exception)
    assert not out.exists()


def test_bad_input_exits_with_2_and_one_line():
    done = subprocess.run(
        [sys.executable, "-m", "orbitlens.cli", "train", "adition"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("orbitlens: the task 'adition' is unknown.")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


SWEEP = """
seeds = 1
[base]
task = "addition"
digits = 1
layers = 1
heads = 2
width = 8
steps = 3
batch = 4
judged = 8
measure = true
[grid]
position = ["none", "learned"]
[baseline]
position = "none"
"""


def test_sweep_runs_in_processes_resumes_and_reports(tmp_path):
    plan, file = tmp_path / "s.toml", tmp_path / "s.json"
    plan.write_text(SWEEP)
    arguments = ("sweep", str(plan), "--out", str(tmp_path / "out"), "--workers", "1")
    result = run(*arguments, "--json", str(file))
    assert result.exit_code == 0, result.output
    assert "0 of 2 runs were there" in result.output
    assert "tokens through depth" in result.output
    assert all(len(line) <= 80 or "kept in" in line for line in result.output.splitlines())
    data = json.loads(file.read_text())
    assert [row["label"] for row in data["summary"]] == ["none", "learned"]
    assert data["summary"][1]["difference"]["baseline"] == "none"
    assert set(data["runs"][0]["measured"]) >= {"log_distance_change", "cosine_last"}
    assert data["failed"] == []
    assert "2 of 2 runs were there" in run(*arguments).output


class Here(Executor):
    """Runs everything at once, in this process."""

    def submit(self, function, /, *args):
        future = Future()
        try:
            future.set_result(function(*args))
        except OrbitlensError as error:
            future.set_exception(error)
        return future


def test_a_sweep_with_a_failure_says_so_and_exits_with_1(tmp_path, monkeypatch):
    plan = tmp_path / "s.toml"
    bad = 'lr = 1e18\nclip = 1e30\nnorm = "none"\nwarmup = 0\nsteps = 40\n[grid]'
    plan.write_text(SWEEP.replace("steps = 3\n", "").replace("[grid]", bad))
    monkeypatch.setattr(cli_lab, "_executor", lambda *_: Here())
    result = run("sweep", str(plan), "--out", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert result.output.count("failed:") == 2


@pytest.mark.parametrize("name", ["symmetry", "convergence-addition"])
def test_the_experiments_of_the_repository_can_be_read(name):
    from pathlib import Path

    from orbitlens.lab.sweep_file import read_sweep

    folder = Path(__file__).resolve().parents[2] / "experiments"
    plan = read_sweep(folder / f"{name}.toml")
    assert len(plan.cells) >= 12
    assert len(plan.seeds) >= 3
