"""Processes that do the work of others: they end with the one that started them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orbitlens.running.workers import local_workers

PARENT = """
import os, time
from orbitlens.running.workers import local_workers

def tell(folder):
    open(os.path.join(folder, str(os.getpid())), "w").close()
    time.sleep(600)

if __name__ == "__main__":
    import sys
    pool = local_workers(2)
    for _ in range(2):
        pool.submit(tell, sys.argv[1])
    time.sleep(600)
"""


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are read from /proc")
def test_workers_end_when_their_parent_is_killed(tmp_path):
    script, folder = tmp_path / "parent.py", tmp_path / "pids"
    script.write_text(PARENT)
    folder.mkdir()
    parent = subprocess.Popen([sys.executable, str(script), str(folder)])
    try:
        assert wait_until(lambda: len(list(folder.iterdir())) == 2)
        pids = [int(file.name) for file in folder.iterdir()]
        assert all(is_running(pid) for pid in pids)
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    assert wait_until(lambda: not any(is_running(pid) for pid in pids))


def test_workers_have_one_thread_each():
    import torch

    with local_workers(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 1
