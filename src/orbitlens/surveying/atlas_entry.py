"""AtlasEntry: one model of an atlas: what its weights say, and what it does to tokens if it fits.

Enters: a model's path or name. Leaves: an `AtlasEntry`. A model that cannot be read is an entry
with its reason, and one that is not run says why.
"""

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from orbitlens.encodings.api import positions
from orbitlens.encodings.evidence import Found
from orbitlens.errors import OrbitlensError, printable
from orbitlens.running.info import ModelInfo, model_info
from orbitlens.running.inputs import n_positions
from orbitlens.running.model import Model, load
from orbitlens.scanning.api import scan
from orbitlens.scanning.scan_result import LayerScan, Orientation
from orbitlens.surveying.options import AtlasOptions
from orbitlens.tracing.api import trace
from orbitlens.tracing.options import TraceOptions
from orbitlens.tracing.trace_result import LayerTrace


@dataclass(frozen=True, kw_only=True)
class AtlasLayer:
    """One layer of a model; what was not measured is None."""

    stack: str
    layer: int
    depth: float  # of the stack's layers: 0 the first, 1 the last
    n_heads: int
    aligned: int  # heads whose two maps are aligned beyond chance
    opposed: int
    index: float  # expansion index of all heads together
    gathering: float | None  # change of ln(1 - C) by attention: below 0 it gathers directions
    cosine_before: float | None  # C, the mean cosine of tokens of a context that enter
    cosine_after: float | None
    n_massive: int | None  # tokens far longer than their context, which enter


@dataclass(frozen=True, kw_only=True)
class AtlasEntry:
    """One model: what it is, its layers, and why what is missing is missing."""

    place: str  # as it was given
    name: str
    model: ModelInfo | None  # None: it could not be read
    layers: tuple[AtlasLayer, ...]
    rotary_layers: int | None  # whose weights show a rotation; None: they cannot tell
    plain_layers: int | None  # whose weights show none
    disagreeing: int | None  # layers in which weights and config say different things
    n_tokens: int | None  # it was run on
    not_read: str | None  # why
    not_run: str | None  # why
    bytes_total: int | None
    bytes_read: int | None
    seconds: float

    @property
    def n_heads(self) -> int:
        """Heads of all layers."""
        return sum(layer.n_heads for layer in self.layers)

    def share(self, orientation: str) -> float | None:
        """Return the share of heads that are "aligned" or "opposed"."""
        if not self.n_heads:
            return None
        return sum(getattr(layer, orientation) for layer in self.layers) / self.n_heads

    @property
    def cosines(self) -> tuple[float, float] | None:
        """C of the tokens that enter the first layer and leave the last, of the last stack."""
        own = [layer for layer in self.layers if layer.stack == self.layers[-1].stack]
        if not own or own[0].cosine_before is None or own[-1].cosine_after is None:
            return None
        return own[0].cosine_before, own[-1].cosine_after

    @property
    def gathering_layers(self) -> int | None:
        """Layers whose attention gathers directions."""
        measured = [each.gathering for each in self.layers if each.gathering is not None]
        return sum(change < 0 for change in measured) if measured else None

    @property
    def n_massive(self) -> int | None:
        """Most massive tokens that enter a layer."""
        counts = [each.n_massive for each in self.layers if each.n_massive is not None]
        return max(counts, default=None)


def read_entry(place: str, options: AtlasOptions) -> AtlasEntry:
    """Read one model, and run it if it fits."""
    started = time.perf_counter()
    try:
        opened = load(place)
        scanned = scan(opened)
        evidence = positions(opened)
    except OrbitlensError as error:
        return unread(place, str(error), time.perf_counter() - started)
    found = Counter(layer.found for layer in evidence.layers)
    knows = found[Found.ROTARY] + found[Found.PLAIN] > 0
    why, traced = _traced(opened, options)
    by_place = {(layer.stack, layer.layer): layer for layer in (traced.layers if traced else ())}
    counts = Counter(layer.stack for layer in scanned.layers)
    return AtlasEntry(
        place=place,
        name=opened.name,
        model=model_info(opened.checkpoint),
        layers=tuple(
            _layer(layer, by_place.get((layer.stack, layer.layer)), counts[layer.stack])
            for layer in scanned.layers
        ),
        rotary_layers=found[Found.ROTARY] if knows else None,
        plain_layers=found[Found.PLAIN] if knows else None,
        disagreeing=sum(layer.agrees is False for layer in evidence.layers) if knows else None,
        n_tokens=None if traced is None else traced.n_tokens,
        not_read=None,
        not_run=why,
        bytes_total=scanned.cost.bytes_total,
        bytes_read=scanned.cost.bytes_read,
        seconds=time.perf_counter() - started,
    )


def unread(place: str, why: str, seconds: float = 0.0) -> AtlasEntry:
    """Return the entry of a model that could not be read."""
    return AtlasEntry(
        place=place,
        name=printable(place.rstrip("/").rpartition("/")[2] or place),
        model=None,
        layers=(),
        rotary_layers=None,
        plain_layers=None,
        disagreeing=None,
        n_tokens=None,
        not_read=why,
        not_run=None,
        bytes_total=None,
        bytes_read=None,
        seconds=seconds,
    )


def _traced(model: Model, options: AtlasOptions) -> tuple[str | None, Any]:
    """Return why a model was not run, or its trace."""
    if not options.trace:
        return "not asked for", None
    if model.checkpoint.remote is not None:
        return "it lies on the hub, and would have to be fetched whole", None
    if model.n_parameters > options.largest:
        return f"more than {options.largest:,} parameters", None
    try:
        most = n_positions(model.module.config)
        context = options.context if most is None else min(options.context, most)
        chosen = TraceOptions(max_tokens=options.max_tokens, context=context, forecasts=())
        return None, trace(model, options.text, options=chosen)
    except OrbitlensError as error:
        return str(error), None


def _layer(scanned: LayerScan, traced: LayerTrace | None, n_layers: int) -> AtlasLayer:
    kinds = Counter(head.orientation for head in scanned.heads)
    directions = None if traced is None else traced.directions
    return AtlasLayer(
        stack=scanned.stack,
        layer=scanned.layer,
        depth=scanned.layer / max(1, n_layers - 1),
        n_heads=len(scanned.heads),
        aligned=kinds[Orientation.ALIGNED],
        opposed=kinds[Orientation.OPPOSED],
        index=scanned.expansion_index,
        gathering=None if directions is None else directions.attention,
        cosine_before=None if directions is None else directions.cosine_before,
        cosine_after=None if directions is None else directions.cosine_after,
        n_massive=None if directions is None else len(directions.massive),
    )
