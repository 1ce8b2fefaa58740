"""Sweeps: what a file asks for, statistics, failures that stop nothing, and summaries."""

import json
import math
import multiprocessing
import os
import random
import time
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import replace

import pytest

from orbitlens.errors import InputError, ResultError
from orbitlens.lab import sweep as sweep_module
from orbitlens.lab import training
from orbitlens.lab.run import RunResult, run_config, run_hash
from orbitlens.lab.summary import Interval, interval, summary_row
from orbitlens.lab.sweep import run_sweep
from orbitlens.lab.sweep_file import line_of, read_sweep
from orbitlens.lab.sweep_result import SweepResult

FORK = multiprocessing.get_context("fork")  # has everything imported: kills can be many
BASE = """
seeds = 2

[base]
task = "addition"
digits = 1
layers = 1
heads = 2
width = 8
steps = 3
batch = 4
judged = 8
"""


def written(tmp_path, text):
    file = tmp_path / "sweep.toml"
    file.write_text(BASE + text)
    return file


class Here(Executor):
    """Runs everything at once, in this process."""

    def submit(self, function, /, *args, **named):
        future = Future()
        try:
            future.set_result(function(*args, **named))
        except BaseException as error:
            future.set_exception(error)
        return future


def fake(config, *, loss=1.0, accuracy=0.5, seconds=2.0, measured=None):
    return RunResult(
        config=config,
        seed=config.seed,
        loss=loss,
        accuracy=accuracy,
        token_accuracy=accuracy,
        steps=config.steps,
        seconds=seconds,
        parameters=100 * config.width,
        measured=measured,
    )


# --- statistics ------------------------------------------------------------------------------


def test_the_interval_is_students():
    """Five values with mean 3 and variance 2.5: t(4) = 2.776 by any table."""
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3
    assert found.half_width == pytest.approx(2.7764 * math.sqrt(2.5 / 5), rel=1e-4)
    assert interval([4.0]) == Interval(mean=4.0, half_width=None, n=1)


def test_intervals_cover_the_truth_as_often_as_they_say(generator):
    import torch

    draws = torch.randn(2000, 4, generator=generator, dtype=torch.float64)
    found = [interval(row.tolist()) for row in draws]
    covered = sum(abs(f.mean) <= f.half_width for f in found) / len(found)
    assert 0.93 < covered < 0.97


def test_differences_are_paired_by_seed():
    """Seeds differ by much, the settings by little: paired, the little is seen."""
    seeds, offsets = range(5), [0.0, 5.0, -3.0, 8.0, 1.0]
    plain = [fake(run_config({"seed": s}), loss=offsets[s]) for s in seeds]
    better = [fake(run_config({"seed": s}), loss=offsets[s] - 0.1 - 0.001 * s) for s in seeds]
    row = summary_row("better", list(reversed(better)), baseline=("plain", plain))
    assert row.difference.loss.mean == pytest.approx(-0.102)
    assert row.difference.loss.excludes_zero
    assert row.loss.half_width > 1  # unpaired, nothing could be said
    same = summary_row("same", plain, baseline=("plain", plain))  # the control
    assert same.difference.loss.mean == 0
    assert not same.difference.loss.excludes_zero


def test_cost_is_compared_too():
    plain = [fake(run_config({"seed": s}), seconds=4.0) for s in range(2)]
    wide = [fake(run_config({"seed": s, "width": 128}), seconds=6.0) for s in range(2)]
    row = summary_row("wide", wide, baseline=("plain", plain))
    assert row.difference.time == pytest.approx(1.5)
    assert row.difference.parameters == 6400
    assert row.step_ms == pytest.approx(3.0)
    assert row.difference.cpu_time is None  # these runs did not look at the processor's clock


def test_a_busy_machine_does_not_make_a_setting_look_slow():
    """The wall clock says 9 s against 4, the processor's 3 s against 2."""
    plain = [replace(fake(run_config({"seed": s}), seconds=4.0), cpu_seconds=2.0) for s in (0, 1)]
    late = [replace(fake(run_config({"seed": s}), seconds=9.0), cpu_seconds=3.0) for s in (0, 1)]
    row = summary_row("late", late, baseline=("plain", plain))
    assert row.difference.time == pytest.approx(2.25)
    assert row.difference.cpu_time == pytest.approx(1.5)


def test_a_baseline_with_other_seeds_gives_no_difference():
    plain, other = [fake(run_config({"seed": 0}))], [fake(run_config({"seed": 1}))]
    assert summary_row("other", other, baseline=("plain", plain)).difference is None


# --- files -----------------------------------------------------------------------------------


def test_a_grid_is_every_combination_and_its_baseline_the_like_of_it(tmp_path):
    file = written(
        tmp_path,
        """
[grid]
position = ["none", "rotary"]
refinement = ["none", "guard", "anti"]
[baseline]
refinement = "none"
""",
    )
    plan = read_sweep(file)
    assert plan.seeds == (0, 1)
    assert [cell.label for cell in plan.cells][:3] == ["none none", "none guard", "none anti"]
    assert {cell.label: cell.baseline for cell in plan.cells} == {
        "none none": None,
        "none guard": "none none",
        "none anti": "none none",
        "rotary none": None,
        "rotary guard": "rotary none",
        "rotary anti": "rotary none",
    }
    config = plan.cells[5].config(1)
    assert (config.position, config.refinement, config.seed) == ("rotary", "anti", 1)
    assert dict(config.options) == {"digits": 1}


def test_variants_name_what_they_are_compared_with(tmp_path):
    file = written(
        tmp_path,
        """
[grid]
position = ["learned", "rotary"]
[[variants]]
name = "plain"
[[variants]]
name = "deep"
layers = 2
against = "plain"
""",
    )
    found = {cell.label: cell for cell in read_sweep(file).cells}
    assert found["deep rotary"].baseline == "plain rotary"
    assert found["plain rotary"].baseline is None
    assert found["deep learned"].config(0).layers == 2


def test_settings_can_be_changed_from_outside(tmp_path):
    plan = read_sweep(written(tmp_path, ""), {"steps": 7, "digits": 2})
    assert plan.cells[0].label == "all"
    assert plan.cells[0].config(0).steps == 7
    assert dict(plan.cells[0].config(0).options) == {"digits": 2}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[grid]\npostion = ['none']", r"line 14: \[grid\] postion: .*Did you mean 'position'"),
        ("[grid]\nposition = ['none', 'rotery']", r"rotery.*none, learned"),
        ("[grid]\nsteps = ['many']", r"line 14: \[grid\] steps: steps='many': expected a whole"),
        ("[grid]\nsteps = 3", r"line 14: \[grid\] steps: expected a list"),
        ("[gird]\nsteps = [3]", r"line 13: gird: unknown; known: seeds, base, grid"),
        ("[grid]\nwidth = [8, 9]", r"width=9: .*9 does not split into 2"),
        ("[baseline]\nmask = 'full'", r"line 14: \[baseline\] mask: .*a setting of \[grid\]"),
        ("[variants]\nname = 'a'", "line 13: variants: expected a table"),
        ("[grid]\nmask = full", "not TOML: .*line 14"),
        ("[[variants]]\nlayers = 2", r"line 13: \[variants\] name: expected a name"),
        (
            "[[variants]]\nname = 'a'\n[[variants]]\nname = 'b'\nmsk = 'full'",
            r"line 17: \[variants\] msk: .*Did you mean 'mask'",
        ),
        ("[[variants]]\nname = 'a'\nagainst = 'z'", r"line 15: \[variants\] against: .*: a"),
    ],
)
def test_a_typo_is_found_with_its_line_and_key(tmp_path, text, match):
    with pytest.raises(InputError, match=match):
        read_sweep(written(tmp_path, text))


def test_a_typo_in_base_is_found_with_its_line(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text("seeds = 1\n\n[base]\ntask = 'copy'\nlenght = 4\n")
    with pytest.raises(InputError, match=r"line 5: \[base\] lenght: .*Did you mean 'length'"):
        read_sweep(file)


@pytest.mark.parametrize("seeds", ["0", "[]", "[-1]", "['a']", "true"])
def test_bad_seeds_are_refused(tmp_path, seeds):
    file = tmp_path / "sweep.toml"
    file.write_text(f"seeds = {seeds}\n")
    with pytest.raises(InputError, match="seeds"):
        read_sweep(file)


def test_lines_are_found_in_the_right_part():
    text = "a = 1\n[base]\na = 2\n[grid]\n'a' = 3\n[[variants]]\na = 4\n[[variants]]\na = 5\n"
    places = [(None, 0), ("base", 0), ("grid", 0), ("variants", 0), ("variants", 1)]
    assert [line_of(text, "a", part, n) for part, n in places] == [1, 3, 5, 7, 9]


# --- running ---------------------------------------------------------------------------------


def test_a_sweep_runs_everything_once_and_a_second_time_nothing(tmp_path, monkeypatch):
    plan = read_sweep(written(tmp_path, "[grid]\nposition = ['none', 'learned']"))
    result = run_sweep(plan, tmp_path / "out", Here)
    assert [row.label for row in result.rows] == ["none", "learned"]
    assert (len(result.runs), result.n_reused, result.failed) == (4, 0, ())
    assert all(row.loss.n == 2 for row in result.rows)
    json.dumps(result.to_json(), allow_nan=False)
    monkeypatch.setattr(sweep_module, "run_one", lambda *_: pytest.fail("it ran again"))
    again = run_sweep(plan, tmp_path / "out", Here)
    assert again.n_reused == 4
    assert again.rows == result.rows


def test_two_cells_with_one_config_are_one_run(tmp_path):
    text = "[[variants]]\nname = 'a'\n[[variants]]\nname = 'b'\nposition = 'learned'\nagainst = 'a'"
    result = run_sweep(read_sweep(written(tmp_path, text)), tmp_path / "out", Here)
    assert len(result.runs) == 2
    assert result.rows[1].difference.loss.mean == 0


def test_a_run_that_fails_is_reported_and_stops_no_other(tmp_path):
    """A learning rate of 1e18 without a norm: the loss is not a number."""
    text = "[[variants]]\nname = 'good'\n[[variants]]\nname = 'bad'\nagainst = 'good'\n"
    text += "lr = 1e18\nclip = 1e30\nnorm = 'none'\nwarmup = 0\nsteps = 40"
    result = run_sweep(read_sweep(written(tmp_path, text)), tmp_path / "out", Here)
    assert [row.label for row in result.rows] == ["good"]
    assert {(f.label, f.seed) for f in result.failed} == {("bad", 0), ("bad", 1)}
    assert all("batch seed" in failure.error for failure in result.failed)


def test_an_error_that_is_a_bug_is_reported_too(tmp_path, monkeypatch):
    def broken(config, folder):
        if config.seed == 1:
            raise ZeroDivisionError("by zero")
        return fake(config).to_json()

    monkeypatch.setattr(sweep_module, "run_one", broken)
    result = run_sweep(read_sweep(written(tmp_path, "")), tmp_path / "out", Here)
    assert [(f.seed, f.error) for f in result.failed] == [(1, "ZeroDivisionError: by zero")]
    assert len(result.runs) == 1


def test_results_that_come_from_another_machine_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_module, "run_one", lambda config, folder: fake(config).to_json())
    plan = read_sweep(written(tmp_path, ""))
    run_sweep(plan, tmp_path / "out", Here)
    assert run_sweep(plan, tmp_path / "out", Here).n_reused == 2


class Fragile(Here):
    """A pool whose process dies at the runs of seed 1, and takes all after it along."""

    def __init__(self):
        self.broken = False

    def submit(self, function, /, config, folder):
        self.broken = self.broken or config.seed == 1
        if not self.broken:
            return super().submit(function, config, folder)
        future = Future()
        future.set_exception(BrokenExecutor("a process in the pool was terminated"))
        return future


def test_a_process_that_dies_costs_its_own_run_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_module, "run_one", lambda config, folder: fake(config).to_json())
    file = written(tmp_path, "")
    file.write_text(file.read_text().replace("seeds = 2", "seeds = 4"))
    result = run_sweep(read_sweep(file), tmp_path / "out", Fragile)
    assert [run.seed for run in result.runs] == [0, 2, 3]
    assert [(f.seed, f.error.split(";")[0]) for f in result.failed] == [
        (1, "its process died twice")
    ]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        run_sweep(read_sweep(written(tmp_path, "")), tmp_path / "file" / "out", Here)


def test_a_sweep_killed_at_random_moments_ends_with_the_same_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "STATE_EVERY", 0.0)
    text = "[grid]\nposition = ['none', 'learned']\n[baseline]\nposition = 'none'"
    plan = read_sweep(written(tmp_path, text), {"steps": 30, "warmup": 3})
    began = time.perf_counter()
    whole = run_sweep(plan, tmp_path / "whole", Here)
    seconds, moments = time.perf_counter() - began, random.Random(5)
    for _ in range(5):
        process = FORK.Process(target=run_sweep, args=(plan, tmp_path / "cut", Here))
        process.start()
        process.join(moments.uniform(0, seconds / 2))
        process.kill()
        process.join()
    again = run_sweep(plan, tmp_path / "cut", Here)
    assert again.failed == ()
    assert [row.loss for row in again.rows] == [row.loss for row in whole.rows]
    assert again.rows[1].difference.loss == whole.rows[1].difference.loss


# --- Dask ------------------------------------------------------------------------------------


def dies_once(config, folder):
    """Kill the worker at the first try of the run with seed 1; a result afterwards."""
    marker = folder / "died"
    if config.seed == 1 and not marker.exists():
        marker.write_text("")
        os._exit(9)  # as kill -9: no goodbye to the scheduler
    return fake(config).to_json()


def test_a_worker_of_dask_that_is_killed_costs_no_run(tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed", reason="Dask is an optional extra")
    monkeypatch.setattr(sweep_module, "run_one", dies_once)
    plan = read_sweep(written(tmp_path, "[grid]\nposition = ['none', 'learned']"))
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        result = run_sweep(plan, tmp_path / "out", client.get_executor)
    assert (tmp_path / "out" / "died").exists()
    assert result.failed == ()
    assert len(result.runs) == 4
    assert len({run_hash(run.config) for run in result.runs}) == 4  # nothing twice
    assert [row.loss.n for row in result.rows] == [2, 2]


# --- the result ------------------------------------------------------------------------------


def test_a_sweep_is_saved_and_loaded_whole(tmp_path):
    plan = read_sweep(
        written(
            tmp_path,
            "measure = true\n[grid]\nresidual = ['all', [0]]\n[baseline]\nresidual = 'all'",
        )
    )
    result = run_sweep(plan, tmp_path / "out", Here)
    again = SweepResult.load(result.save(tmp_path / "sweep.json"))
    assert again == result
    data = json.loads((tmp_path / "sweep.json").read_text())
    assert [row["label"] for row in data["summary"]] == ["all", "residual=[0]"]
    with pytest.raises(ResultError, match="expected 'sweep'"):
        SweepResult.from_json({**data, "kind": "scan"})
    del data["summary"][0]["loss"]["mean"]
    with pytest.raises(ResultError, match=r"rows\[0\].loss.mean is missing"):
        SweepResult.from_json(data)


def compared(losses, baseline=(1.0, 1.1, 1.2)):
    plain = [fake(run_config({"seed": s}), loss=loss) for s, loss in enumerate(baseline)]
    other = [fake(run_config({"seed": s, "width": 32}), loss=loss) for s, loss in enumerate(losses)]
    rows = (
        summary_row("plain", plain),
        summary_row("narrow", other, baseline=("plain", plain)),
    )
    return SweepResult(rows=rows, runs=(*plain, *other))


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ((0.90, 1.00, 1.101), "1 have a lower loss, 0 a higher one, and 0 show no difference"),
        ((1.10, 1.20, 1.301), "0 have a lower loss, 1 a higher one, and 0 show no difference"),
        ((1.00, 1.00, 1.30), "0 have a lower loss, 0 a higher one, and 1 show no difference"),
    ],
)
def test_a_sweep_says_in_words_what_the_intervals_show(losses, words):
    result = compared(losses)
    assert "2 settings, 6 runs." in result.summary()
    assert words in result.summary()
    assert len(repr(result).splitlines()) <= 3


def test_a_sweep_has_a_row_a_setting_and_a_figure(tmp_path):
    result = compared((0.9, 1.0, 1.101))
    table = result.to_pandas()
    assert list(table["setting"]) == ["plain", "narrow"]
    assert table["loss_difference"][1] == pytest.approx(-0.0996667, abs=1e-6)
    assert table["loss"][0] == pytest.approx(1.1)
    assert "narrow" in result._repr_html_()
    pytest.importorskip("plotly", reason="an optional extra")
    (points,) = result.plot().data
    assert dict(zip(points.y, points.x, strict=True))["plain"] == pytest.approx(1.1)
