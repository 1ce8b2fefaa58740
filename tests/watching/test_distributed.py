"""Several processes: the first one reads, sharded weights are gathered, all are told to stop."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orbitlens.watching.record import read_record

SCRIPT = Path(__file__).with_name("distributed_runs.py")


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distributed")
    command = [sys.executable, str(SCRIPT), str(folder)]
    workers = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for rank in (0, 1)
    ]
    try:
        said = [worker.communicate(timeout=600)[0].decode() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], said
    return folder, [json.loads((folder / f"seen{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_the_first_process_reads_and_losses_stay_the_same_bits(seen, kind):
    folder, (first, second) = seen
    assert first[kind]["same"] and second[kind]["same"]
    assert first[kind]["steps"] == [0, 1, 2, 3]
    assert second[kind]["steps"] == [None] * 4
    _, readings = read_record(folder / kind / "watch.jsonl")
    assert [reading.step for reading in readings] == [0, 1, 2, 3]


def test_sharded_weights_read_as_whole_ones_do(seen):
    _, (first, _) = seen
    whole, sharded = first["ddp"], first["fsdp"]
    for name in ("norms", "cosines"):
        assert flat(sharded[name]) == pytest.approx(flat(whole[name]), rel=1e-5)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_every_process_is_told_to_stop(seen, kind):
    _, (first, second) = seen
    assert first[kind]["stopped"] and second[kind]["stopped"]


def flat(rows):
    return [value for row in rows for value in (row if isinstance(row, list) else [row])]
