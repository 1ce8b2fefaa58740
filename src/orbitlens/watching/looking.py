"""`watched`: a run looked at after the fact, or while it goes on.

Enters: the record that `Watch` writes, the folder it is in, or a folder of checkpoints. Leaves: a
`WatchedRun`. Checkpoints are read in the order of the numbers in their names, as Trainers give
them; with a text they are run as well.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.errors import CheckpointError, InputError
from orbitlens.running.batches import batches_of, limits_for
from orbitlens.running.inputs import inputs_of
from orbitlens.running.model import Model
from orbitlens.watching.course import MOST_CONTEXTS, Course
from orbitlens.watching.record import RECORD, read_record
from orbitlens.watching.thresholds import DEFAULT, Thresholds
from orbitlens.watching.watch_reading import WatchedLayer, WatchHeader
from orbitlens.watching.watched_module import WatchedModule
from orbitlens.watching.watched_run import WatchedRun

MOST_SUBFOLDERS = 8  # that a message names
CONTEXT = 128  # tokens of a context of a text
Progress = Callable[[int, int | None], None]


def watched(
    path: str | Path,
    text: Any = None,  # noqa: ANN401 - see `orbitlens.running.inputs`
    *,
    thresholds: Thresholds = DEFAULT,
    progress: Progress | None = None,
) -> WatchedRun:
    """Return the readings of a run.

    Args:
        path: a record of `Watch`, a folder with one, or a folder of checkpoints.
        text: run through each checkpoint, for readings with tokens; a record has its own.
        thresholds: of alarms on checkpoints; those of a record were raised when it was written.
        progress: told how many checkpoints are read, and of how many.

    Raises:
        InputError: there is neither a record nor a checkpoint.
        ResultError: the record is damaged.
        CheckpointError: a checkpoint cannot be read.
    """
    place = Path(path)
    record = place / RECORD if place.is_dir() else place
    if record.is_file():
        header, readings = read_record(record)
        return WatchedRun(name=str(place), header=header, readings=tuple(readings))
    found = checkpoints_in(place)
    if not found:
        raise InputError(_nothing(place))
    return _read_checkpoints(place, found, text, thresholds, progress)


def checkpoints_in(folder: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints inside a folder with their steps: the last number of their names."""
    found = []
    for place in folder.iterdir() if folder.is_dir() else ():
        numbers = re.findall(r"\d+", place.name)
        if numbers and len(numbers[-1]) < 16 and (place / "config.json").is_file():
            found.append((int(numbers[-1]), place))
    return sorted(found)


def _nothing(place: Path) -> str:
    if not place.exists():
        return f"{place}: there is no such file or folder. Give the `path=` that Watch writes to."
    inner = sorted(one.parent.name for one in place.glob(f"*/{RECORD}")) if place.is_dir() else []
    if inner:
        return (
            f"{place}: there are {len(inner)} watched runs in this folder. Choose one: "
            f"{', '.join(inner[:MOST_SUBFOLDERS])}."
        )
    return (
        f"{place}: neither a record ({RECORD}) nor checkpoints (folders such as checkpoint-500 "
        "with a config.json) are here. Train with Watch(path=...), or save checkpoints."
    )


def _read_checkpoints(
    place: Path,
    found: list[tuple[int, Path]],
    text: Any,  # noqa: ANN401
    thresholds: Thresholds,
    progress: Progress | None,
) -> WatchedRun:
    course: Course | None = None
    layers: tuple[WatchedLayer, ...] = ()
    readings = []
    for done, (step, folder) in enumerate(found, start=1):
        watched_files = WatchedModule(Model(load_checkpoint(folder)))
        if course is None:
            layers = watched_files.layers
            header = WatchHeader(
                model=watched_files.model.name, layers=layers, every=0, tokens_every=0
            )
            course = Course(header, thresholds, n_tokens=watched_files.usual_tokens)
        elif watched_files.layers != layers:
            raise InputError(
                f"{folder}: its layers are not those of {found[0][1].name}. A folder to watch "
                "holds checkpoints of one run."
            )
        batch, notes = _batch(watched_files.model, text)
        reading = course.read(watched_files, step, batch)
        assert reading is not None  # one process
        readings.append(replace(reading, notes=(*reading.notes, *notes)))
        if progress is not None:
            progress(done, len(found))
    assert course is not None
    return WatchedRun(name=str(place), header=course.header, readings=tuple(readings))


def _batch(model: Model, text: Any) -> tuple[Any, tuple[str, ...]]:  # noqa: ANN401
    """Return a batch of the text, or none and why a checkpoint cannot be run (it may be NaN)."""
    if text is None:
        return None, ()
    try:
        limits = limits_for(model, batch=MOST_CONTEXTS, max_tokens=MOST_CONTEXTS * CONTEXT)
    except CheckpointError as error:
        return None, (f"No tokens were read at this step: {error}",)
    return next(iter(batches_of(model, inputs_of(model, text), limits)), None), ()
