"""Files that are whole whenever they exist.

Enters: bytes and a place. Leaves: a file. Errors of the disk are the caller's to explain.
"""

import os
import tempfile
from pathlib import Path


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
