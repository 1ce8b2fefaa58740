"""Files written whole or not at all, and read only if they are sound.

Enters: text and a place. Leaves: a file that is complete whenever it exists.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from orbitlens import files
from orbitlens.errors import InputError


def writable_folder(folder: Path) -> Path:
    """Make a folder and see that it can be written to, before minutes of work.

    Raises:
        InputError: it cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, prefix=".probe-")
        os.close(handle)
        Path(name).unlink()
    except OSError as error:
        raise InputError(
            f"{folder}: results cannot be written there ({error}). Choose another --out DIR."
        ) from error
    return folder


def write_whole(file: Path, text: str) -> None:
    """Write text whole or not at all.

    Raises:
        InputError: it cannot be written; what was there before is untouched.
    """
    write_bytes(file, text.encode())


def read_json(file: Path) -> dict[str, Any] | None:
    """Return the object in a file; None where there is none, or something damaged it."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def write_bytes(file: Path, data: bytes) -> None:
    """Write bytes whole or not at all.

    Raises:
        InputError: they cannot be written.
    """
    try:
        files.write_whole(file, data)
    except OSError as error:
        raise InputError(
            f"{file}: cannot be written ({error}). Make room, and run again."
        ) from error
