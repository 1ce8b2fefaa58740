"""One process at a time in a run's folder: a second is refused, a dead one holds nothing."""

import json
import multiprocessing
import os
import random
import signal
import stat
import subprocess
import sys
import time

import pytest

from orbitlens.errors import TrainingError
from orbitlens.lab import ownership, training
from orbitlens.lab.ownership import LOCK, owned, writing
from orbitlens.lab.run import run_config, run_hash
from orbitlens.lab.run_state import LOG, MODEL, RESULT, STATE
from orbitlens.lab.training import read_result, train

FORK = multiprocessing.get_context("fork")
TINY = {"digits": 1, "layers": 1, "heads": 2, "width": 8, "steps": 60, "batch": 8, "judged": 64}
HOLDS = """
import sys, time
from pathlib import Path
from orbitlens.lab.ownership import owned
with owned(Path(sys.argv[1])):
    print("mine", flush=True)
    time.sleep(60)
"""


def tiny(**changes):
    return run_config({"task": "addition", **TINY, "warmup": 4, **changes})


def content(folder, config):
    """What two runs of one config must agree on: weights and the log without its clock."""
    path = folder / run_hash(config)
    lines = [json.loads(line) for line in (path / LOG).read_text().splitlines()]
    log = [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
    return (path / MODEL / "model.safetensors").read_bytes(), log


@pytest.fixture
def holder(tmp_path):
    """Another process that owns `tmp_path / "run"`."""
    command = [sys.executable, "-c", HOLDS, str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "mine\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_second_process_is_refused_until_the_first_is_dead(tmp_path, monkeypatch, holder):
    monkeypatch.setattr(ownership, "PATIENCE", 0.1)
    folder = tmp_path / "run"
    with pytest.raises(TrainingError, match="another process is training this run"), owned(folder):
        pytest.fail("two owners")
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with owned(folder):
        pass


def test_the_refused_one_neither_writes_nor_deletes(tmp_path, monkeypatch):
    monkeypatch.setattr(ownership, "PATIENCE", 0.1)
    config = tiny()
    path = tmp_path / run_hash(config)
    with owned(path):
        (path / ".draft-of-the-first").write_bytes(b"half")
        (path / LOG).write_text('{"step": 1}\n')
        before = {file.name: file.read_bytes() for file in path.iterdir()}
        with pytest.raises(TrainingError, match="its result is then read"):
            train(config, tmp_path)
        assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_what_the_first_ended_meanwhile_is_read(tmp_path, monkeypatch):
    config, calls = tiny(steps=3), []
    first = train(config, tmp_path)
    real = training.read_result
    monkeypatch.setattr(  # the result appears between the first look and the lock
        training,
        "read_result",
        lambda path: calls.append(path) or (real(path) if calls[1:] else None),
    )
    monkeypatch.setattr(training._Run, "go", lambda *_: pytest.fail("it was trained again"))
    assert train(config, tmp_path) == first


def test_two_writers_at_once_leave_what_one_does(tmp_path):
    config = tiny()
    train(config, tmp_path / "alone")
    outcomes = FORK.Queue()

    def job():
        try:
            train(config, tmp_path / "shared")
            outcomes.put("done")
        except TrainingError as error:
            outcomes.put(str(error))

    processes = [FORK.Process(target=job) for _ in range(2)]
    for each in processes:
        each.start()
    told = [outcomes.get(timeout=120) for _ in processes]
    for each in processes:
        each.join()
    assert "done" in told
    assert all(each == "done" or "another process" in each for each in told)
    assert content(tmp_path / "shared", config) == content(tmp_path / "alone", config)


def test_killed_while_another_tries_a_run_still_ends_with_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "STATE_EVERY", 0.0)
    monkeypatch.setattr(ownership, "PATIENCE", 0.05)
    config, moments = tiny(), random.Random(3)
    began = time.perf_counter()
    train(config, tmp_path / "whole")
    whole = time.perf_counter() - began
    for _ in range(6):
        both = [FORK.Process(target=train, args=(config, tmp_path / "cut")) for _ in range(2)]
        for each in both:
            each.start()
        time.sleep(moments.uniform(0, whole / 4))
        for each in both:
            os.kill(each.pid, signal.SIGKILL)
            each.join()
    train(config, tmp_path / "cut")
    assert content(tmp_path / "cut", config) == content(tmp_path / "whole", config)
    left = {path.name for path in (tmp_path / "cut" / run_hash(config)).iterdir()}
    assert left == {"config.json", LOG, MODEL, RESULT, LOCK}


@pytest.mark.parametrize(
    ("error", "advice", "other"),
    [
        (OSError(28, "No space left on device"), "Make room", "permissions"),
        (OSError(122, "Disk quota exceeded"), "Make room", "permissions"),
        (PermissionError(13, "Permission denied"), "change its permissions", "Make room"),
        (OSError(30, "Read-only file system"), "change its permissions", "Make room"),
        (OSError(5, "Input/output error"), "run again once that is mended", "Make room"),
    ],
)
def test_an_error_of_the_disk_is_answered_by_what_helps(tmp_path, error, advice, other):
    with pytest.raises(TrainingError) as caught, writing(tmp_path):
        raise error
    assert advice in str(caught.value)
    assert other not in str(caught.value)


def test_a_state_that_outlived_its_result_is_removed_by_the_next_look(tmp_path):
    config = tiny(steps=3)
    result = train(config, tmp_path)
    path = tmp_path / run_hash(config)
    (path / STATE).write_bytes(b"of before the kill")
    assert train(config, tmp_path) == result
    assert not (path / STATE).exists()


@pytest.mark.skipif(os.name != "posix", reason="modes are a matter of Unix")
def test_all_files_of_a_run_keep_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        config = tiny(steps=3)
        train(config, tmp_path)
    finally:
        os.umask(before)
    for path in (tmp_path / run_hash(config)).rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o750 if path.is_dir() else 0o640), path


@pytest.mark.parametrize(
    "text", ["{}", "[]", "3", "null", "nonsense", '{"config": []}', "[" * 9999]
)
def test_a_result_that_is_none_is_refused_with_what_to_do(tmp_path, text):
    (tmp_path / RESULT).write_text(text)
    with pytest.raises(TrainingError, match="Delete it to train again"):
        read_result(tmp_path)


def test_a_result_with_a_word_for_a_number_is_refused(tmp_path):
    config = tiny(steps=3)
    train(config, tmp_path)
    file = tmp_path / run_hash(config) / RESULT
    file.write_text(json.dumps(json.loads(file.read_text()) | {"loss": "low"}))
    with pytest.raises(TrainingError, match="loss: expected a number"):
        train(config, tmp_path)


@pytest.mark.parametrize(
    ("tensors", "header"),
    [({}, None), ({}, "{}"), ({}, "[]"), ({"losses": [0.0]}, '{"step": "x", "seconds": 0}')],
)
def test_a_state_of_something_else_is_refused_with_what_to_do(tmp_path, tensors, header):
    import torch
    from safetensors.torch import save_file

    config = tiny()
    path = tmp_path / run_hash(config)
    path.mkdir()
    named = {name: torch.tensor(value) for name, value in tensors.items()}
    save_file(named, path / STATE, None if header is None else {"state": header})
    with pytest.raises(TrainingError, match="Delete it to train from the beginning"):
        train(config, tmp_path)


@pytest.mark.parametrize("lost", ["exp_avg", "exp_avg_sq", "step"])
def test_a_state_that_lacks_a_moment_is_refused(tmp_path, monkeypatch, lost):
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    config = tiny(steps=3)
    file = tmp_path / run_hash(config) / STATE

    def stop(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(training, "STATE_EVERY", 0.0)
        patch.setattr(training, "write_folder", stop)
        with pytest.raises(TrainingError, match="the last state written is whole"):
            train(config, tmp_path)
    with safe_open(file, framework="pt") as stored:
        header = stored.metadata()
    tensors = load_file(file)
    save_file({k: v for k, v in tensors.items() if k != f"moments.0.{lost}"}, file, header)
    with pytest.raises(TrainingError, match="state of parameter 0 is not whole"):
        train(config, tmp_path)


def test_a_state_of_another_model_is_refused(tmp_path, monkeypatch):
    wide, narrow = tiny(width=16), tiny()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(training, "STATE_EVERY", 0.0)
        patch.setattr(training, "write_folder", full)
        with pytest.raises(TrainingError, match="the last state written is whole"):
            train(wide, tmp_path)
    path = tmp_path / run_hash(narrow)
    path.mkdir()
    (tmp_path / run_hash(wide) / STATE).rename(path / STATE)
    with pytest.raises(TrainingError, match=r"(?s)cannot be read .*size mismatch"):
        train(narrow, tmp_path)
