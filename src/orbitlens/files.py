"""Files and folders that are whole whenever they exist, and files that are read within bounds.

Enters: content and a place. Leaves: a file or a folder. It is written beside its place under the
name of a draft, then renamed. Modes follow the umask. `write_whole` and `write_folder` leave errors
of the disk to their caller, who can tell with `remedy` what to do; `write_result` and
`writable_folder` say it themselves. What is read is a regular file of a size that was agreed on:
`open_regular` does not wait for a pipe, and `read_bounded` reads no more than it was told.
"""

import errno
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from orbitlens.errors import InputError

fcntl: Any  # None where there are no such locks: there the age of a draft says if it is abandoned
try:
    import fcntl as _unix

    fcntl = _unix
except ImportError:
    fcntl = None

DRAFT = ".draft-"
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
STALE = 3600.0  # seconds after which a draft that cannot be held is taken for abandoned


@contextmanager
def open_regular(file: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading; a pipe or a device is refused and not waited for.

    Raises:
        OSError: it is something else, or cannot be opened.
    """
    handle = os.open(file, READ)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "this is a folder, a pipe or a device, not a file")
        stream = os.fdopen(handle, "rb")
    except OSError:
        os.close(handle)
        raise
    with stream:
        yield stream


def read_bounded(file: Path, largest: int) -> bytes:
    """Return the content of a regular file of at most `largest` bytes.

    Raises:
        OSError: it is larger, is something else, or cannot be read.
    """
    with open_regular(file) as stream:
        data = stream.read(largest + 1)
    if len(data) > largest:
        raise OSError(errno.EFBIG, f"this has more than {largest} bytes, too many for such a file")
    return data


def read_json(file: Path, largest: int, *, most_containers: int | None = None) -> Any:  # noqa: ANN401
    """Return the JSON data of a regular file of at most `largest` bytes.

    Args:
        file: where it lies.
        largest: bytes it may have.
        most_containers: objects and lists it may hold; these take most memory, up to fifty bytes
            for each of their own.

    Raises:
        OSError: it is larger, is something else, or cannot be read.
        ValueError: it is not JSON, or holds more than it may.
    """
    return json_of(read_bounded(file, largest), most_containers=most_containers)


def json_of(data: bytes, *, most_containers: int | None = None) -> Any:  # noqa: ANN401
    """Return the JSON data that bytes stand for, of so many objects and lists at most.

    Raises:
        ValueError: it is not JSON, or holds more than it may.
    """
    if most_containers is not None and data.count(b"{") + data.count(b"[") > most_containers:
        raise ValueError(f"it holds more than {most_containers} objects and lists")
    try:
        return json.loads(data.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("its brackets are nested too deeply") from error


def write_whole(file: Path, data: bytes, *, onto_disk: bool = False) -> None:
    """Write a file beside its place, then rename it: whole or not at all.

    `onto_disk` waits until the disk has it, so that it survives the machine and not only the
    process. Drafts of the same file that killed processes left are removed.
    """
    with _draft_of(file) as draft:
        draft_handle = os.open(draft, os.O_WRONLY | getattr(os, "O_BINARY", 0))
        with os.fdopen(draft_handle, "wb") as stream:
            stream.write(data)
            if onto_disk:
                stream.flush()
                os.fsync(stream.fileno())
        draft.replace(file)
    if onto_disk:
        sync_folder(file.parent)
    _drop_abandoned(file)


def write_folder(folder: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a folder; it gets its name when it is whole and the disk has it."""
    with _draft_of(folder, is_folder=True) as draft:
        write(draft)
        mode = draft.stat().st_mode & 0o666  # the folder got its own by the umask
        for path in (draft, *draft.rglob("*")):
            if path.is_dir():
                sync_folder(path)
            else:
                path.chmod(mode)  # some libraries let nobody else read what they write
                _sync_file(path)
        shutil.rmtree(folder, ignore_errors=True)
        draft.replace(folder)
    sync_folder(folder.parent)


def write_result(file: Path, data: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        InputError: it cannot be written; what was there before is untouched.
    """
    try:
        write_whole(file, data)
    except OSError as error:
        raise InputError(f"{file}: cannot be written ({error}). {remedy(error)}") from error


def writable_folder(folder: Path) -> Path:
    """Make a folder and see that it can be written to, before minutes of work.

    Raises:
        InputError: it cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _draft_of(folder / "probe"):
            pass
        _drop_abandoned(folder / "probe")
    except OSError as error:
        raise InputError(f"{folder}: cannot be written to ({error}). {remedy(error)}") from error
    return folder


def remedy(error: Exception) -> str:
    """Return what to do about an error of the disk; safetensors gives its reason in words alone."""
    number = error.errno if isinstance(error, OSError) else None
    if number in FULL or "No space left" in str(error):
        return "Make room, and run again."
    if number in FORBIDDEN or "Permission denied" in str(error):
        return "Choose a folder that this user may write to, or change its permissions."
    return "Choose another place, or run again once that is mended."


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in a folder, where the system can be asked to."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def drop_drafts(folder: Path) -> None:
    """Remove the drafts in a folder that no other process writes to."""
    for draft in folder.glob(f"{DRAFT}*"):
        _drop(draft)


@contextmanager
def _draft_of(place: Path, *, is_folder: bool = False) -> Iterator[Path]:
    """Yield a new draft beside a place, held by a lock for as long as this process has it.

    What is still there afterwards is removed.
    """
    while True:
        # Names have 255 bytes at most.
        draft = place.with_name(f"{DRAFT}{place.name[:40]}-{secrets.token_hex(4)}")
        if is_folder:
            draft.mkdir()
        else:
            os.close(os.open(draft, NEW, 0o666))  # less what the umask takes away
        held = _held(draft, wait=True)
        if held is None or draft.exists():
            break
        os.close(held)  # taken for abandoned before it was held; another is made
    try:
        yield draft
    finally:
        _drop(draft)
        if held is not None:
            os.close(held)


def _held(draft: Path, *, wait: bool) -> int | None:
    """Return a handle that holds a draft until it is closed; None where nothing can be held.

    Raises:
        BlockingIOError: another process holds it, and this one was not to wait.
    """
    if fcntl is None:
        return None
    handle = os.open(draft, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(handle)
        raise
    except OSError:  # some network file systems have no locks; then the age of drafts decides
        os.close(handle)
        return None
    return handle


def _drop_abandoned(file: Path) -> None:
    """Remove drafts of the same file whose processes were killed: nobody holds them."""
    for draft in file.parent.glob(f"{DRAFT}*"):
        if draft.name.removeprefix(DRAFT).rpartition("-")[0] != file.name[:40]:
            continue
        try:
            held = _held(draft, wait=False)
            if held is not None or time.time() - draft.stat().st_mtime > STALE:
                _drop(draft)
            if held is not None:
                os.close(held)
        except OSError:  # it is being written, another process was faster, or it is another user's
            continue


def _drop(draft: Path) -> None:
    if draft.is_dir():
        shutil.rmtree(draft, ignore_errors=True)
    else:
        draft.unlink(missing_ok=True)


def _sync_file(file: Path) -> None:
    with file.open("rb+") as stream:
        os.fsync(stream.fileno())
