"""StoredFile: a weight file that is read piece by piece, wherever it lies.

Enters: a path. Leaves: `DiskFile`; `remote_file.py` has the one that lies on a server. The readers
of safetensors and GGUF ask for a length at an offset, and know nothing else of where bytes come
from.
"""

import errno
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable

from orbitlens.errors import CheckpointError
from orbitlens.files import open_regular

Span = tuple[int, int]  # offset and length in a file, bytes


@runtime_checkable
class StoredFile(Protocol):
    """A file of known size; what it raises is an `OSError` or an `OrbitlensError`."""

    @property
    def name(self) -> str:
        """The file's own name."""
        ...

    @property
    def shown(self) -> str:
        """What messages call it: its path or address."""
        ...

    @property
    def size(self) -> int:
        """Bytes in all."""
        ...

    def read(self, offset: int, length: int) -> memoryview:
        """Return exactly so many bytes, as memory that may be written to."""
        ...

    def opened(self) -> AbstractContextManager[BinaryIO]:
        """Give the file as a stream from its beginning, for what is parsed byte by byte."""
        ...

    def expecting(self, spans: Sequence[Span]) -> AbstractContextManager[None]:
        """Be told what is read within, so that neighbours can be fetched together."""
        ...


class DiskFile:
    """A regular file of this machine, opened anew for each piece.

    A mapping would keep every page ever touched in this process's memory, and kill it should the
    file shrink meanwhile.
    """

    def __init__(self, path: Path) -> None:
        """Look at the file's size; nothing of it is read.

        Raises:
            CheckpointError: there is none, it may not be read, or it is no file.
        """
        self.path, self.name, self.shown = path, path.name, str(path)
        try:
            with open_regular(path) as stream:
                self.size = stream.seek(0, 2)
        except OSError as error:
            raise CheckpointError(f"{path}: the file cannot be read ({error}).") from error

    def read(self, offset: int, length: int) -> memoryview:
        """Return exactly so many bytes.

        Raises:
            OSError: it cannot be read, or is shorter by now.
        """
        data = memoryview(bytearray(length))
        with open_regular(self.path) as stream:
            stream.seek(offset)
            found = stream.readinto(data)  # type: ignore[attr-defined]
        if found != length:
            raise OSError(
                errno.EIO,
                f"the file was cut short after it was opened: {length} bytes were expected at "
                f"byte {offset}, {found} are there",
            )
        return data

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Give the file as a stream."""
        with open_regular(self.path) as stream:
            yield stream

    def expecting(self, spans: Sequence[Span]) -> AbstractContextManager[None]:
        """Do nothing: the disk is near."""
        return nullcontext()
