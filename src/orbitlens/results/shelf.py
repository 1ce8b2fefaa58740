"""Results kept in the user's cache folder, under names that say what they were made from.

Enters: a key and a result. Leaves: the same result again, or None. A file is its digest and the
JSON that `Result.save` writes. It is written beside its place and renamed, so that it is whole or
not there; one that was damaged since does not fit its digest, and counts as not there. Files that
were not used for longest go first when all together are too large.
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import TypeVar

from orbitlens.errors import ResultError
from orbitlens.files import drop_drafts, read_bounded, write_whole
from orbitlens.results.base import LARGEST_FILE, Result
from orbitlens.results.codec import dumps

R = TypeVar("R", bound=Result)
FOLDER = "ORBITLENS_CACHE"  # the variable that names another folder; empty: nothing is kept
MOST_BYTES = 256_000_000  # of all files together
SUFFIX = ".result"


class Shelf:
    """A folder of results; all its failures are as if a result were not there."""

    def __init__(self, folder: Path, *, most_bytes: int = MOST_BYTES) -> None:
        """Take the folder, which need not exist, and how large it may become."""
        self.folder, self.most_bytes = folder, most_bytes

    def file(self, key: str) -> Path:
        """Return where the result of a key lies."""
        return self.folder / f"{key}{SUFFIX}"

    def files(self) -> list[Path]:
        """Return the results that are kept, the one that was not used for longest first."""
        if not self.folder.is_dir():
            return []
        found = [(_used(file), file) for file in self.folder.glob(f"*{SUFFIX}")]
        return [file for _, file in sorted(found)]

    def find(self, key: str, kind: type[R]) -> R | None:
        """Return the result of a key; None if there is none, or it is damaged."""
        file = self.file(key)
        try:
            digest, _, data = read_bounded(file, LARGEST_FILE).partition(b"\n")
        except OSError:  # not there, or not to be read: it is made anew
            return None
        if digest.decode("ascii", "replace") != hashlib.sha256(data).hexdigest():
            return None
        try:
            found = kind.from_json(json.loads(data), name=str(file))
        except (ResultError, ValueError):  # written by a version whose results look otherwise
            return None
        _touch(file)
        return found

    def keep(self, key: str, result: Result) -> bool:
        """Keep a result, and say whether that could be done; old ones go if there is no room."""
        data = dumps(result.to_json()).encode()
        if len(data) > self.most_bytes // 4:
            return False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self.file(key), hashlib.sha256(data).hexdigest().encode() + b"\n" + data)
            self.make_room()
        except OSError:  # a full disk, a folder of someone else: a cache is not worth a failure
            return False
        return True

    def make_room(self) -> None:
        """Remove results that were not used for longest until the others fit."""
        files = self.files()
        sizes = {file: _size(file) for file in files}
        total = sum(sizes.values())
        for file in files:
            if total <= self.most_bytes:
                return
            file.unlink(missing_ok=True)
            total -= sizes[file]

    def clear(self) -> int:
        """Remove everything, and return how many results there were."""
        files = self.files()
        for file in files:
            file.unlink(missing_ok=True)
        if self.folder.is_dir():
            drop_drafts(self.folder)
        return len(files)


def user_shelf() -> Shelf | None:
    """Return this user's shelf, where the platform has caches; None if nothing is to be kept."""
    named = os.environ.get(FOLDER)
    if named is not None:
        return Shelf(Path(named)) if named else None
    base = _cache_home()
    return None if base is None else Shelf(base / "orbitlens" / "results")


def _cache_home() -> Path | None:
    try:
        home = Path.home()
    except RuntimeError:  # a user without a home
        return None
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():  # the convention has others ignored
        return given
    if sys.platform == "darwin":
        return home / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local"))
    return home / ".cache"


def _used(file: Path) -> float:
    return file.stat().st_mtime if file.exists() else 0.0


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _touch(file: Path) -> None:
    """Note that a file was used, where that may be noted."""
    if os.access(file, os.W_OK):
        os.utime(file)
