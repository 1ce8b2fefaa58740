"""Scan: the map of a model's heads, as frozen dataclasses whose fields are the JSON's fields.

Enters: readings from `layers`. Leaves: a result. Its file has the same names in the same order;
docs/json.md describes each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from orbitlens.results.base import Result
from orbitlens.results.html import HtmlTable
from orbitlens.results.tidy import data_frame
from orbitlens.running.info import Cost, ModelInfo
from orbitlens.theory.certificates import Certificate
from orbitlens.theory.rates import Rates, Regime

if TYPE_CHECKING:
    import pandas


class Orientation(StrEnum):
    """How a head's value map lies to its score map, beyond what randomly turned maps would do.

    It is a property of two maps. What the head does to tokens is measured on text (`TokenEffect`).
    """

    ALIGNED = "aligned"
    OPPOSED = "opposed"
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
class TokenEffect:
    """What a head, or all of a layer, does to the tokens of a text: the columns of a trace."""

    log_change: float  # of ln(1 - C), C the mean cosine: below 0 directions gather; heads add up
    predicted: float  # of that, by the trace's default closure
    raw_log_change: float  # of the mean squared pair distance in the raw stream


@dataclass(frozen=True, kw_only=True)
class TextInfo:
    """The text that `TokenEffect`s were measured on."""

    n_tokens: int
    n_contexts: int
    context: int  # tokens, at most
    closure: str  # which `predicted` is by


@dataclass(frozen=True, kw_only=True)
class HeadScan(Reading):
    """One head, read from its weights; at offset 0 where the encoding is rotary."""

    head: int
    orientation: Orientation
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
    on_text: TokenEffect | None
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
    on_text: TokenEffect | None  # of attention as a whole
    certificates: tuple[Certificate, ...]
    heads: tuple[HeadScan, ...]


@dataclass(frozen=True, kw_only=True, repr=False)
class Scan(Result):
    """The map of a model's heads, with what it cost and what was approximate."""

    KIND: ClassVar[str] = "scan"

    model: ModelInfo
    text: TextInfo | None  # None: read from the weights alone
    layers: tuple[LayerScan, ...]
    cost: Cost
    flags: tuple[str, ...]

    def heads(self) -> Iterator[tuple[LayerScan, HeadScan]]:
        """Go through all heads with their layers."""
        return ((layer, head) for layer in self.layers for head in layer.heads)

    # The modules that describe a scan stand on this one, so they are imported when needed.

    def summary(self) -> str:
        """Return what the scan says, in sentences built from its numbers."""
        from orbitlens.scanning.words import scan_summary

        return scan_summary(self)

    def to_pandas(self) -> "pandas.DataFrame":
        """Return one row a head: place, orientation, index, effect on text, rates, certificates."""
        from orbitlens.scanning.views import head_rows

        return data_frame(head_rows(self))

    def _tables(self) -> Sequence[HtmlTable]:
        from orbitlens.scanning.views import effect_map, index_map

        return [index_map(self)] if self.text is None else [effect_map(self), index_map(self)]

    def _figure(self, go: Any) -> Any:  # noqa: ANN401 - plotly ships no types
        from orbitlens.scanning.views import scan_figure

        return scan_figure(self, go)
