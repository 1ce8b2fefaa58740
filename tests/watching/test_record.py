"""The record survives a kill, checkpoints read as the live run did, and the page shows it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
import transformers
from typer.testing import CliRunner

import tiny_models
from orbitlens.cli.app import app
from orbitlens.errors import InputError, ResultError
from orbitlens.reporting.watch_page import page_of_run
from orbitlens.watching.api import Watch
from orbitlens.watching.looking import watched
from orbitlens.watching.record import read_record
from orbitlens.watching.watched_run import WatchedRun

SIZES = {**tiny_models.GPT2, "bos_token_id": 0, "eos_token_id": 0}


def gpt2():
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES)).train()


def ids_at(step):
    return torch.randint(0, 40, (3, 12), generator=torch.Generator().manual_seed(step))


@pytest.fixture(scope="module")
def frozen_run(tmp_path_factory):
    """Return the folder of a run whose layer 1 freezes at step 3, with a checkpoint a step."""
    folder, module = tmp_path_factory.mktemp("run"), gpt2()
    watch = Watch(every=1, tokens_every=1, path=folder)
    for step in range(6):
        if step == 3:
            with torch.no_grad():
                module.transformer.h[1].attn.c_attn.weight[:, :24] *= 1e8
        watch(module, step, ids_at(step), 4.0 - 0.1 * step)
        module.save_pretrained(folder / f"checkpoint-{step}")
    return folder


def test_a_killed_process_leaves_whole_lines_and_a_resumed_run_goes_on_in_them(tmp_path):
    script = (
        "import sys, transformers, torch; from orbitlens import Watch\n"
        f"m = transformers.GPT2LMHeadModel(transformers.GPT2Config(**{SIZES!r}))\n"
        "w = Watch(every=1, path=sys.argv[1])\n"
        "for step in range(10**6):\n    w(m, step); print(step, flush=True)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ
    ) as worker:
        for _ in range(5):
            worker.stdout.readline()
        os.kill(worker.pid, signal.SIGKILL)
    file = tmp_path / "watch.jsonl"
    before = len(read_record(file)[1])
    assert before >= 5
    with file.open("ab") as stream:
        stream.write(b'{"step": 99, "lo')  # what a kill in the middle of a line would leave
    assert len(read_record(file)[1]) == before
    Watch(every=1, path=tmp_path)(gpt2(), 2)  # resumed from a state of step 2
    _, readings = read_record(file)
    assert [r.step for r in readings] == [0, 1, 2]


def test_a_record_that_is_damaged_or_something_else_is_refused(tmp_path):
    file = tmp_path / "watch.jsonl"
    for content, words in (
        ("", "empty"),
        ('{"a": 1}\n', "not the record"),
        ("[1]\n", "not a reading"),
        ("nonsense\n", "damaged"),
    ):
        file.write_text(content)
        with pytest.raises(ResultError, match=words):
            read_record(file)


def _without(names):
    def change(header, reading):
        for name in names[:-1]:
            reading = reading[name]
        del reading[names[-1]]

    return change


def _with(value, *names):
    def change(header, reading):
        data = {"header": header, "reading": reading}
        for name in names[:-1]:
            data = data[name]
        data[names[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_with([], "header", "layers"), "expected 1 to 1024 layers"),
        (_with(0, "header", "layers", 0, "n_heads"), "heads"),
        (_with(10**9, "header", "layers", 0, "n_heads"), "heads"),
        (_with(10**400, "reading", "step"), "expected a whole number"),
        (_with(2**60, "reading", "step"), "expected a step"),
        (_without(["heads", "freezing"]), "heads lacks freezing"),
        (_without(["growth", "freezing"]), "growth lacks freezing"),
        (_with([], "reading", "heads", "entropy_floor"), "entropy_floor"),
        (_with([0.5], "reading", "heads", "freezing", 0), "freezing"),
        (_with([0.5], "reading", "tokens", "cosine"), "tokens.cosine"),
        (_with([[]], "reading", "tokens", "sharpness"), "tokens.sharpness"),
        (_with(7, "reading", "alarms", 0, "layer"), "head that is not there"),
        (_with([-1], "reading", "broken"), "layer is named"),
    ],
)
def test_readings_that_do_not_fit_their_header_are_refused(frozen_run, tmp_path, change, says):
    lines = [json.loads(line) for line in (frozen_run / "watch.jsonl").read_text().splitlines()]
    change(lines[0], lines[-1])
    (tmp_path / "watch.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ResultError, match=says):
        watched(tmp_path)


def test_infinite_readings_are_shown(frozen_run, tmp_path):
    lines = [json.loads(line) for line in (frozen_run / "watch.jsonl").read_text().splitlines()]
    lines[-1]["heads"]["freezing"][0][0] = "Infinity"
    (tmp_path / "watch.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = CliRunner().invoke(app, ["watch", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "█" in shown.output


def test_a_long_record_is_read_in_time_that_grows_with_its_length(frozen_run, tmp_path):
    header, reading = (frozen_run / "watch.jsonl").read_text().splitlines()[:2]
    small = {**json.loads(reading), "tokens": None, "heads": {}, "growth": {}}

    def seconds(n):
        lines = [header, *(json.dumps({**small, "step": step}) for step in range(n))]
        (tmp_path / "watch.jsonl").write_text("".join(line + "\n" for line in lines))
        started = time.process_time()
        assert len(read_record(tmp_path / "watch.jsonl")[1]) == n
        return time.process_time() - started

    assert seconds(16_000) < 12 * min(seconds(2000), seconds(2000))  # 64 if each looks at all


def test_checkpoints_after_the_fact_read_as_the_live_run_did(frozen_run, tmp_path):
    for place in frozen_run.glob("checkpoint-*"):
        shutil.copytree(place, tmp_path / place.name)
    live, later = watched(frozen_run), watched(tmp_path, ids_at(0)[:, :12].tolist())
    assert [r.step for r in later.readings] == [0, 1, 2, 3, 4, 5]
    for a, b in zip(live.readings, later.readings, strict=True):
        for one, other in zip(a.heads["top_q"], b.heads["top_q"], strict=True):
            assert other == pytest.approx(one, rel=1e-5)
    assert later.readings[0].tokens is not None
    assert {(a.layer, a.kind.value) for a in later.last.alarms} == {(1, "freezing")}
    weights_only = watched(tmp_path)
    assert weights_only.readings[0].tokens is None


def test_a_folder_without_anything_to_watch_says_what_was_expected(tmp_path, frozen_run):
    with pytest.raises(InputError, match="neither a record"):
        watched(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        watched(tmp_path / "nowhere")
    (tmp_path / "a").mkdir()
    shutil.copy(frozen_run / "watch.jsonl", tmp_path / "a" / "watch.jsonl")
    with pytest.raises(InputError, match="Choose one: a"):
        watched(tmp_path)


def test_a_run_can_be_saved_tabulated_and_summed_up(frozen_run, tmp_path):
    run = watched(frozen_run)
    assert WatchedRun.load(run.save(tmp_path / "run.json")).summary() == run.summary()
    assert "Attention is freezing: first at step 3 (layer 1 head 0" in run.summary()
    table = run.to_pandas()
    assert len(table) == 6 * 3 * 4 and {"step", "layer", "head", "freezing"} <= set(table.columns)
    assert len(run.episodes()) == 4 and all(one.is_on for one in run.episodes())


def test_the_page_escapes_names_and_follows_only_when_asked(frozen_run):
    run = watched(frozen_run)
    from dataclasses import replace

    evil = replace(run, header=replace(run.header, model="<script>alert(1)</script>"))
    page = page_of_run(evil)
    assert "<script>alert" not in page and "&lt;script&gt;" in page
    assert 'http-equiv="refresh"' not in page
    assert 'http-equiv="refresh" content="5"' in page_of_run(run, reload_after=5)


def test_the_command_shows_a_run_and_writes_page_and_json(frozen_run, tmp_path):
    page, data = tmp_path / "page.html", tmp_path / "run.json"
    done = CliRunner().invoke(app, ["watch", str(frozen_run), "-o", str(page), "--json", str(data)])
    assert done.exit_code == 0, done.output
    assert "Attention is freezing" in done.output and "layer 1" in done.output
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert json.loads(data.read_text())["kind"] == "watch"
