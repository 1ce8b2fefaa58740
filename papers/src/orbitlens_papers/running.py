"""Running a study: every claim is measured, and every outcome kept.

Enters: a `Study` and settings. Leaves: a `StudyResult`. Every claim's outcome is written, whole, as
soon as it is there, under a name made of all it depends on (`cached.py`): an interrupted run goes
on where it stopped, and one of other code or data starts anew. One process at a time runs a study
in a folder.
"""

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path

from orbitlens.errors import InputError
from orbitlens.files import read_json, writable_folder, write_result
from orbitlens.lab.ownership import locked
from orbitlens.results.codec import decode
from orbitlens.running.threads import torch_threads
from orbitlens_papers.bench import Bench, Scale, Settings
from orbitlens_papers.cached import code_digest, outcome_file
from orbitlens_papers.claim import Claim, Finding
from orbitlens_papers.result import (
    StudyResult,
    outcome_from_json,
    outcome_to_json,
    provenance,
)
from orbitlens_papers.study import Study

Progress = Callable[[int, int], None]
LARGEST_OUTCOME = 64_000_000  # bytes
TICKS = 100  # of the progress bar, a claim


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A study, and those of its claims that are tested."""

    study: Study
    claims: tuple[Claim, ...]

    @property
    def is_part(self) -> bool:
        """Whether some claims are left out."""
        return len(self.claims) < len(self.study.claims)


def run_study(
    study: Study,
    settings: Settings,
    folder: Path,
    *,
    executor: Executor | None = None,
    progress: Progress | None = None,
    fresh: bool = False,
) -> StudyResult:
    """Test every claim that `folder` holds no outcome of yet, and return all that were asked for.

    Args:
        study: the paper.
        settings: scale, seeds and models, and which claims where not all are wanted.
        folder: where outcomes are kept, and training runs below it.
        executor: who does the work, such as a cluster; processes of this machine if None.
        progress: called with what is done and what there is to do.
        fresh: measure everything anew.

    Raises:
        InputError: the folder cannot be written, or the study has no claim that the settings name.
        TrainingError: another process is running this study there.
    """
    chosen = _chosen(study, settings.claims)
    writable_folder(folder)
    settings = with_folds(study, settings)
    with locked(
        folder / f".lock-{study.name}",
        f"{folder}: another process is running the study {study.name} in this folder. Wait until "
        "it has ended: what it has measured is then read; or give this one a folder of its own.",
    ):
        return _run_study(chosen, settings, folder, executor, progress, fresh)


def _chosen(study: Study, keys: Sequence[str]) -> Chosen:
    known = [claim.key for claim in study.claims]
    unknown = sorted(set(keys) - set(known))
    if unknown:
        raise InputError(
            f"{study.name} has no claim {', '.join(unknown)}. Expected some of: {' '.join(known)}."
        )
    return Chosen(study=study, claims=tuple(c for c in study.claims if c.key in keys or not keys))


def with_folds(study: Study, settings: Settings) -> Settings:
    """Return settings with a seed for each fold, at the default scale and if not said otherwise."""
    wanted = study.folds and settings.scale is Scale.DEFAULT and not settings.seeds
    return replace(settings, seeds=study.folds) if wanted else settings


def _run_study(
    chosen: Chosen,
    settings: Settings,
    folder: Path,
    executor: Executor | None,
    progress: Progress | None,
    fresh: bool,
) -> StudyResult:
    study, claims = chosen.study, chosen.claims
    # Named before anything runs: a module that is edited meanwhile is not the one in memory.
    code = code_digest(*study.measures.values())
    files = {claim: folder / outcome_file(study, settings, claim, code=code) for claim in claims}
    findings: list[Finding] = []
    reused = 0
    total = TICKS * len(claims)
    bench = Bench(
        settings,
        folder / "runs" / code,
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
        provenance=provenance(code),
        part=chosen.is_part,
    )


def _sources(study: Study, bench: Bench) -> tuple[str, ...]:
    """Return in words which data was used: the user's, or what takes its place."""
    return tuple(
        f"{name}: used" if bench.data_file(name) else f"{name}: not given; in its place {instead}"
        for name, instead in study.data_files.items()
    )


def _stored(file: Path, claim: Claim) -> Finding | None:
    """Return the finding of an earlier run; None where there is none, or it was damaged."""
    try:
        data = read_json(file, LARGEST_OUTCOME)
        outcome = outcome_from_json(data)
        seconds = decode(float, data.get("seconds"), "seconds")
        return Finding(claim=claim, outcome=outcome, seconds=seconds)
    except (OSError, ValueError, InputError):
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
