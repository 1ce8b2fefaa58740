"""Files are whole or absent, keep the umask, and drafts of killed processes go."""

import os
import stat
import time

import pytest

from orbitlens import files
from orbitlens.files import STALE, drop_drafts, write_folder, write_whole

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


def test_the_next_write_removes_drafts_that_are_hours_old_and_no_others(tmp_path):
    old, fresh, other = (
        tmp_path / name for name in (".draft-a.json-00", ".draft-a.json-01", ".draft-b.json-02")
    )
    for draft in (old, fresh, other):
        draft.write_bytes(b"half")
    past = time.time() - STALE - 1
    for draft in (old, other):
        os.utime(draft, (past, past))
    write_whole(tmp_path / "a.json", b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["a.json", fresh.name, other.name]  # another may be writing; another file's are its own
    )
    drop_drafts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_names_as_long_as_a_disk_takes_can_be_written(tmp_path):
    file = tmp_path / ("n" * 255)
    write_whole(file, b"x")
    write_whole(tmp_path / ("é" * 127), b"x")
    assert file.read_bytes() == b"x"
