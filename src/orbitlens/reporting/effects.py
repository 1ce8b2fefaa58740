"""What is known of every head: measured and predicted on tokens, and read from its weights.

Enters: the scan and the trace of a model. Leaves: one `HeadEffect` a head. "Gathers" and "spreads"
are said of directions, by the head's share of the change of ln(1 - C); "aligned" and "opposed" of
the head's two maps, as in a scan.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from orbitlens.reporting.data import ModelReport
from orbitlens.running.info import ModelInfo
from orbitlens.scanning.scan_result import HeadScan, LayerScan
from orbitlens.tracing.reports import CLEAR
from orbitlens.tracing.trace_result import DEFAULT_CLOSURE, HeadDirections, LayerTrace


@dataclass(frozen=True, kw_only=True)
class HeadEffect:
    """One head; None where nothing was traced."""

    key: str  # as in the page's address
    layer: LayerScan
    head: HeadScan
    traced: HeadDirections | None

    @property
    def measured(self) -> float | None:
        """Its share of attention's change of ln(1 - C)."""
        return None if self.traced is None else self.traced.share

    @property
    def predicted(self) -> float | None:
        """That share by the default closure."""
        return None if self.traced is None else self.traced.predicted[DEFAULT_CLOSURE]

    @property
    def disagrees(self) -> tuple[str, ...]:
        """Return which readings have the other sign than the measurement, where that is clear.

        As in the table of agreement, on the contexts that predictions are judged on.
        """
        if self.traced is None or abs(self.traced.judged) <= CLEAR:
            return ()
        others = {"predicted": self.predicted or 0.0, "weights": self.head.expansion_index}
        return tuple(name for name, v in others.items() if v * self.traced.judged <= 0)


def head_key(info: ModelInfo, layer: LayerScan | LayerTrace, head: int) -> str:
    """Return what the page's address calls a head: 0.11, or decoder.0.11."""
    place = f"{layer.layer}.{head}"
    return f"{layer.stack}.{place}" if len(info.stacks) > 1 else place


def head_effects(model: ModelReport) -> list[HeadEffect]:
    """Return all heads of a scanned model, in the order of the scan."""
    scan = model.scan
    if scan is None:
        return []
    traced = {
        (layer.stack, layer.layer): layer.directions.heads
        for layer in (model.trace.layers if model.trace is not None else ())
    }
    return [
        HeadEffect(
            key=head_key(scan.model, layer, head.head),
            layer=layer,
            head=head,
            traced=_at(traced.get((layer.stack, layer.layer), ()), head.head),
        )
        for layer, head in scan.heads()
    ]


def _at(heads: Sequence[HeadDirections], k: int) -> HeadDirections | None:
    return heads[k] if k < len(heads) else None


def direction_word(change: float | None) -> str:
    """Say what a head does to directions, where that is clear.

    >>> direction_word(-0.02), direction_word(0.001), direction_word(None)
    ('gathers', 'neither', 'not measured')
    """
    if change is None:
        return "not measured"
    return "neither" if abs(change) <= CLEAR else "gathers" if change < 0 else "spreads"


def own_effects(model: ModelReport) -> list[HeadEffect]:
    """Return the heads of layers whose weights are their own; shared ones count once."""
    return [
        one
        for one in head_effects(model)
        if model.weights_of[one.layer.stack][one.layer.layer] == one.layer.layer
    ]


def effects_sentence(model: ModelReport) -> list[str]:
    """Say how many heads gather directions and how many spread them, where that was measured."""
    words = [direction_word(one.measured) for one in head_effects(model)]
    known = [word for word in words if word != "not measured"]
    if not known:
        return []
    gather, spread = known.count("gathers"), known.count("spreads")
    return [
        f"Measured, {gather} of {len(known)} heads {_s('gather', gather)} directions and {spread} "
        f"{_s('spread', spread)} them by more than {CLEAR:g} of ln(1 − C); the other "
        f"{len(known) - gather - spread} do less."
    ]


def _s(verb: str, n: int) -> str:
    return f"{verb}s" if n == 1 else verb
