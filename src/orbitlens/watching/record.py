"""The record of a watched run: one line of JSON a reading.

Enters: a header and readings. Leaves: a file to which lines are appended, each given to the system
whole and at once, so that a killed process leaves at most one broken line, the last; and that file
read again. A run that goes on after it was killed goes on in the same file.
"""

import json
import math
import os
from pathlib import Path
from typing import Any

from orbitlens.errors import InputError, ResultError
from orbitlens.files import open_regular, remedy, writable_folder
from orbitlens.results.codec import decode, encode
from orbitlens.watching.watch_reading import WatchHeader, WatchReading

FORMAT = 2
RECORD = "watch.jsonl"
LARGEST_RECORD = 512_000_000  # bytes, as of a saved result
DIGITS = 6


def record_file(path: Path) -> Path:
    """Return the file of a record: `path`, or the one of the usual name in that folder."""
    return path if path.suffix == ".jsonl" else path / RECORD


class Recorder:
    """Appends readings to a file."""

    def __init__(self, file: Path, header: WatchHeader) -> None:
        """Begin the file, or go on in one whose last line may be broken.

        Raises:
            InputError: the folder cannot be written to.
        """
        self.file = file
        writable_folder(file.parent)
        try:
            self._mend()
            if not file.exists() or file.stat().st_size == 0:
                self._append({"orbitlens_watch": FORMAT, **encode(header)})
        except OSError as error:
            raise InputError(f"{file}: cannot be written ({error}). {remedy(error)}") from error

    def write(self, reading: WatchReading) -> None:
        """Add a reading; raises OSError where the disk does not take it."""
        self._append(plain_data(reading))

    def _append(self, data: dict[str, Any]) -> None:
        line = json.dumps(data, allow_nan=False, separators=(",", ":")) + "\n"
        with self.file.open("ab", buffering=0) as stream:
            stream.write(line.encode())  # one write: a line is whole, or the last and cut
            os.fsync(stream.fileno())

    def _mend(self) -> None:
        """Drop a last line that a killed process left unfinished."""
        if not self.file.exists():
            return
        with self.file.open("r+b") as stream:
            size = stream.seek(0, os.SEEK_END)
            whole = _end_of_last_line(stream, size)
            if whole < size:
                stream.truncate(whole)


def _end_of_last_line(stream: Any, size: int) -> int:  # noqa: ANN401 - a binary file
    block, end = 65_536, size
    while end > 0:
        start = max(0, end - block)
        stream.seek(start)
        found = stream.read(end - start).rfind(b"\n")
        if found >= 0:
            return int(start + found + 1)
        end = start
    return 0


def plain_data(reading: WatchReading) -> dict[str, Any]:
    """Return a reading as its line of JSON has it."""
    short = _short(encode(reading))
    assert isinstance(short, dict)
    return short


def _short(data: object) -> object:
    """Return data with numbers of a few digits, those that JSON does not have as words."""
    if isinstance(data, float):
        if math.isfinite(data):
            return float(f"{data:.{DIGITS}g}")
        return "NaN" if math.isnan(data) else "Infinity" if data > 0 else "-Infinity"
    if isinstance(data, dict):
        return {key: _short(item) for key, item in data.items()}
    if isinstance(data, list):
        return [_short(item) for item in data]
    return data


def read_record(file: Path) -> tuple[WatchHeader, list[WatchReading]]:
    """Return what is watched and its readings; a last line that is not whole is passed over.

    Of readings of one step, as a resumed run repeats them, the newest is kept.

    Raises:
        ResultError: it is not the record of a watched run, or is damaged before its last line.
    """
    try:
        with open_regular(file) as stream:
            data = stream.read(LARGEST_RECORD + 1)
    except OSError as error:
        raise ResultError(f"{file}: cannot be read ({error}).") from error
    if len(data) > LARGEST_RECORD:
        raise ResultError(f"{file}: this has more than {LARGEST_RECORD} bytes; cut it in parts.")
    lines = data.split(b"\n")[:-1]  # what follows the last line's end is not whole
    if not lines:
        raise ResultError(f"{file}: this is empty. The run has not begun, or wrote elsewhere.")
    header = _line(file, 1, lines[0])
    if header.get("orbitlens_watch") != FORMAT:
        raise ResultError(
            f"{file}: this is not the record of a watched run that this version reads (format "
            f"{header.get('orbitlens_watch')!r}, expected {FORMAT})."
        )
    readings: list[WatchReading] = []  # by growing steps
    for number, line in enumerate(lines[1:], start=2):
        reading = decode(WatchReading, _line(file, number, line), f"line {number}")
        while readings and readings[-1].step >= reading.step:
            readings.pop()
        readings.append(reading)
    return decode(WatchHeader, header, "line 1"), readings


def _line(file: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ResultError(f"{file}: line {number} is damaged ({error}).") from error
    if not isinstance(data, dict):
        raise ResultError(f"{file}: line {number} is not a reading.")
    return data
