"""Freed memory stays with a command: fewer pages are asked for, and the environment has its say."""

import subprocess
import sys

import pytest

PAGES = """
import resource, sys
import numpy as np
from orbitlens.cli.freed_memory import keep_freed_memory
print(keep_freed_memory() if sys.argv[1] == "keep" else None)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    tables = [np.ones(2_000_000) for _ in range(6)]  # 16 MB each, as activations of a batch
    del tables
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run(how, **environment):
    """Return what was said, and how many pages the system had to give."""
    import os

    known = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", PAGES, how],
        capture_output=True,
        text=True,
        check=True,
        env=known | environment,
    )
    said, pages = done.stdout.split()
    return said, int(pages)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's own setting")
def test_pages_are_asked_for_once_where_freed_memory_is_kept():
    said, pages = run("keep")
    if said == "False":
        pytest.skip("this system's C library has no such setting")
    _, as_usual = run("as usual")
    assert pages < as_usual / 5


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's own setting")
def test_what_the_environment_says_of_memory_stays():
    assert run("keep", MALLOC_TRIM_THRESHOLD_="131072")[0] == "False"
