"""Processes that do the work of others: they end with the one that started them."""

import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from orbitlens.running.workers import local_workers, numpy_threads

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
FAULTS = """
import resource
import torch
from orbitlens.running.workers import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        states = [torch.ones(2_000_000) for _ in range(4)]  # 8 MB each, and freed again
        del states
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
without = faults()
keep_freed_memory()
faults()
print(without, faults())
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


def test_numpy_keeps_to_the_threads_it_is_given_and_gets_them_back():
    def threads():
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        before = threads()
        with numpy_threads(1):
            assert threads() == {1}
        assert threads() == before


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the habit is one of glibc")
def test_memory_that_a_layer_frees_is_there_for_the_next():
    command = [sys.executable, "-c", FAULTS]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    without, with_it = map(int, printed.split())
    assert without > 10_000
    assert with_it < without / 20
