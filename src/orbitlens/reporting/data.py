"""ReportData: everything a report shows, as plain data with a version.

Enters: the results of scan, trace, audit and simulations as their own JSON. Leaves: `ReportData`,
to JSON and back. What could not be computed is in `missing`, by section, with the reason.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from orbitlens.errors import InputError
from orbitlens.results.codec import encode

FORMAT = "orbitlens-report"
VERSION = 2
SECTIONS = {
    "words": "In words",
    "heads": "Map of heads",
    "depth": "Through depth",
    "agreement": "Predicted · simulated · measured",
    "orbits": "Orbits",
    "order": "Sense of order",
    "slices": "Slices",
    "trust": "How sure are we",
}
DIGITS = 6  # significant, of every number in a report


@dataclass(frozen=True, kw_only=True)
class FlowFrames:
    """The simulated flow of one head: where tokens are drawn, moment by moment."""

    stack: str
    layer: int
    head: int
    times: tuple[float, ...]
    positions: tuple[tuple[tuple[float, float], ...], ...]  # moment, token, x and y
    clusters: tuple[int, ...]  # of each token at the end; -1 alone
    ending: str
    predicted: str
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class HeadSpectra:
    """What a head's maps look like, thinned evenly where they are long."""

    stack: str
    layer: int
    head: int
    rates: tuple[float, ...]  # that the rank does not force to zero, ascending
    n_rates: int  # before thinning
    eigenvalues: tuple[tuple[float, float], ...]  # of the value map V: real and imaginary part
    n_eigenvalues: int
    offsets: tuple[int, ...]  # of key behind query; empty where the encoding is not rotary
    offset_index: tuple[float, ...]  # the expansion index at each of these offsets
    offset_size: tuple[float, ...]  # the sum of moduli of the rates, over that at offset 0


@dataclass(frozen=True, kw_only=True)
class Band:
    """A control run several times: the smallest and the largest value, layer by layer."""

    runs: int
    parts: Mapping[str, tuple[tuple[float, float], ...]]  # "attention", "mlp", "norm"
    metrics: Mapping[str, tuple[tuple[float, float], ...]]


@dataclass(frozen=True, kw_only=True)
class Orbits:
    """Tokens of one context in three shared principal directions, before and after each layer."""

    stack: str
    tokens: tuple[str, ...]  # their text
    depths: tuple[str, ...]
    positions: tuple[tuple[tuple[float, float, float], ...], ...]  # depth, token, x y z
    explained: tuple[float, float, float]  # shares of the variance of directions
    n_left_out: int  # tokens of the context that are not drawn


@dataclass(frozen=True, kw_only=True)
class ModelReport:
    """One model; a result that is None has its reason in `missing`."""

    name: str
    words: tuple[str, ...]
    scan: Mapping[str, Any] | None  # the reasons of its certificates are numbers of `clauses`
    clauses: tuple[str, ...]
    trace: Mapping[str, Any] | None  # its untrained twin inside
    shuffled: Mapping[str, Any] | None  # trace of the same tokens in random order, without heads
    bands: Mapping[str, Band]  # "twin" and "shuffled", where there are such controls
    audit: Mapping[str, Any] | None
    flows: tuple[FlowFrames, ...]
    spectra: tuple[HeadSpectra, ...]
    weights_of: Mapping[str, tuple[int, ...]]  # stack -> the first layer with the same weights
    orbits: Orbits | None
    missing: Mapping[str, str]  # "scan", "trace", "twin", "shuffled", "audit", ... -> why
    notes: tuple[str, ...]  # on inputs


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """All models of a report."""

    models: tuple[ModelReport, ...]
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    format: str = field(default=FORMAT)
    version: int = field(default=VERSION)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data, numbers to six digits, ready for `json.dumps`."""
        named = {f.name: encode(getattr(self, f.name)) for f in fields(self)}
        first = {"format": named.pop("format"), "version": named.pop("version")}
        return {**first, **{name: rounded(value) for name, value in named.items()}}


def rounded(value: Any) -> Any:  # noqa: ANN401 - JSON holds anything
    """Return plain data with its numbers rounded, None for those JSON does not have.

    >>> rounded({"a": [0.123456789, float("nan")], "n": 12345678})
    {'a': [0.123457, None], 'n': 12345678}
    """
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return value


def read_report_json(file: Path) -> dict[str, Any]:
    """Return a report's JSON from a file, from `--json` or out of a report's own HTML.

    Raises:
        InputError: the file cannot be read, is no report, or one of another version.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--data {file}: cannot be read ({error}).") from error
    try:
        data = json.loads(_embedded(text))
    except ValueError as error:
        raise InputError(
            f"--data {file}: this is not JSON ({error}). Expected a file that "
            "`orbitlens report --json` wrote, or a report itself."
        ) from error
    return checked(data, str(file))


def _embedded(text: str) -> str:
    """Return the JSON inside a report's HTML; other text as it is."""
    mark = 'type="application/json" id="report-data">'
    if not text.lstrip().lower().startswith("<!doctype html") or mark not in text:
        return text
    return text.partition(mark)[2].partition("</script>")[0]


def checked(data: object, name: str) -> dict[str, Any]:
    """Return a report's JSON if its outer shape is right.

    Raises:
        InputError: it is no report, of another version, or has lost a part.
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InputError(f"--data {name}: this is no orbitlens report. Expected its JSON.")
    if data.get("version") != VERSION:
        raise InputError(
            f"--data {name}: this report is of version {data.get('version')!r}; this orbitlens "
            f"reads version {VERSION}. Make the report anew."
        )
    models = data.get("models")
    wanted = {f.name for f in fields(ModelReport)}
    whole = isinstance(models, list) and models and all(
        isinstance(model, dict) and wanted <= set(model) for model in models
    )  # fmt: skip
    if not whole or not isinstance(data.get("settings"), dict):
        raise InputError(f"--data {name}: parts of this report are missing. Make it anew.")
    return data
