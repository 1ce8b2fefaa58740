"""One process at a time in the folder of a run, a sweep or a study; errors of the disk in words.

Enters: a folder. Leaves: the right to write there, held by a lock of the operating system that ends
with its process, however that ends; or a `TrainingError` that says what to do.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from orbitlens.errors import TrainingError
from orbitlens.files import remedy
from orbitlens.lab.run_state import STATE

LOCK = ".lock"
PATIENCE = 2.0  # seconds: workers of a killed sweep take a moment to end


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Keep a run's folder to this process for a while.

    Raises:
        TrainingError: another process has it, or it cannot be written.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(
        folder / LOCK,
        f"{folder}: another process is training this run. Wait until it has ended: its result is "
        "then read, not computed a second time.",
    ):
        yield


@contextmanager
def locked(file: Path, refusal: str) -> Iterator[None]:
    """Hold a lock for a while; it ends with this process, however that ends.

    Raises:
        TrainingError: another process holds it, which `refusal` tells; or there can be none.
    """
    lock = FileLock(file, timeout=PATIENCE)
    with writing(file.parent):
        try:
            lock.acquire()
        except Timeout as error:  # which is an error of the disk too
            raise TrainingError(refusal) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn an error of the disk into one that says what is kept and what to do."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        has_state = (folder / STATE).is_file()
        kept = "the last state written is whole" if has_state else "nothing is kept"
        raise TrainingError(
            f"{folder}: the run cannot be written ({error}); {kept}. {remedy(error)} A run that is "
            "started again continues from its last state."
        ) from error
