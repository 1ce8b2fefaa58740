"""Archives: zip files of data that nobody vouches for, read in memory and within bounds.

Enters: a file a user has. Leaves: the bytes of its members, by name; nothing is unpacked to disk.
What is broken, too much or missing is refused with the file's name and what can be done instead.
"""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orbitlens.errors import InputError

# What Python's reader raises for a damaged or foreign file.
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    OSError,
    RuntimeError,
    NotImplementedError,
    ValueError,
)


@dataclass(frozen=True, kw_only=True)
class Archive:
    """An open zip file."""

    file: Path
    zipped: zipfile.ZipFile
    most_bytes: int  # of a member
    advice: str  # what to do about a file that is not what it should be

    @property
    def names(self) -> list[str]:
        """The members that are no folders, as they come."""
        return [member.filename for member in self.zipped.infolist() if not member.is_dir()]

    def read(self, name: str) -> bytes:
        """Return a member's bytes."""
        try:
            size = self.zipped.getinfo(name).file_size
            if size <= self.most_bytes:
                return self.zipped.read(name)
        except KeyError as error:
            raise self.refusal(f"{name} is named but not there") from error
        except DAMAGE as error:
            raise self.refusal(f"{name} cannot be read ({error})") from error
        raise self.refusal(f"{name} has {size} bytes; expected {self.most_bytes} at most")

    def refusal(self, problem: str) -> InputError:
        """Return the error that says what was found in this file."""
        return InputError(f"{self.file}: {problem}. {self.advice}")


@contextmanager
def open_archive(
    file: Path, *, most_members: int, most_bytes: int, advice: str
) -> Iterator[Archive]:
    """Open a zip file of at most so many members, each of at most so many bytes.

    Raises:
        InputError: the file is no zip file, or has more members.
    """
    try:
        zipped = zipfile.ZipFile(file)
    except DAMAGE as error:
        raise InputError(f"{file}: not a zip file that can be read ({error}). {advice}") from error
    with zipped:
        archive = Archive(file=file, zipped=zipped, most_bytes=most_bytes, advice=advice)
        n_members = len(zipped.infolist())
        if n_members > most_members:
            raise archive.refusal(f"{n_members} members; expected {most_members} at most")
        yield archive
