"""Results that are kept: whole or not there, bounded, and never the wrong one."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from orbitlens.results.base import Result
from orbitlens.results.shelf import FOLDER, SUFFIX, Shelf, user_shelf


@dataclass(frozen=True, kw_only=True, repr=False)
class Kept(Result):
    KIND: ClassVar[str] = "kept"

    words: str
    number: float

    def summary(self):
        return self.words

    def to_pandas(self):
        raise NotImplementedError

    def _tables(self):
        return ()

    def _figure(self, go):
        raise NotImplementedError


RESULT = Kept(words="where tokens go", number=0.1 + 0.2)


def test_what_is_kept_comes_back_the_same(tmp_path):
    shelf = Shelf(tmp_path / "new" / "folder")
    assert shelf.find("a", Kept) is None
    assert shelf.keep("a", RESULT)
    assert shelf.find("a", Kept) == RESULT
    assert shelf.find("b", Kept) is None


@pytest.mark.parametrize("place", [0, 70, -1])
def test_a_damaged_byte_anywhere_counts_as_not_there(tmp_path, place):
    shelf = Shelf(tmp_path)
    shelf.keep("a", RESULT)
    data = bytearray(shelf.file("a").read_bytes())
    data[place] ^= 1
    shelf.file("a").write_bytes(data)
    assert shelf.find("a", Kept) is None
    shelf.keep("a", RESULT)
    assert shelf.find("a", Kept) == RESULT


@pytest.mark.parametrize("size", [0, 30, 64, 65, 90])
def test_a_file_cut_short_counts_as_not_there(tmp_path, size):
    shelf = Shelf(tmp_path)
    shelf.keep("a", RESULT)
    shelf.file("a").write_bytes(shelf.file("a").read_bytes()[:size])
    assert shelf.find("a", Kept) is None


def test_results_of_another_kind_count_as_not_there(tmp_path):
    @dataclass(frozen=True, kw_only=True, repr=False)
    class Other(Kept):
        KIND: ClassVar[str] = "other"

    shelf = Shelf(tmp_path)
    shelf.keep("a", RESULT)
    assert shelf.find("a", Other) is None


def test_the_one_unused_for_longest_goes_first(tmp_path):
    shelf = Shelf(tmp_path)
    for k, key in enumerate("abc"):
        shelf.keep(key, Kept(words="x" * 1000, number=0.0))
        os.utime(shelf.file(key), (k, k))
    assert shelf.find("a", Kept) is not None  # used now
    one = shelf.file("a").stat().st_size
    small = Shelf(tmp_path, most_bytes=2 * one + one // 2)
    small.make_room()
    assert [file.stem for file in small.files()] == ["c", "a"]


def test_a_result_too_large_for_the_shelf_is_not_kept(tmp_path):
    shelf = Shelf(tmp_path, most_bytes=2000)
    assert not shelf.keep("a", Kept(words="x" * 1000, number=0.0))
    assert shelf.files() == []


def test_a_folder_that_cannot_be_made_keeps_nothing_and_fails_nobody(tmp_path):
    (tmp_path / "file").write_text("in the way")
    shelf = Shelf(tmp_path / "file" / "results")
    assert not shelf.keep("a", RESULT)
    assert shelf.find("a", Kept) is None
    assert (shelf.files(), shelf.clear()) == ([], 0)


def test_clearing_removes_results_and_nothing_else(tmp_path):
    shelf = Shelf(tmp_path)
    shelf.keep("a", RESULT)
    (tmp_path / "mine.txt").write_text("stays")
    assert shelf.clear() == 1
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_the_platform_or_a_variable_says_where(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, "")
    assert user_shelf() is None
    monkeypatch.setenv(FOLDER, str(tmp_path))
    assert user_shelf().folder == tmp_path
    monkeypatch.delenv(FOLDER)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert user_shelf().folder == tmp_path / "caches" / "orbitlens" / "results"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_shelf().folder == tmp_path / ".cache" / "orbitlens" / "results"


WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from test_shelf import Kept, Shelf
from pathlib import Path
shelf = Shelf(Path(sys.argv[2]))
print("begun", flush=True)
while True:
    shelf.keep("a", Kept(words="x" * 300_000, number=1.0))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no kill -9 here")
def test_two_writers_killed_at_any_moment_leave_a_whole_result_or_none(tmp_path):
    command = [sys.executable, "-c", WRITER, str(Path(__file__).parent), str(tmp_path)]
    shelf, seen = Shelf(tmp_path), 0
    with ExitStack() as running:
        writers = [
            running.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            for _ in range(2)
        ]
        for writer in writers:
            assert writer.stdout.readline() == b"begun\n"
            running.callback(writer.kill)
        end = time.monotonic() + 60
        while seen < 20 and time.monotonic() < end:
            found = shelf.find("a", Kept)
            seen += found is not None
            assert found is None or found.words == "x" * 300_000
    assert seen == 20
    if shelf.file("a").exists():
        assert shelf.find("a", Kept) is not None
    shelf.keep("a", RESULT)
    assert shelf.find("a", Kept) == RESULT
    assert all(file.suffix == SUFFIX for file in tmp_path.iterdir())  # no drafts are left behind
