"""Running a study: every claim is measured, and every outcome kept.

Enters: a `Study` and settings. Leaves: a `StudyResult`. Every claim's outcome is written, whole, as
soon as it is there, under a name made of the study, the scale, the seeds, the claim and the code
that measured it: an interrupted run goes on where it stopped, and a changed study starts anew.
"""

import functools
import hashlib
import inspect
import json
import time
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from orbitlens.checkpoint.zoo import zoo_names
from orbitlens.errors import InputError
from orbitlens.files import writable_folder, write_result
from orbitlens.running.workers import torch_threads
from orbitlens_papers.bench import Bench, Settings
from orbitlens_papers.claim import Claim, Finding
from orbitlens_papers.result import (
    StudyResult,
    outcome_from_json,
    outcome_to_json,
    provenance,
)
from orbitlens_papers.study import Measure, Study

Progress = Callable[[int, int], None]
TICKS = 100  # of the progress bar, a claim


def run_study(
    study: Study,
    settings: Settings,
    folder: Path,
    *,
    executor: Executor | None = None,
    progress: Progress | None = None,
    fresh: bool = False,
) -> StudyResult:
    """Test every claim that `folder` holds no outcome of yet, and return them all.

    Args:
        study: the paper.
        settings: scale, seeds and models.
        folder: where outcomes are kept, and training runs below it.
        executor: who does the work, such as a cluster; processes of this machine if None.
        progress: called with what is done and what there is to do.
        fresh: measure everything anew.
    """
    writable_folder(folder)
    # Named before anything runs: a module that is edited meanwhile is not the one in memory.
    files = {claim: folder / _file_name(study, settings, claim) for claim in study.claims}
    findings: list[Finding] = []
    reused = 0
    total = TICKS * len(study.claims)
    bench = Bench(
        settings,
        folder / "runs",
        executor=executor,
        step=lambda part: _report(progress, TICKS * len(findings) + round(TICKS * part), total),
    )
    try:
        with torch_threads(1):  # models and systems of studies are small
            for claim, file in files.items():
                kept = None if fresh else _stored(file, claim)
                reused += kept is not None
                findings.append(kept or _measured(study, claim, bench, file))
                _report(progress, TICKS * len(findings), total)
    finally:
        bench.close()
    return StudyResult(
        study=study.name,
        title=study.title,
        paper=study.paper,
        gap=study.gap,
        scale=settings.scale.value,
        seeds=settings.n_seeds,
        base_seed=settings.base_seed,
        models=tuple(Path(model).name for model in settings.models),
        sources=_sources(study, bench),
        findings=tuple(findings),
        reused=reused,
        provenance=provenance(code_version(*study.measures.values())),
    )


def code_version(*measures: Measure) -> str:
    """Return a name for the code behind measures: their modules, and the package's version."""
    from orbitlens import __version__

    functions = [_plain(measure) for measure in measures]
    files = {inspect.getsourcefile(inspect.getmodule(f) or f) for f in functions}
    mixed = hashlib.sha256(__version__.encode())
    for name in sorted(name for name in files if name is not None):
        mixed.update(Path(name).read_bytes())
    return mixed.hexdigest()[:12]


def _plain(measure: Measure) -> Callable[..., Any]:
    while isinstance(measure, functools.partial):
        measure = measure.func
    return measure


def _file_name(study: Study, settings: Settings, claim: Claim) -> str:
    models: list[object] = []
    if claim.key in study.on_models:
        models = [*zoo_names(), *(_identity(model) for model in settings.models)]
    version = code_version(study.measures[claim.key])
    data = [_stamp(file) for file in map(settings.data_file, study.data_files) if file is not None]
    what = [settings.n_seeds, settings.base_seed, models, settings.text, version, *data]
    name = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]
    return f"{study.name}-{settings.scale.value}-{claim.key}-{name}.json"


def _identity(model: str) -> list[str]:
    """Return a name for a model that changes when its weights do."""
    folder = Path(model)
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    return [model, *map(_stamp, files)]


def _stamp(file: Path) -> str:
    """Return a name for a file that changes when it is written."""
    return f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}"


def _sources(study: Study, bench: Bench) -> tuple[str, ...]:
    """Return in words which data was used: the user's, or what takes its place."""
    return tuple(
        f"{name}: used" if bench.data_file(name) else f"{name}: not given; in its place {instead}"
        for name, instead in study.data_files.items()
    )


def _stored(file: Path, claim: Claim) -> Finding | None:
    """Return the finding of an earlier run; None where there is none, or it was damaged."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        return Finding(claim=claim, outcome=outcome_from_json(data), seconds=float(data["seconds"]))
    except (OSError, KeyError, TypeError, ValueError, InputError):
        return None


def _measured(study: Study, claim: Claim, bench: Bench, file: Path) -> Finding:
    started = time.perf_counter()
    outcome = study.measures[claim.key](bench)
    seconds = time.perf_counter() - started
    finding = Finding(claim=claim, outcome=outcome, seconds=seconds)
    data = {**outcome_to_json(outcome), "seconds": seconds}
    write_result(file, json.dumps(data).encode())
    return finding


def _report(progress: Progress | None, done: int, total: int) -> None:
    if progress is not None:
        progress(done, total)
