"""Files that are whole whenever they exist.

Enters: bytes and a place. Leaves: a file. `write_whole` leaves errors of the disk to its caller;
`write_result` and `writable_folder` say what went wrong.
"""

import os
import tempfile
from pathlib import Path

from orbitlens.errors import InputError


def write_whole(file: Path, data: bytes, *, onto_disk: bool = False) -> None:
    """Write a file beside its place, then rename it: whole or not at all.

    `onto_disk` waits until the disk has it, so that it survives the machine and not only the
    process.
    """
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".draft-")
    draft = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            if onto_disk:
                stream.flush()
                os.fsync(stream.fileno())
        draft.chmod(0o644)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)  # still there only where something failed


def write_result(file: Path, data: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        InputError: it cannot be written; what was there before is untouched.
    """
    try:
        write_whole(file, data)
    except OSError as error:
        raise InputError(
            f"{file}: cannot be written ({error}). Make room, and run again."
        ) from error


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
        raise InputError(f"{folder}: cannot be written to ({error}). Choose another.") from error
    return folder
