"""Audit: what `orbitlens audit` found, as frozen dataclasses whose fields are the JSON's fields.

Enters: readings from `audit`. Leaves: plain data, one sentence in words, and a verdict that is
computed from numbers and thresholds.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from orbitlens._shown import Shown
from orbitlens.order.blocks import Block, PositionReading
from orbitlens.order.checks import STILL, Check
from orbitlens.order.divergence import Shapley
from orbitlens.order.sensitivity import CellReading, LayerReading, SizedReading
from orbitlens.order.slices import Slices
from orbitlens.order.subject import Cell
from orbitlens.scanning.scan_result import plain

BLIND_BITS = 1e-9  # order sensitivity up to which a model counts as order-blind
WILD_SHARE = 2.0  # shares beyond this say that mechanisms cancel, not what each brings
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
    has_head: bool
    n_layers: int
    n_parameters: int


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """On what it was audited."""

    source: str
    samples: int
    permutations: int
    length: int
    movable: tuple[int, int]  # first and last item that moves
    seed: int


@dataclass(frozen=True, kw_only=True)
class AuditCost:
    """What the audit took."""

    seconds: float
    forward_calls: int
    sequences: int  # that went through the model
    sequences_asked: int  # before inputs that are equal were run once
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Audit(Shown):
    """An audit of a model's sense of order."""

    model: AuditModel
    settings: AuditSettings
    cells: dict[str, CellReading | None]  # None: see not_ablatable
    not_ablatable: dict[str, str]  # cell -> why it cannot be reached
    shapley: Shapley | None
    floor: float | None  # order sensitivity of the model without encoding and mask: rounding
    encoding_effect: float | None  # relative change of the prediction when encoding is removed
    threshold: float  # effect below which a swap counts as free
    horizon: int | None  # swaps further back than this many tokens are free
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
        no_encoding = self.encoding_effect is not None and self.encoding_effect <= STILL
        if no_encoding and self.model.own_cell == Cell.PE_FULL:
            return Verdict.INVARIANT
        if no_encoding and self.model.n_layers == 1:
            return Verdict.ONE_LAYER
        return Verdict.BLIND

    @property
    def mechanisms_cancel(self) -> bool:
        """Say that the whole depends on order much less than its parts do; shares mean little."""
        shares = self.shapley
        return shares is not None and max(abs(shares.encoding), abs(shares.mask)) > WILD_SHARE

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        data: dict[str, Any] = plain(self)
        data["verdict"] = self.verdict.value
        data["summary"] = summary(self)
        return data


def value_of(reading: CellReading) -> float:
    """Return the mean of a cell in the unit the model has."""
    value = reading.mean_js_bits
    if value is None:
        value = reading.mean_relative_change
    assert value is not None
    return value


# --- in words --------------------------------------------------------------------------------

ENCODINGS = {
    "absolute": "absolute position encoding",
    "rotary": "rotary encoding",
    "alibi": "ALiBi",
    "t5-bias": "relative bias",
    "disentangled": "relative position terms",
}


def summary(audit: Audit) -> str:
    """Say in a sentence or two what was found."""
    if audit.verdict is not Verdict.ORDERED:
        return _blind(audit)
    shares = _shares(audit)
    horizon = _horizon(audit)
    return f"{shares}{'; ' + horizon if horizon else ''}."


def _blind(audit: Audit) -> str:
    if audit.verdict is Verdict.INVARIANT:
        return (
            "This model is permutation-invariant: it attends in full and nothing in it tells "
            "positions apart (S1)."
        )
    if audit.verdict is Verdict.ONE_LAYER:
        return (
            "This model cannot tell orders apart: one causal layer without an encoding sees the "
            "earlier tokens as a set (S2)."
        )
    return (
        "The prediction does not depend on the order of the earlier tokens, on these inputs; that "
        "is measured, not proved."
    )


def _shares(audit: Audit) -> str:
    if audit.shapley is None:
        return (
            f"Shuffling earlier tokens moves the prediction by {_amount(audit)}; its mechanisms "
            "cannot be told apart"
        )
    if audit.mechanisms_cancel:
        return _cancelled(audit)
    name = ENCODINGS[audit.model.encoding]
    encoding, mask = 100 * audit.shapley.encoding, 100 * audit.shapley.mask
    if audit.encoding_effect is not None and audit.encoding_effect <= STILL:
        return (
            f"All of this model's sense of order ({_amount(audit)}) comes from the causal mask; "
            "no position encoding acts"
        )
    if audit.model.own_cell == Cell.PE_FULL:
        return f"All of this model's sense of order ({_amount(audit)}) comes from the {name}"
    text = (
        f"{encoding:.0f} % of this model's sense of order ({_amount(audit)}) comes from the "
        f"{name}, {mask:.0f} % from the causal mask"
    )
    if min(encoding, mask) < 0:
        text += " (a negative share: it lowers what the other brings)"
    return text


def _cancelled(audit: Audit) -> str:
    parts = {Cell.PE_FULL: "its mask", Cell.NOPE_CAUSAL: "its encoding"}
    values = {
        name: value_of(reading)
        for cell, name in parts.items()
        if (reading := audit.cells[cell.value]) is not None
    }
    name = max(values, key=lambda key: values[key])
    return (
        f"Shuffling earlier tokens moves the prediction by only {_amount(audit)}; without {name} "
        f"it would move by {values[name]:.2g}. What one mechanism tells about order the other "
        "undoes, so shares mean little"
    )


def _amount(audit: Audit) -> str:
    if audit.model.has_head:
        return f"{audit.sensitivity:.3g} bits"
    return f"{100 * audit.sensitivity:.3g} % of the output"


def _horizon(audit: Audit) -> str:
    if audit.model.kind == "image" or audit.horizon is None:
        return ""
    if audit.horizon == 0:
        return "no single swap of neighbours moves the prediction much"
    return f"it can no longer tell swaps of neighbours apart beyond {audit.horizon} tokens back"
