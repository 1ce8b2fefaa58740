"""`atlas`: many models, one after another or side by side, in one table that can be gone on with.

Enters: folders, files, names, or a list of them. Leaves: an `Atlas`. Each model's entry is written
whole as soon as it is there, under a hash of the model's files, of the options and of the version:
an atlas that is made again reads what is done and runs what is missing.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, as_completed
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from orbitlens.errors import InputError, ResultError
from orbitlens.files import read_json, writable_folder, write_whole
from orbitlens.lab.ownership import LOCK, locked
from orbitlens.results.codec import decode, dumps, encode
from orbitlens.running.texts import read_text
from orbitlens.running.workers import cluster_client, local_workers
from orbitlens.surveying.atlas_entry import AtlasEntry, read_entry, unread
from orbitlens.surveying.atlas_result import Atlas
from orbitlens.surveying.options import AtlasOptions

Progress = Callable[[int, int | None], None]
MakeExecutor = Callable[[], Executor]
LARGEST_ENTRY = 16_000_000  # bytes of one model's file
DEEPEST_FOLDER = 4  # levels below the folder given
MOST_MODELS = 10_000
TWICE = "its process died twice; the machine may lack memory for it"


def atlas(
    models: str | Path | Sequence[str | Path],
    options: AtlasOptions | None = None,
    *,
    keep_in: str | Path | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    progress: Progress | None = None,
) -> Atlas:
    """Scan many models, trace those that fit, and put them into one table.

    Args:
        models: a folder with models in it or below it, a text file with a path or name a line, one
            model, or several of these.
        options: up to which size models are run, and on how many tokens.
        keep_in: a folder for finished entries, which are not made again.
        workers: processes; without any, this one does the work.
        cluster: address of a Dask scheduler, whose workers do it instead. They must see the same
            files.
        progress: called with how many models are done, of how many.

    Raises:
        InputError: there is no model, or the folder cannot be written.
        TrainingError: another process makes an atlas in the same folder.
    """
    chosen = options or AtlasOptions()
    places = places_of(models)
    survey = _Survey(places, chosen, None if keep_in is None else Path(keep_in), progress)
    with survey.owned(), _executors(workers, cluster) as make_executor:
        survey.go(make_executor)
    return Atlas(options=chosen, entries=tuple(survey.done[place] for place in places))


# --- which models ----------------------------------------------------------------------------


def places_of(models: str | Path | Sequence[str | Path]) -> list[str]:
    """Return the paths and names of models, each once.

    Raises:
        InputError: there is none.
    """
    given = [models] if isinstance(models, str | Path) else list(models)
    found = [place for each in given for place in _of_one(str(each))]
    places = list(dict.fromkeys(found))
    if not places or len(places) > MOST_MODELS:
        raise InputError(
            f"{', '.join(map(str, given))[:200]}: {len(places)} models here; expected 1 to "
            f"{MOST_MODELS}: a folder with models in it, a text file with a path or name a line, "
            "or models themselves."
        )
    return places


def _of_one(text: str) -> Iterator[str]:
    path = Path(text)
    if path.is_dir() and not (path / "config.json").is_file():
        yield from sorted(_below(path, DEEPEST_FOLDER))
    elif path.is_file() and path.suffix != ".gguf":
        lines = (line.partition("#")[0].strip() for line in "".join(read_text(path)).splitlines())
        yield from (_beside(path, line) for line in lines if line)
    else:
        yield text


def _beside(file: Path, line: str) -> str:
    """Return a path that a list names; relative ones are relative to the list."""
    own = file.parent / line
    return str(own) if own.exists() else line


def _below(folder: Path, levels: int) -> Iterator[str]:
    try:
        inside = sorted(folder.iterdir())
    except OSError:  # not ours to read: whatever is there is no model of this atlas
        return
    for path in inside:
        if path.is_file() and path.suffix == ".gguf":
            yield str(path)
        elif path.is_dir() and (path / "config.json").is_file():
            yield str(path)
        elif path.is_dir() and levels and not path.is_symlink():
            yield from _below(path, levels - 1)


# --- the work --------------------------------------------------------------------------------


@contextmanager
def _executors(workers: int | None, cluster: str | None) -> Iterator[MakeExecutor | None]:
    """Give what makes executors: of processes, or of a cluster; None: this process does the work.

    Dask gives the work of a lost worker to another; a pool of processes is made anew.
    """
    if cluster is not None:
        with cluster_client(cluster) as client:
            yield client.get_executor
    else:
        yield None if workers is None else lambda: local_workers(workers)


class _Survey:
    """The entries of an atlas by place: those done, and those to come."""

    def __init__(
        self,
        places: Sequence[str],
        options: AtlasOptions,
        folder: Path | None,
        progress: Progress | None,
    ) -> None:
        self.places, self.options, self.folder = places, options, folder
        self.progress, self.done = progress, dict[str, AtlasEntry]()

    def owned(self) -> Any:  # noqa: ANN401 - a context
        if self.folder is None:
            return nullcontext()
        writable_folder(self.folder)
        return locked(
            self.folder / LOCK,
            f"{self.folder}: another process makes an atlas in this folder. Wait until it has "
            "ended, or give this one a folder of its own.",
        )

    @property
    def left(self) -> list[str]:
        return [place for place in self.places if place not in self.done]

    def go(self, make_executor: MakeExecutor | None) -> None:
        """Read what is left; a process that dies costs no model but the one that killed it."""
        for place in self.places:
            kept = self._kept(place)
            if kept is not None:
                self._take(place, kept, keep=False)
        if make_executor is None:
            for place in self.left:
                self._take(place, read_entry(place, self.options))
            return
        self._round(self.left, make_executor)
        for place in self.left:  # alone, the one responsible is known
            self._round([place], make_executor)
            if place in self.left:
                self._take(place, unread(place, TWICE), keep=False)

    def _round(self, places: Sequence[str], make_executor: MakeExecutor) -> None:
        if not places:
            return
        executor, futures = make_executor(), {}
        try:
            for place in places:
                futures[executor.submit(read_entry, place, self.options)] = place
            for future in as_completed(futures):
                error = future.exception()
                if isinstance(error, BrokenExecutor):
                    return  # what is left is read again
                if error is not None:
                    why = f"{type(error).__name__}: {error}"
                    self._take(futures[future], unread(futures[future], why), keep=False)
                else:
                    self._take(futures[future], future.result())
        except BrokenExecutor:
            return
        finally:
            for future in futures:
                future.cancel()
            executor.shutdown(wait=False)

    def _take(self, place: str, entry: AtlasEntry, *, keep: bool = True) -> None:
        self.done[place] = entry
        if keep and self.folder is not None and entry.not_read is None:
            write_whole(self._file(place), dumps(encode(entry)).encode(), onto_disk=True)
        if self.progress is not None:
            self.progress(len(self.done), len(self.places))

    def _kept(self, place: str) -> AtlasEntry | None:
        """Return a finished entry; None where there is none, or something damaged it."""
        if self.folder is None:
            return None
        try:
            data = read_json(self._file(place), LARGEST_ENTRY)
            entry: AtlasEntry = decode(AtlasEntry, data)
        except (OSError, ValueError, ResultError):
            return None
        return entry if entry.place == place else None

    def _file(self, place: str) -> Path:
        assert self.folder is not None
        what = [version("orbitlens"), place, asdict(self.options), _stamps(place)]
        digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
        return self.folder / f"model-{digest[:24]}.json"


def _stamps(place: str) -> Mapping[str, tuple[int, int]]:
    """Return size and time of each of a model's files: another file is another model."""
    path = Path(place)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    found = [file.stat() if file.is_file() else None for file in files]
    return {
        file.name: (stat.st_size, stat.st_mtime_ns)
        for file, stat in zip(files, found, strict=True)
        if stat is not None
    }
