"""Files are whole or absent, keep the umask, and drafts of killed processes go."""

import os
import stat
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from orbitlens import files
from orbitlens.errors import InputError
from orbitlens.files import (
    STALE,
    drop_drafts,
    read_bounded,
    read_json,
    writable_folder,
    write_folder,
    write_whole,
)

POSIX = pytest.mark.skipif(os.name != "posix", reason="modes are a matter of Unix")


@pytest.fixture
def umask():
    """Set the umask; the old one comes back."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@POSIX
@pytest.mark.parametrize(("mask", "file", "folder"), [(0o027, 0o640, 0o750), (0o002, 0o664, 0o775)])
def test_files_and_folders_keep_the_umask(tmp_path, umask, mask, file, folder):
    umask(mask)
    write_whole(tmp_path / "file", b"x")
    write_folder(tmp_path / "folder", lambda draft: (draft / "inside").write_bytes(b"y"))
    assert mode(tmp_path / "file") == file
    assert mode(tmp_path / "folder") == folder
    assert mode(tmp_path / "folder" / "inside") == file


def test_a_file_is_replaced_whole_and_no_draft_stays(tmp_path):
    file = tmp_path / "a.json"
    write_whole(file, b"one")
    write_whole(file, b"two", onto_disk=True)
    assert file.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [file]


def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    write_whole(file, b"one")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(file, b"two", onto_disk=True)
    assert file.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [file]


@POSIX
def test_onto_disk_means_the_name_too(tmp_path, monkeypatch):
    synced = []
    real = os.fsync
    monkeypatch.setattr(
        files.os, "fsync", lambda handle: (synced.append(os.fstat(handle).st_ino), real(handle))
    )
    write_whole(tmp_path / "a", b"x", onto_disk=True)
    assert synced == [(tmp_path / "a").stat().st_ino, tmp_path.stat().st_ino]
    synced.clear()
    write_folder(tmp_path / "f", lambda draft: (draft / "inside").write_bytes(b"y"))
    places = (tmp_path / "f", tmp_path / "f" / "inside", tmp_path)
    assert synced == [place.stat().st_ino for place in places]


@POSIX
@pytest.mark.parametrize("place", ["file", "folder"])
def test_the_next_write_removes_drafts_of_killed_processes_and_no_others(tmp_path, place):
    code = f"""
import sys, time
from pathlib import Path
from orbitlens.files import _draft_of
with _draft_of(Path(sys.argv[1]), is_folder={place == "folder"}):
    print("held", flush=True)
    time.sleep(60)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "a.json")]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout.readline() == "held\n"
        other = tmp_path / ".draft-b.json-02"
        other.write_bytes(b"half")
        write_whole(tmp_path / "a.json", b"whole")
        assert len(list(tmp_path.glob(".draft-a.json-*"))) == 1  # its process lives
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    write_whole(tmp_path / "a.json", b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [other.name, "a.json"]
    drop_drafts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_where_nothing_can_be_held_the_age_of_a_draft_decides(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "fcntl", None)
    old, fresh = (tmp_path / name for name in (".draft-a.json-00", ".draft-a.json-01"))
    for draft in (old, fresh):
        draft.write_bytes(b"half")
    past = time.time() - STALE - 1
    os.utime(old, (past, past))
    write_whole(tmp_path / "a.json", b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [fresh.name, "a.json"]


@POSIX
def test_a_draft_taken_for_abandoned_before_it_is_held_is_made_anew(tmp_path, monkeypatch):
    real, taken = files._held, []

    def held(draft, *, wait):
        if wait and not taken:  # another process was faster
            taken.append(draft)
            draft.unlink()
            return os.open(tmp_path, os.O_RDONLY)
        return real(draft, wait=wait)

    monkeypatch.setattr(files, "_held", held)
    write_whole(tmp_path / "a.json", b"whole")
    assert taken
    assert (tmp_path / "a.json").read_bytes() == b"whole"


def test_a_folder_that_can_be_written_stays_empty(tmp_path):
    assert list(writable_folder(tmp_path / "new").iterdir()) == []


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_says_so(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="change its permissions"):
        writable_folder(tmp_path)


# --- reading ---------------------------------------------------------------------------------


@POSIX
def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    started = time.perf_counter()
    for read in (lambda file: read_bounded(file, 10), lambda file: read_json(file, 10)):
        with pytest.raises(OSError, match="a pipe or a device, not a file"):
            read(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a file"):
        read_bounded(Path("/dev/zero"), 10)
    with pytest.raises(OSError, match="not a file"):
        read_bounded(tmp_path, 10)
    assert time.perf_counter() - started < 5


def test_no_more_than_agreed_is_read(tmp_path):
    file = tmp_path / "a.json"
    file.write_text("[1, 2]")
    assert read_json(file, 6) == [1, 2]
    with pytest.raises(OSError, match="more than 5 bytes"):
        read_json(file, 5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("[[],[],[]]", "more than 3 objects and lists"),
        ("nonsense", "Expecting value"),
    ],
)
def test_json_that_is_none_is_a_value_error(tmp_path, text, says):
    file = tmp_path / "a.json"
    file.write_text(text)
    most = 3 if "objects" in says else None
    with pytest.raises(ValueError, match=says):
        read_json(file, 1_000_000, most_containers=most)


def test_names_as_long_as_a_disk_takes_can_be_written(tmp_path):
    file = tmp_path / ("n" * 255)
    write_whole(file, b"x")
    write_whole(tmp_path / ("é" * 127), b"x")
    assert file.read_bytes() == b"x"


# --- memory ----------------------------------------------------------------------------------

BYTES_EACH = 50  # of memory for each byte of a JSON file, as docs/promises.md says
EMOJI = '"\U0001f600"'  # one makes four bytes of every character of the text
HEAVY = {
    "empty lists": "[]",
    "lists of lists": "[[]]",
    "deep lists": "[" * 200 + "]" * 200,
    "objects": "{}",
    "objects of one entry": '{"":1}',
    "deep objects": '{"":' * 100 + "1" + "}" * 100,
    "numbers": "1.5",
    "strings": '"ab"',
}


def memory_of(file):
    """Return the largest number of bytes that reading a JSON file takes."""
    tracemalloc.start()
    try:
        read_json(file, file.stat().st_size)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_json_takes_at_most_fifty_bytes_of_memory_for_each_of_its_own(tmp_path):
    taken = {}
    for name, piece in HEAVY.items():
        file = tmp_path / "heavy.json"
        text = ",".join([EMOJI, *[piece] * (200_000 // len(piece))])
        file.write_text(f"[{text}]", encoding="utf-8")
        taken[name] = memory_of(file) / file.stat().st_size
    assert max(taken.values()) <= BYTES_EACH
    assert max(taken, key=taken.__getitem__) == "deep lists"
    assert taken["deep lists"] > 40  # the bound is not idle
