"""Scan: what `orbitlens scan` found, as frozen dataclasses whose fields are the JSON's fields.

Enters: readings from `headmap`. Leaves: plain data. `Scan.to_json()` writes the same names in the
same order; docs/json.md describes each.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum, StrEnum
from typing import Any

from orbitlens._shown import Shown
from orbitlens.running.info import Cost, ModelInfo
from orbitlens.theory.certificates import Certificate
from orbitlens.theory.rates import Rates, Regime


class Tendency(StrEnum):
    """Which way a head moves isotropic tokens, beyond what randomly turned maps would do."""

    SPREADS = "spreads"
    GATHERS = "gathers"
    NEUTRAL = "neutral"


@dataclass(frozen=True, kw_only=True)
class RateRange:
    """Rates in brief: per unit of depth, over all d_model directions."""

    min: float
    mean: float
    max: float


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a map does to a cloud of tokens."""

    expansion_index: float  # in [-1, 1]
    rates: RateRange
    regime: Regime


def reading_of(rates: Rates) -> dict[str, Any]:
    """Return the fields of a `Reading`, to build one or a class that extends it."""
    return {
        "expansion_index": rates.expansion_index,
        "rates": RateRange(min=rates.smallest, mean=rates.mean, max=rates.largest),
        "regime": rates.regime,
    }


@dataclass(frozen=True, kw_only=True)
class RotaryReading(Reading):
    """What a context of given length leaves of a head's rates, attention uniform."""

    context: int
    alignment: float
    survival: float  # sum of moduli of rates, in the context over at offset 0
    energy: tuple[float, ...]  # share of each frequency in the score map, fast to slow


@dataclass(frozen=True, kw_only=True)
class HeadScan(Reading):
    """One head, read from its weights; at offset 0 where the encoding is rotary."""

    head: int
    tendency: Tendency
    alignment: float  # <V, W> / (|V| |W|)
    alignment_sigmas: float  # d_model * alignment: standard deviations from randomly turned maps
    alignment_signs: tuple[int, int]  # positive and negative directions of A on the range of V
    ov_abscissa: float  # largest real part of an eigenvalue of V
    ov_radius: float
    ov_copying: float  # sum of eigenvalues of V over sum of their moduli
    ov_norm: float
    ov_speed_limit: float  # largest singular value of V
    qk_symmetry: float  # 1 symmetric, -1 antisymmetric
    qk_norm: float
    rotary: RotaryReading | None
    data_aware: Reading | None
    certificates: tuple[Certificate, ...]


@dataclass(frozen=True, kw_only=True)
class LayerScan(Reading):
    """One layer: its heads, and the sum of them."""

    layer: int
    stack: str
    relative_error: float  # standard error of the expansion index; 0 where it is exact
    alignment: float  # sum over heads of <V, W> over sum of |V| |W|
    ov_trace: float  # of the sum of value maps
    ov_abscissa: float | None  # of that sum; None: not computed (see `flags`)
    ov_radius: float | None
    ov_copying: float | None
    rotary: Reading | None
    data_aware: Reading | None
    predicted_log_change: float | None  # of mean squared pair distance, with a covariance
    certificates: tuple[Certificate, ...]
    heads: tuple[HeadScan, ...]


@dataclass(frozen=True, kw_only=True)
class Scan(Shown):
    """The map of a model's heads, with what it cost and what was approximate."""

    model: ModelInfo
    layers: tuple[LayerScan, ...]
    cost: Cost
    flags: tuple[str, ...]

    def heads(self) -> Iterator[tuple[LayerScan, HeadScan]]:
        """Go through all heads with their layers."""
        return ((layer, head) for layer in self.layers for head in layer.heads)

    def to_json(self) -> dict[str, Any]:
        """Return the scan as plain data, ready for `json.dumps`."""
        return {field.name: plain(getattr(self, field.name)) for field in fields(self)}


def plain(value: object) -> Any:  # noqa: ANN401 - JSON holds anything
    """Turn dataclasses, tuples and enums into what JSON has, field names kept."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value
