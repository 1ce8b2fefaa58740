"""Alarms: what goes wrong, where, since when, how sure that is, and what people do about it.

Enters: nothing (plain data and words). Leaves: frozen dataclasses. Advice is text: Watch changes
nothing.
"""

from dataclasses import dataclass
from enum import StrEnum


class AlarmKind(StrEnum):
    """What an alarm is about."""

    FREEZING = "freezing"  # attention sits on single tokens, and gradients no longer move it
    COLLAPSE = "collapse"  # directions of tokens become one
    DEAD_HEAD = "dead-head"  # a head writes next to nothing any more
    MASSIVE = "massive-token"  # a token grows far longer than its context
    IDLE_LAYER = "idle-layer"  # a layer no longer changes what passes through it
    NOT_FINITE = "not-finite"  # weights or states are NaN or infinite


class Sureness(StrEnum):
    """What an alarm rests on."""

    CERTAIN = "certain"  # read off the weights as they are
    MEASURED = "measured"  # seen on a batch of tokens
    ESTIMATED = "estimated"  # computed from weights and running statistics of tokens


TITLES = {
    AlarmKind.FREEZING: "attention is freezing",
    AlarmKind.COLLAPSE: "directions are collapsing",
    AlarmKind.DEAD_HEAD: "a head is dying",
    AlarmKind.MASSIVE: "a massive token was born",
    AlarmKind.IDLE_LAYER: "a layer no longer changes anything",
    AlarmKind.NOT_FINITE: "numbers are not finite",
}
ADVICE = {
    AlarmKind.FREEZING: (
        "lower the learning rate or lengthen the warm-up",
        "normalise queries and keys (QK-norm, arXiv 2010.04245)",
        "bound the spectral norms of the projections (sigma-Reparam, arXiv 2303.06296)",
        "put weight decay on W_Q and W_K, or cap the scores",
    ),
    AlarmKind.COLLAPSE: (
        "lower the learning rate, or start again from a checkpoint before it",
        "use pre-norm instead of post-norm, or a smaller initialisation of output maps",
        "see that residual sums are there, and that attention is not scaled up with depth",
    ),
    AlarmKind.DEAD_HEAD: (
        "lower weight decay on W_V and W_O",
        "start with other weights, or leave the head out: what it writes is not missed",
    ),
    AlarmKind.MASSIVE: (
        "often harmless: large models keep an attention sink there (arXiv 2402.17762)",
        "in low precision watch for overflow; weight decay, or attention with a gate or a sink of "
        "its own, prevents it",
    ),
    AlarmKind.IDLE_LAYER: (
        "scale the initialisation of output maps with depth, or scale residual branches",
        "with pre-norm the stream outgrows what late layers add: scale the norm's output down by "
        "depth (arXiv 2502.05795), or use fewer layers",
    ),
    AlarmKind.NOT_FINITE: (
        "go back to a checkpoint before this step; lower the rate, clip gradients, lengthen the "
        "warm-up",
        "in half precision use bfloat16 or loss scaling",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """One alarm that is on."""

    kind: AlarmKind
    layer: int  # row of a reading
    head: int | None  # None: the whole layer
    place: str  # in words
    since: int  # first step of the readings in a row that show it
    raised: int  # step at which it was raised
    value: float
    threshold: float
    sure: Sureness
    readings: int  # in a row that show it
    reason: str

    @property
    def title(self) -> str:
        """What goes wrong, in words."""
        return TITLES[self.kind]

    @property
    def advice(self) -> tuple[str, ...]:
        """What people do about it."""
        return ADVICE[self.kind]

    def __str__(self) -> str:
        """Return the alarm in a sentence."""
        return (
            f"{self.title}: {self.place}, since step {self.since} ({self.sure.value}, "
            f"{self.readings} {'reading' if self.readings == 1 else 'readings'}): {self.reason}"
        )


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A head that will freeze if its scores go on growing as they do."""

    layer: int
    head: int
    place: str
    steps: float  # from this reading on
