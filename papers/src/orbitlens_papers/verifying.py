"""Stored results, measured again: one claim of a study, chosen at random, against its number.

Enters: a study and its stored result. Leaves: a `Verification`. The claim is measured with the
scale and the seeds of the stored result; what that was given beside (text, data, models) must be
given again, and claims that lack it are not chosen.
"""

import math
import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from orbitlens.errors import InputError
from orbitlens.files import read_json
from orbitlens.running.threads import torch_threads
from orbitlens_papers.bench import Bench, Settings, scale_of
from orbitlens_papers.claim import Finding, Verdict
from orbitlens_papers.result import StudyResult, result_from_json
from orbitlens_papers.study import Study

LARGEST_RESULT = 64_000_000  # bytes
SAME = 1e-3  # relative: stored numbers have six digits, and machines round differently


@dataclass(frozen=True, kw_only=True)
class Verification:
    """A claim as it is stored, and as it was measured now."""

    study: str
    stored: Finding
    again: Finding

    @property
    def same_number(self) -> bool:
        """Whether both numbers agree to three digits."""
        old, new = self.stored.outcome.result, self.again.outcome.result
        if old is None or new is None:
            return old is new
        return math.isclose(old.value, new.value, rel_tol=SAME)

    @property
    def agrees(self) -> bool:
        """Whether the verdict is the stored one."""
        return self.stored.verdict is self.again.verdict


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A study of which no claim could be measured as it was."""

    study: str
    why: str
    agrees: ClassVar[bool] = True  # nothing was contradicted


@dataclass(frozen=True, kw_only=True)
class Again:
    """Which claim is measured again, and what is at hand for it beside the package."""

    models: tuple[str, ...] = ()
    text: str | None = None
    data: str | None = None
    claim: str = ""  # a key; empty: one drawn
    most: float = 60.0  # seconds that the drawn claim took at most
    draw: int = 0  # seed of the draw


def read_stored(folder: Path, study: Study) -> StudyResult:
    """Return the stored result of a study.

    Raises:
        InputError: it is not there, or is none.
    """
    file = folder / f"{study.name}.json"
    try:
        return result_from_json(read_json(file, LARGEST_RESULT))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{file}: no stored result of {study.name} can be read ({error}). Expected a folder "
            "such as docs/results of a checkout: give it with --results."
        ) from error


def comparable(stored: StudyResult, study: Study, again: Again) -> list[str]:
    """Return the claims that can be measured as they were, in at most so many seconds.

    Raises:
        InputError: there is none; with what would have to be given.
    """
    used = [source for source in stored.sources if source.endswith(": used")]
    if used and again.data is None:
        raise InputError(f"its stored result used data ({'; '.join(used)}). Give --data.")
    left_out = set() if again.models or not stored.models else set(study.on_models)
    left_out |= set() if again.text else set(study.on_text)
    keys = [
        finding.claim.key
        for finding in stored.findings
        if finding.verdict is not Verdict.NOT_TESTABLE
        and finding.claim.key not in left_out
        and finding.seconds <= again.most
    ]
    if not keys:
        raise InputError(
            f"no claim was measured in {again.most:g} s or less with what is at hand. Raise "
            "--most, or give --text or --model as for the stored result."
        )
    return keys


def verify_claim(
    study: Study, stored: StudyResult, key: str, again: Again, folder: Path
) -> Verification:
    """Measure one claim anew, as it was measured for the stored result."""
    old = stored.finding(key)
    run = old.origin or stored
    settings = Settings(
        scale=scale_of(stored.scale),
        seeds=run.seeds,
        base_seed=run.base_seed,
        models=again.models,
        text=again.text,
        data=again.data,
    )
    settings.check_files()
    bench = Bench(settings, folder / "verified")
    started = time.perf_counter()
    try:
        with torch_threads(1):
            outcome = study.measures[key](bench)
    finally:
        bench.close()
    new = Finding(claim=old.claim, outcome=outcome, seconds=time.perf_counter() - started)
    return Verification(study=study.name, stored=old, again=new)


def verify_studies(
    studies: Iterable[Study], results: Path, again: Again, folder: Path
) -> Iterator[Verification | LeftOut]:
    """Yield one verified claim a study, or why there is none.

    Raises:
        InputError: a stored result cannot be read, or has no claim of that key.
    """
    chance = random.Random(again.draw)
    for study in studies:
        stored = read_stored(results, study)
        try:
            key = again.claim or chance.choice(comparable(stored, study, again))
        except InputError as error:
            yield LeftOut(study=study.name, why=str(error))
            continue
        yield verify_claim(study, stored, key, again, folder)
