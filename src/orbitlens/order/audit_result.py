"""Audit: a model's sense of order, as frozen dataclasses whose fields are the JSON's fields.

Enters: readings from `audit`. Leaves: a result, with a verdict that is computed from numbers and
thresholds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from orbitlens.order.blocks import Block, PositionReading
from orbitlens.order.checks import STILL, Check
from orbitlens.order.divergence import Effects, Shapley
from orbitlens.order.sensitivity import CellReading, LayerReading, SizedReading
from orbitlens.order.slices import Slices
from orbitlens.order.subject import Cell
from orbitlens.results.base import Result
from orbitlens.results.html import HtmlTable
from orbitlens.results.tidy import data_frame

if TYPE_CHECKING:
    import pandas

BLIND_BITS = 1e-9  # order sensitivity up to which a model counts as order-blind
BLIND_CHANGE = 1e-4  # the same for a model without a prediction head, relative change


class Verdict(StrEnum):
    """What a model makes of order."""

    ORDERED = "depends on order"
    BLIND = "order-blind on these inputs"  # measured, no theorem behind it
    INVARIANT = "permutation-invariant"  # S1: full attention, nothing tells positions apart
    ONE_LAYER = "order-blind: one causal layer without encoding"  # S2


@dataclass(frozen=True, kw_only=True)
class AuditModel:
    """What was audited."""

    path: str
    family: str
    kind: str
    encoding: str
    own_cell: str
    has_head: bool  # order sensitivity is in bits; otherwise a relative change
    n_layers: int
    n_parameters: int


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """On what it was audited."""

    source: str
    samples: int
    permutations: int  # of each input, at each place
    length: int
    movable: tuple[int, int]  # first and last item that moves
    asked: str  # the prediction that is read
    places: tuple[int, ...]  # where, one at a time; none where it is read off all items
    seed: int


@dataclass(frozen=True, kw_only=True)
class AuditCost:
    """What the audit took."""

    seconds: float
    forward_calls: int
    sequences: int  # that went through the model
    sequences_asked: int  # before inputs that are equal were run once
    tokens: int


@dataclass(frozen=True, kw_only=True, repr=False)
class Audit(Result):
    """An audit of a model's sense of order."""

    KIND: ClassVar[str] = "audit"
    DERIVED: ClassVar[tuple[str, ...]] = ("verdict", "summary")

    model: AuditModel
    settings: AuditSettings
    cells: dict[str, CellReading | None]  # None: see not_ablatable
    not_ablatable: dict[str, str]  # cell -> why it is not there
    effects: Effects | None  # of encoding and mask; None without all four cells
    shapley: Shapley | None  # their shares; None where there is none to give
    floor: float | None  # order sensitivity of the model without encoding and mask: rounding
    encoding_effect: float | None  # relative change of the prediction when encoding is removed
    threshold: float  # effect below which a swap counts as free
    horizon: int | None  # swaps further than this many tokens from the query are free
    layers: tuple[LayerReading, ...]
    swap_distance: tuple[SizedReading, ...]
    windows: tuple[SizedReading, ...]
    ngrams: tuple[SizedReading, ...]
    positions: tuple[PositionReading, ...]
    blocks: tuple[Block, ...]
    slices: Slices | None
    checks: tuple[Check, ...]
    cost: AuditCost
    notes: tuple[str, ...]

    @property
    def sensitivity(self) -> float:
        """Order sensitivity of the model as it is: bits, or relative change without a head."""
        reading = self.cells[self.model.own_cell]
        assert reading is not None  # a model's own cell can always be reached
        return value_of(reading)

    @property
    def verdict(self) -> Verdict:
        """What the numbers say about the model as it is."""
        if self.sensitivity > (BLIND_BITS if self.model.has_head else BLIND_CHANGE):
            return Verdict.ORDERED
        if not self.has_encoding and self.attends_in_full:
            return Verdict.INVARIANT
        if not self.has_encoding and self.model.n_layers == 1:
            return Verdict.ONE_LAYER
        return Verdict.BLIND

    @property
    def has_encoding(self) -> bool:
        """Whether anything tells positions apart, as far as removing it shows."""
        return self.encoding_effect is None or self.encoding_effect > STILL

    @property
    def attends_in_full(self) -> bool:
        """Whether the model has no mask: what order it sees is its encoding's, by construction."""
        return self.model.own_cell == Cell.PE_FULL

    # The modules that describe an audit stand on this one, so they are imported when needed.

    def summary(self) -> str:
        """Return in a sentence or two what the model makes of order."""
        from orbitlens.order.words import audit_summary

        return audit_summary(self)

    def to_pandas(self) -> "pandas.DataFrame":
        """Return one row a reading: of each cell, each layer in each cell, each size, position."""
        from orbitlens.order.views import reading_rows

        return data_frame(reading_rows(self))

    def _tables(self) -> Sequence[HtmlTable]:
        from orbitlens.order.views import audit_tables

        return audit_tables(self)

    def _figure(self, go: Any) -> Any:  # noqa: ANN401 - plotly ships no types
        from orbitlens.order.views import audit_figure

        return audit_figure(self, go)


def value_of(reading: CellReading) -> float:
    """Return the mean of a cell in the unit the model has."""
    value = reading.mean_js_bits
    if value is None:
        value = reading.mean_relative_change
    assert value is not None
    return value
