"""What a report shows, as frozen dataclasses typed down to the last number.

Enters: results of scan, trace, audit and simulations. Leaves: `ModelReport`s, which pages, tables,
pictures and JSON are made of. What could not be computed is in `missing`, by part, with the reason.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from orbitlens.order.audit_result import Audit
from orbitlens.reporting.cuts import CutReport
from orbitlens.reporting.reach import ReachReport
from orbitlens.scanning.scan_result import Scan
from orbitlens.tracing.trace_result import Trace

DIGITS = 6  # significant, of every number in a report
T = TypeVar("T")


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
class ControlBand:
    """A control run several times: the smallest and the largest value, layer by layer."""

    runs: int
    directions: Mapping[str, tuple[tuple[float, float], ...]]  # "attention", ..., "cosine"
    parts: Mapping[str, tuple[tuple[float, float], ...]]  # raw: "attention", "mlp", "norm"
    metrics: Mapping[str, tuple[tuple[float, float], ...]]


@dataclass(frozen=True, kw_only=True)
class Orbits:
    """Directions of the tokens of one context, before and after each layer."""

    stack: str
    tokens: tuple[str, ...]  # their text
    depths: tuple[str, ...]
    cosine: tuple[float, ...]  # mean over pairs of all tokens of the context, at each depth
    shared: tuple[tuple[float, ...], ...]  # depth, token: cosine with the depth's mean direction
    bearings: tuple[tuple[float, ...], ...]  # depth, token: angle around it, radians
    positions: tuple[tuple[tuple[float, float, float], ...], ...]  # principal: depth, token, x y z
    explained: tuple[float, float, float]  # shares of the variance of directions
    n_left_out: int  # tokens of the context that are not drawn


@dataclass(frozen=True, kw_only=True)
class ModelReport:
    """One model; a result that is None has its reason in `missing`."""

    name: str
    scan: Scan | None
    trace: Trace | None  # its untrained twin inside
    shuffled: Trace | None  # trace of the same tokens in random order, without heads
    bands: Mapping[str, ControlBand]  # "twin" and "shuffled", where there are such controls
    audit: Audit | None
    flows: tuple[FlowFrames, ...]
    spectra: tuple[HeadSpectra, ...]
    weights_of: Mapping[str, tuple[int, ...]]  # stack -> the first layer with the same weights
    orbits: Orbits | None
    missing: Mapping[str, str]  # "scan", "trace", "twin", "shuffled", "audit", ... -> why
    notes: tuple[str, ...]  # on inputs
    reach: ReachReport | None = None
    cut: CutReport | None = None  # where it was asked for

    def why(self, *parts: str) -> str:
        """Return why a part is missing: the reason of the first that has one."""
        reasons = [self.missing[part] for part in parts if part in self.missing]
        return reasons[0] if reasons else "it was not computed"

    @property
    def words(self) -> tuple[str, ...]:
        """The sentences of the report, made of its numbers."""
        from orbitlens.reporting.words import in_words  # stands on this module

        return tuple(in_words(self))


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """How much was computed, and on what."""

    text: str | None
    images: str | None
    tokens: str | None
    max_tokens: int
    context: int
    samples: int
    permutations: int
    flows: int | None
    controls: int
    seed: int


def rounded(value: T) -> T:
    """Return a value, dataclasses and rows of them included, with its numbers rounded.

    >>> rounded((0.123456789, {"n": 12345678}, "text"))
    (0.123457, {'n': 12345678}, 'text')
    """
    result: Any = value
    if isinstance(value, float):
        result = float(f"{value:.{DIGITS}g}") if math.isfinite(value) else value
    elif is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        result = replace(value, **{name: rounded(getattr(value, name)) for name in names})
    elif isinstance(value, Mapping):
        result = {key: rounded(item) for key, item in value.items()}
    elif isinstance(value, tuple):
        result = tuple(rounded(item) for item in value)
    same_type: T = result
    return same_type
