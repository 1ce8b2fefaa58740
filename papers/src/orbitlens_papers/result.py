"""The result of a study: findings, a verdict, and where the numbers come from; as JSON and back.

Enters: findings. Leaves: plain data. A result carries its claims' texts and thresholds with it, so
that a page or a figure can be made from the file alone.
"""

import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from orbitlens.errors import InputError
from orbitlens.results.codec import decode
from orbitlens_papers.claim import (
    Claim,
    Finding,
    Kind,
    Origin,
    Outcome,
    PaperVerdict,
    Verdict,
    paper_verdict,
)
from orbitlens_papers.estimate import Estimate

PACKAGES = ("torch", "transformers", "numpy", "scipy")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """When, with what and on what a result was made; no names of machines."""

    date: str
    versions: Mapping[str, str]
    hardware: str
    code: str


@dataclass(frozen=True, kw_only=True)
class StudyHeader:
    """What a result says beside its findings: of which paper they are, and how they were made."""

    study: str
    title: str
    paper: str
    gap: str
    scale: str
    seeds: int
    base_seed: int
    models: tuple[str, ...]
    reused: int
    provenance: Provenance
    sources: tuple[str, ...] = ()  # which data was used, in words; results of before have none


@dataclass(frozen=True, kw_only=True)
class StudyResult(StudyHeader):
    """All findings about one paper."""

    findings: tuple[Finding, ...]

    @property
    def verdicts(self) -> dict[Kind, PaperVerdict]:
        """What became of the paper's theory, and of its experiments."""
        return {kind: paper_verdict(self.findings, kind) for kind in Kind}

    def ranked(self, rank: str, kind: Kind | None = None) -> tuple[Finding, ...]:
        """Return the findings of a rank: core claims of the paper, ours, or side claims."""
        return tuple(
            f
            for f in self.findings
            if f.claim.rank == rank and (kind is None or f.claim.kind is kind)
        )

    @property
    def ours(self) -> dict[Verdict, int]:
        """How many of our own claims about the paper's subject came out how."""
        found = [finding.verdict for finding in self.ranked("ours")]
        return {verdict: found.count(verdict) for verdict in Verdict if verdict in found}

    @property
    def seconds(self) -> float:
        """Time the measurements took, whenever that was."""
        return math.fsum(finding.seconds for finding in self.findings)

    def finding(self, key: str) -> Finding:
        """Return what was found about a claim."""
        for one in self.findings:
            if one.claim.key == key:
                return one
        raise InputError(f"{self.study}: there is no claim {key!r} in this result.")

    def data(self, key: str) -> Mapping[str, Any]:
        """Return the data behind a claim; empty where it was not testable."""
        return self.finding(key).outcome.data

    def to_json(self) -> dict[str, Any]:
        """Return plain data, ready for `json.dumps`."""
        return {
            "study": self.study,
            "title": self.title,
            "paper": self.paper,
            "gap": self.gap,
            "verdicts": {kind.value: verdict.value for kind, verdict in self.verdicts.items()},
            "ours": {verdict.value: count for verdict, count in self.ours.items()},
            "scale": self.scale,
            "seeds": self.seeds,
            "base_seed": self.base_seed,
            "models": list(self.models),
            "sources": list(self.sources),
            "seconds": self.seconds,
            "reused": self.reused,
            "provenance": {
                "date": self.provenance.date,
                "versions": dict(self.provenance.versions),
                "hardware": self.provenance.hardware,
                "code": self.provenance.code,
            },
            "findings": [_finding_to_json(finding) for finding in self.findings],
        }


def renewed(stored: StudyResult | None, measured: StudyResult, keys: Sequence[str]) -> StudyResult:
    """Return what was measured now, and from the stored result what was not, with its origin.

    Args:
        stored: an earlier result of the study; None where there is none.
        measured: the result of a run, of all claims or of some.
        keys: the claims of the study, in order.

    Raises:
        InputError: a claim is in neither.
    """
    found = {f.claim.key: f for f in measured.findings}
    earlier = {} if stored is None else {f.claim.key: _from(stored, f) for f in stored.findings}
    missing = [key for key in keys if key not in found and key not in earlier]
    if missing:
        raise InputError(
            f"{measured.study}: {', '.join(missing)} measured neither now nor before. Run these "
            "claims as well."
        )
    models = measured.models
    if stored is not None and len(found) < len(keys):
        models = tuple(dict.fromkeys((*stored.models, *models)))
    return replace(
        measured, models=models, findings=tuple(found.get(k) or earlier[k] for k in keys)
    )


def _from(stored: StudyResult, finding: Finding) -> Finding:
    origin = Origin(
        seeds=stored.seeds,
        base_seed=stored.base_seed,
        date=stored.provenance.date,
        code=stored.provenance.code,
    )
    return replace(finding, origin=finding.origin or origin)


def result_from_json(data: object) -> StudyResult:
    """Return the result that `to_json` wrote.

    Raises:
        InputError: something is missing or of the wrong kind.
    """
    try:
        header: StudyHeader = decode(StudyHeader, data)
        listed = data.get("findings") if isinstance(data, dict) else None
        numbered = enumerate(decode(Sequence[Any], listed, "findings"))
        return StudyResult(
            **{f.name: getattr(header, f.name) for f in fields(StudyHeader)},
            findings=tuple(_finding_from_json(one, f"findings[{k}]") for k, one in numbered),
        )
    except InputError as error:
        raise InputError(
            f"this is not the result of a study: {error} "
            "Expected what `orbitlens study run --json FILE` writes."
        ) from error


def _finding_from_json(data: object, where: str) -> Finding:
    one: dict[str, Any] = decode(Mapping[str, Any], data, where)
    return Finding(
        claim=decode(Claim, one.get("claim"), f"{where}.claim"),
        outcome=outcome_from_json(one, where),
        seconds=decode(float, one.get("seconds"), f"{where}.seconds"),
        origin=decode(Origin | None, one.get("origin"), f"{where}.origin"),
    )


def _finding_to_json(finding: Finding) -> dict[str, Any]:
    claim = {f.name: getattr(finding.claim, f.name) for f in fields(Claim)}
    return {
        "claim": {k: v.value if isinstance(v, Enum) else v for k, v in claim.items()},
        "verdict": finding.verdict.value,
        "reason": finding.reason,
        "control_failed": finding.control_failed,
        "positive_found": finding.positive_found,
        "seconds": finding.seconds,
        **({} if finding.origin is None else {"origin": vars(finding.origin)}),
        **outcome_to_json(finding.outcome),
    }


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as plain data."""
    return {
        "result": None if outcome.result is None else outcome.result.to_json(),
        "control": None if outcome.control is None else outcome.control.to_json(),
        "positive": None if outcome.positive is None else outcome.positive.to_json(),
        "obstacle": outcome.obstacle,
        "data": dict(outcome.data),
    }


def outcome_from_json(data: object, where: str = "outcome") -> Outcome:
    """Return the outcome that `outcome_to_json` wrote.

    Raises:
        InputError: something is missing or of the wrong kind.
    """
    one: dict[str, Any] = decode(Mapping[str, Any], data, where)
    numbers = {
        name: None if one.get(name) is None else Estimate.from_json(one[name])
        for name in ("result", "control", "positive")
    }
    return Outcome(
        **numbers,
        obstacle=decode(str, one.get("obstacle"), f"{where}.obstacle"),
        data=decode(Mapping[str, Any], one.get("data"), f"{where}.data"),
    )


def provenance(code: str) -> Provenance:
    """Return when and with what this process runs."""
    return Provenance(
        date=datetime.now(UTC).date().isoformat(),
        versions=package_versions(),
        hardware=f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        code=code,
    )


def package_versions() -> dict[str, str]:
    """Return the versions of Python, of orbitlens and of the packages it computes with."""
    from orbitlens import __version__

    versions = {"orbitlens": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions
