"""The tasks small models are trained on, by name.

Enters: a name and options. Leaves: a `Task`. A new task is a function that returns one, and one row
of `TASKS`.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from orbitlens.errors import InputError
from orbitlens.lab.tasks.base import Batch, Ceiling, ImageShape, Split, cut_at, judged_columns
from orbitlens.lab.tasks.images import ImageTask, digits
from orbitlens.lab.tasks.language import TextTask, text
from orbitlens.lab.tasks.sequences import (
    SequenceTask,
    addition,
    copy,
    index,
    majority,
    parity,
    reverse,
    sort,
)

# All have: name, kind, vocab_size, n_positions, image, by_token (whether accuracy counts tokens, as
# in a text, and not whole answers), ceiling, n_examples(split) and batch(split, index, size, seed).
Task = SequenceTask | TextTask | ImageTask

TASKS: dict[str, Callable[..., Task]] = {
    "addition": addition,
    "copy": copy,
    "reverse": reverse,
    "sort": sort,
    "index": index,
    "parity": parity,
    "majority": majority,
    "text": text,
    "digits": digits,
}


def task_options(name: str) -> dict[str, Any]:
    """Return the options of a task with their defaults."""
    if name not in TASKS:
        raise InputError(f"the task {name!r} is unknown. Known: {', '.join(TASKS)}.")
    parameters = inspect.signature(TASKS[name]).parameters
    return {key: parameter.default for key, parameter in parameters.items()}


KINDS: dict[str, tuple[type, str]] = {
    "digits": (int, "a whole number"),
    "length": (int, "a whole number"),
    "symbols": (int, "a whole number"),
    "context": (int, "a whole number"),
    "patch": (int, "a whole number"),
    "reversed_answer": (bool, "true or false"),
    "file": (str, "a path"),
}


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuse options that a task does not have, and values of the wrong kind."""
    known = task_options(name)
    for key, value in options.items():
        if key not in known:
            raise InputError(
                f"the task {name!r} has no option {key!r}. Options: {', '.join(known)}."
            )
        kind, words = KINDS[key]
        if type(value) is not kind:
            raise InputError(f"{key}={value!r}: expected {words}.")


def build_task(name: str, options: Mapping[str, Any] | None = None) -> Task:
    """Return a task.

    Raises:
        InputError: the task or an option is unknown, or its value is out of range.
    """
    check_options(name, options or {})
    return TASKS[name](**(options or {}))


__all__ = [
    "TASKS",
    "Batch",
    "Ceiling",
    "ImageShape",
    "Split",
    "Task",
    "build_task",
    "check_options",
    "cut_at",
    "judged_columns",
    "task_options",
]
