"""RemoteFile: a file on a server, of which only the pieces asked for are fetched.

Enters: an address. Leaves: a `StoredFile` that reads by HTTP range requests. Answers are untrusted:
their range, their length, the file's size and its ETag are held against what was asked for and seen
before. A connection that breaks is taken up where it broke, after a pause that doubles.
"""

import io
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

from orbitlens.checkpoint.stored_file import Span
from orbitlens.errors import CheckpointError, printable

FIRST = 1 << 15  # bytes asked for first: they give the size, and hold most headers
WHOLE = 1 << 24  # bytes up to which a file is taken whole from a server that knows no ranges
GAP = 1 << 18  # bytes between two ranges up to which they are fetched as one
AHEAD = 1 << 20  # bytes fetched at a time where a header is parsed
MOST_TRIES = 32  # for a piece, and one more for each megabyte: each may bring but a little
STRAIGHT = 8  # bytes of the widest number
TOO_BUSY = {408, 425, 429, 500, 502, 503, 504}
NOT_OURS = {401: "it is not open to you", 403: "it is not open to you", 404: "there is none"}

# (address, headers) -> an answer as httpx gives it: status_code, headers, iter_raw()
Stream = Callable[[str, Mapping[str, str]], AbstractContextManager[Any]]


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to put up with a server."""

    tries: int = 6  # in a row that bring nothing
    pause: float = 0.5  # seconds before the second try, doubled each time
    longest_pause: float = 30.0
    slowest: float = 10_000.0  # bytes a second, below which a connection counts as broken
    allowance: float = 60.0  # seconds beside


class Broken(Exception):
    """A try that may be made again."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        """Say what happened, and how long the server asked to wait."""
        super().__init__(reason)
        self.wait = wait


class RemoteFile:
    """A file of known size on a server; safe to use from several threads."""

    def __init__(
        self,
        url: str,
        *,
        name: str,
        shown: str,
        stream: Stream,
        broken: tuple[type[Exception], ...] = (OSError,),
        patience: Patience | None = None,
    ) -> None:
        """Ask for the file's first bytes, which tell its size.

        Args:
            url: its address.
            name: its own name.
            shown: what messages call it.
            stream: makes a request and gives its answer, the body not read yet.
            broken: what the connection raises when it breaks.
            patience: how long to put up with the server.

        Raises:
            CheckpointError: there is none, or the server cannot be read from.
        """
        self.url, self.name, self.shown = url, name, shown
        self._stream, self._broken = stream, broken
        self._patience = patience or Patience()
        self._etag: str | None = None
        self._size: int | None = None
        self._whole: bytes | None = None
        self._held = threading.local()  # what this thread was told it will read
        self._counting = threading.Lock()
        self.n_fetched, self.n_requests, self.n_broken = 0, 0, 0
        self._first = bytes(self._fetched(0, FIRST))

    @property
    def size(self) -> int:
        """Bytes in all."""
        assert self._size is not None, "the first answer tells it"
        return self._size

    def read(self, offset: int, length: int) -> memoryview:
        """Return exactly so many bytes, from what is there already where it is there.

        Raises:
            CheckpointError: they are not within the file, or the server does not give them.
        """
        if offset < 0 or length < 0 or offset + length > self.size:
            raise CheckpointError(
                f"{self.shown}: bytes {offset} to {offset + length} were asked for; the file has "
                f"{self.size}."
            )
        for start, block in getattr(self._held, "blocks", ()):
            if start <= offset and offset + length <= start + len(block):
                piece = block[offset - start : offset - start + length]
                # Numbers are to lie straight in memory; where they do not, they are copied.
                return piece if (offset - start) % STRAIGHT == 0 else memoryview(bytearray(piece))
        if offset + length <= len(self._first):
            return memoryview(bytearray(self._first[offset : offset + length]))
        return memoryview(self._fetched(offset, length))

    @contextmanager
    def expecting(self, spans: Sequence[Span]) -> Iterator[None]:
        """Fetch what is read within, neighbours together, and let go of it afterwards."""
        blocks = [
            (start, memoryview(self._fetched(start, end - start))) for start, end in joined(spans)
        ]
        self._held.blocks = [*getattr(self._held, "blocks", ()), *blocks]
        try:
            yield
        finally:
            self._held.blocks = self._held.blocks[: -len(blocks) or None]

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Give the file as a stream that keeps what it has read: for headers, which are bounded."""
        with io.BufferedReader(_Prefix(self)) as stream:
            yield stream

    # --- requests ----------------------------------------------------------------------------

    def _fetched(self, start: int, length: int) -> bytearray:
        """Return bytes from the server, taken up again wherever a connection broke."""
        patience = self._patience
        if self._size is not None:
            length = min(length, self._size - start)
        data = bytearray(length)
        done = failures = 0
        for _ in range(MOST_TRIES + length // AHEAD):
            before, wait = done, None
            try:
                for piece in self._pieces(start + done, length - done):
                    data[done : done + len(piece)] = piece
                    done += len(piece)
                reason = "the connection ended early"
            except Broken as error:
                reason, wait = str(error), error.wait
            except self._broken as error:
                reason = str(error) or type(error).__name__
            length = min(length, self.size - start) if self._size is not None else length
            if self._size is not None and done >= length:
                del data[length:]
                return data
            self._count(broken=1)
            failures = 1 if done > before else failures + 1
            if failures >= patience.tries:
                break
            time.sleep(_pause(patience, failures, wait))
        raise CheckpointError(
            f"{self.shown}: the server did not give bytes {start + done} to {start + length} "
            f"({printable(reason)[:200]}). Try again later, or fetch the whole model "
            "(hf download) and give its folder."
        )

    def _pieces(self, start: int, length: int) -> Iterator[bytes]:
        """Make one request and yield what it brings, never more than was asked for."""
        if length == 0:
            return
        if self._whole is not None:
            yield self._whole[start : start + length]
            return
        headers = {"Range": f"bytes={start}-{start + length - 1}", "Accept-Encoding": "identity"}
        deadline = time.monotonic() + self._patience.allowance + length / self._patience.slowest
        self._count(requests=1)
        with self._stream(self.url, headers) as answer:
            if not self._has_range(answer, start, length):
                yield self._taken_whole(answer)[start : start + length]
                return
            brought = 0
            for piece in answer.iter_raw():
                brought += len(piece)
                self._count(fetched=len(piece))
                if brought > length:
                    raise self._wrong(f"it sent more than the {length} bytes asked for")
                yield piece
                if time.monotonic() > deadline:
                    raise Broken(f"{brought} of {length} bytes in all the time allowed")

    def _has_range(self, answer: Any, start: int, length: int) -> bool:  # noqa: ANN401
        """Check the head of an answer; False where it is the whole file instead of the range.

        Raises:
            Broken: the server is busy.
            CheckpointError: it refuses, or what it sends is not what was asked for.
        """
        status, headers = answer.status_code, answer.headers
        if status in TOO_BUSY:
            raise Broken(f"it answered {status}", _seconds(headers.get("retry-after")))
        if status == 416 and self._size is None:  # an empty file has no first byte
            self._settle(0, headers.get("etag"))
            raise self._wrong("the file is empty")
        if status not in {200, 206}:
            reason = NOT_OURS.get(status, f"it answered {status}")
            raise CheckpointError(
                f"{self.shown}: the server does not give this file ({reason}). Check the name and "
                "the revision, and whether the model asks for a login (hf auth login)."
            )
        if headers.get("content-encoding", "identity") != "identity":
            raise self._wrong("it sent the bytes in another encoding than the file's own")
        if status == 200:
            return False
        found = re.fullmatch(
            r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", headers.get("content-range", "")
        )
        if found is None:
            raise self._wrong("it did not say which range it sent")
        first, last, total = (int(part) for part in found.groups())
        if first != start or not first <= last < min(total, start + length):
            raise self._wrong(f"it sent bytes {first} to {last} for {start} to {start + length}")
        self._settle(total, headers.get("etag"))
        return True

    def _taken_whole(self, answer: Any) -> bytes:  # noqa: ANN401 - an answer
        """Keep a small file whole.

        Raises:
            CheckpointError: it is large: it would be fetched again for every piece.
        """
        data = bytearray()
        for piece in answer.iter_raw():
            data += piece
            self._count(fetched=len(piece))
            if len(data) > WHOLE:
                raise CheckpointError(
                    f"{self.shown}: the server sends the whole file whatever range is asked for, "
                    f"and it has more than {WHOLE} bytes. Fetch the model (hf download) and give "
                    "its folder."
                )
        announced = answer.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) != len(data):
            raise Broken(f"{len(data)} of {announced} bytes")
        self._settle(len(data), answer.headers.get("etag"))
        self._whole = bytes(data)
        return self._whole

    def _settle(self, size: int, etag: str | None) -> None:
        """Note the file's size and mark; from then on they must not change."""
        if self._size is None:
            self._size, self._etag = size, etag
        if size != self._size:
            raise self._changed(f"{self._size} bytes before and {size} now")
        if etag is not None and self._etag is not None and etag != self._etag:
            raise self._changed(f"ETag {self._etag} before and {etag} now")

    def _changed(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self.shown}: the file changed while it was read ({printable(what)[:200]}). "
            "Start again, or name a revision that does not move."
        )

    def _wrong(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self.shown}: the server's answer does not fit what was asked for: {what}. "
            "Fetch the model (hf download) and give its folder."
        )

    def _count(self, *, fetched: int = 0, requests: int = 0, broken: int = 0) -> None:
        with self._counting:
            self.n_fetched += fetched
            self.n_requests += requests
            self.n_broken += broken


class _Prefix(io.RawIOBase):
    """The beginning of a file as a stream; what was read once is kept for a second reading."""

    mode = "rb"

    def __init__(self, file: RemoteFile) -> None:
        super().__init__()
        self._file, self._data, self._at = file, bytearray(), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, target: Any) -> int:  # noqa: ANN401 - a buffer
        end = min(self._at + len(target), self._file.size)
        while len(self._data) < end:
            step = AHEAD if self._data else FIRST  # the first are there already
            left = self._file.size - len(self._data)
            self._data += self._file.read(len(self._data), min(step, left))
        found = self._data[self._at : end]
        target[: len(found)] = found
        self._at += len(found)
        return len(found)


def joined(spans: Sequence[Span]) -> list[Span]:
    """Return spans as (start, end), those that touch or nearly touch as one.

    >>> joined([(10, 5), (0, 10), (2_000_000, 4)])
    [(0, 15), (2000000, 2000004)]
    """
    found: list[Span] = []
    for start, length in sorted(spans):
        if found and start - found[-1][1] <= GAP:
            found[-1] = (found[-1][0], max(found[-1][1], start + length))
        elif length:
            found.append((start, start + length))
    return found


def _pause(patience: Patience, failures: int, asked: float | None) -> float:
    doubled = patience.pause * 2 ** (failures - 1)
    return min(max(doubled, asked or 0.0), patience.longest_pause)


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and re.fullmatch(r"\d{1,4}", text) else None
