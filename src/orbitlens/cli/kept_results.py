"""Results of commands, kept by what they were made from: a second call of the same is instant.

Enters: a model, inputs and options. Leaves: the result, found or made. What it was made from is the
content of the model's files and of the inputs, the options, this package's own files, and versions
of what it computes with: if a byte of these differs, so does the key, and the result is made anew.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from orbitlens.cli.output import stderr

if TYPE_CHECKING:
    from orbitlens.results.base import Result
    from orbitlens.running.model import Model

    R = TypeVar("R", bound=Result)

LARGEST_MODEL = 4_000_000_000  # bytes of files beyond which reading them takes longer than it helps
COMPUTED_WITH = ("orbitlens", "torch", "transformers", "tokenizers", "numpy", "scipy", "numba")
NoCacheOption = Annotated[
    bool, typer.Option("--no-cache", help="Compute anew, and keep no result.")
]


def remembered(
    kind: "type[R]",
    make: "Callable[[], R]",
    *,
    models: "Sequence[Model]",
    asked: Mapping[str, Any],
    no_cache: bool,
) -> "R":
    """Return the result that was kept for the same question, or make it and keep it.

    Args:
        kind: what `make` returns.
        make: makes the result.
        models: those it is about.
        asked: everything else it depends on: inputs and options, by name.
        no_cache: make it, whatever is kept.
    """
    from orbitlens.results.shelf import user_shelf

    shelf = None if no_cache else user_shelf()
    if shelf is None or sum(map(_model_bytes, models)) > LARGEST_MODEL:
        return make()
    key = question_key(kind.KIND, models, asked)
    found = shelf.find(key, kind)
    if found is not None:
        stderr().print("from the cache; --no-cache computes it anew", style="dim")
        return found
    made = make()
    if question_key(kind.KIND, models, asked) != key:  # files were changed while it was made
        return made
    if not shelf.keep(key, made):
        stderr().print(f"the result was not kept: no room in {shelf.folder}", style="dim")
    return made


def question_key(kind: str, models: "Sequence[Model]", asked: Mapping[str, Any]) -> str:
    """Return a digest of all that a result depends on."""
    parts = [kind, _code(), *(f"{name} {_version(name)}" for name in COMPUTED_WITH)]
    for model in models:
        parts += [model.name, str(model.dtype), str(model.allow_pickle)]
        parts += [f"{file.name} {_content(file)}" for file in _model_files(model)]
    parts += [f"{name} {_described(value)}" for name, value in sorted(asked.items())]
    return hashlib.sha256("\n".join(f"{len(part)} {part}" for part in parts).encode()).hexdigest()


def _model_files(model: "Model") -> list[Path]:
    path = Path(model.checkpoint.path)
    return sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]


def _model_bytes(model: "Model") -> int:
    return sum(file.stat().st_size for file in _model_files(model))


def _described(value: object) -> str:
    """Return words that differ where the result could: files by their content, data by theirs."""
    if isinstance(value, Path):
        return f"file {value.name} {_content(value)}"
    if is_dataclass(value) and not isinstance(value, type):
        inside = (f"{one.name}={_described(getattr(value, one.name))}" for one in fields(value))
        return f"{type(value).__name__}({', '.join(inside)})"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_described, value))}]"
    if value is None or isinstance(value, (str, int, float, bool)):
        return repr(value)
    raise TypeError(f"{type(value).__name__}: nothing says when two of these are the same")


def _content(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@cache
def _code() -> str:
    """Return a digest of this package: its code, and the data that it computes with."""
    import orbitlens

    home = Path(orbitlens.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(home.rglob("*")):
        if file.suffix != ".pyc" and file.is_file():
            digest.update(f"{file.relative_to(home)} {_content(file)}\n".encode())
    return digest.hexdigest()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # optional: what needs it is refused elsewhere
        return "none"
