"""The name of a kept outcome: a hash of all code and data that it depends on.

Enters: a study, settings, a claim. Leaves: the name of a file. Code is every file of orbitlens and
of orbitlens_papers, with the module that measures the claim where that lies elsewhere, and the
versions of the packages below them. Data and models count by their content, wherever they lie.
"""

import functools
import hashlib
import inspect
import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.errors import CheckpointError
from orbitlens_papers.bench import Settings
from orbitlens_papers.claim import Claim
from orbitlens_papers.result import package_versions
from orbitlens_papers.study import Measure, Study

PACKAGES = ("orbitlens", "orbitlens_papers")


def outcome_file(study: Study, settings: Settings, claim: Claim, *, code: str) -> str:
    """Return the name of the file that keeps the outcome of a claim."""
    models = settings.models if claim.key in study.on_models else ()
    data = [file for file in map(settings.data_file, study.data_files) if file is not None]
    what = [
        settings.n_seeds,
        settings.base_seed,
        [_model_digest(model) for model in models],
        None if settings.text is None else file_digest(Path(settings.text)),
        [[file.name, file_digest(file)] for file in data],
        code,
    ]
    name = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]
    return f"{study.name}-{settings.scale.value}-{claim.key}-{name}.json"


def code_digest(*measures: Measure) -> str:
    """Return a name for all code behind measures."""
    mixed = hashlib.sha256(json.dumps(package_versions(), sort_keys=True).encode())
    for package in PACKAGES:
        home = Path(str(files(package)))
        for file in sorted(home.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                mixed.update(f"{package}/{file.relative_to(home)} {file_digest(file)}".encode())
    own = {_source_file(measure) for measure in measures}
    for name in sorted(name for name in own if name is not None):
        mixed.update(file_digest(Path(name)).encode())
    return mixed.hexdigest()[:12]


def file_digest(file: Path) -> str:
    """Return the SHA-256 of a file's content."""
    status = file.stat()
    return _digest(file, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=4096)
def _digest(file: Path, n_bytes: int, written: int) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _source_file(measure: Measure) -> str | None:
    function: Callable[..., Any] = measure
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.getsourcefile(inspect.getmodule(function) or function)


def _model_digest(model: str) -> list[str]:
    """Return the content of a model's files, and how it was called where it cannot be opened."""
    try:
        place = Path(load_checkpoint(model).path)
    except CheckpointError as error:  # the claim will say so: its outcome depends on just that
        return [model, str(error)]
    inside = (
        sorted(file for file in place.iterdir() if file.is_file()) if place.is_dir() else [place]
    )
    return [Path(model).name, *(f"{file.name} {file_digest(file)}" for file in inside)]
