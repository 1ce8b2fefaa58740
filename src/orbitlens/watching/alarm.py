"""Alarms: what goes wrong, where, since when, how sure that is, and what people do about it.

Enters: nothing (plain data and words). Leaves: frozen dataclasses. Advice is text: Watch changes
nothing. How often an alarm of a kind was right is in evidence.json, which the experiment of
docs/watch.md writes.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files


class AlarmKind(StrEnum):
    """What an alarm is about."""

    FREEZING = "freezing"  # scores grow beyond what sound runs have
    COLLAPSE = "collapse"  # directions of tokens become one
    GATHERING = "gathering"  # they were apart, and come together
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
    AlarmKind.COLLAPSE: "directions have collapsed",
    AlarmKind.GATHERING: "directions are gathering",
    AlarmKind.DEAD_HEAD: "a head is dying",
    AlarmKind.MASSIVE: "a massive token was born",
    AlarmKind.IDLE_LAYER: "a layer no longer changes anything",
    AlarmKind.NOT_FINITE: "numbers are not finite",
}
_AGAINST_COLLAPSE = (
    "lower the learning rate, by much, from a checkpoint before it",
    "lengthen the warm-up; use pre-norm instead of post-norm",
    "see that residual sums are there, and that attention is not scaled up with depth",
)
ADVICE = {
    AlarmKind.FREEZING: (
        "lower the learning rate or lengthen the warm-up",
        "normalise queries and keys (QK-norm, arXiv 2010.04245)",
        "bound the spectral norms of the projections (sigma-Reparam, arXiv 2303.06296)",
        "put weight decay on W_Q and W_K, or cap the scores",
    ),
    AlarmKind.COLLAPSE: _AGAINST_COLLAPSE,
    AlarmKind.GATHERING: _AGAINST_COLLAPSE,
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

    @property
    def track_record(self) -> str:
        """How often this kind of alarm was right in test runs; empty at another threshold."""
        known = evidence().get(self.kind)
        return str(known) if known is not None and known.threshold == self.threshold else ""

    def __str__(self) -> str:
        """Return the alarm in a sentence."""
        return (
            f"{self.title}: {self.place}, since step {self.since} ({self.how_sure}): {self.reason}"
        )

    @property
    def how_sure(self) -> str:
        """What it rests on, and for how many readings in a row."""
        times = "reading" if self.readings == 1 else "readings in a row"
        return f"{self.sure.value}, {self.readings} {times}"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What alarms of one kind did in runs that no threshold was learned on."""

    threshold: float
    failed: int  # runs
    in_time: int  # of these: with the alarm before the loss left its best, or learning was overdue
    sound: int  # runs
    false: int  # of these: with the alarm at any step

    def __str__(self) -> str:
        """Return it in a sentence."""
        return (
            f"In test runs this alarm came in time in {self.in_time} of {self.failed} that failed "
            f"({self.in_time / self.failed:.0%}), and in {self.false} of {self.sound} sound ones "
            f"({self.false / self.sound:.1%})"
        )


@cache
def evidence() -> dict[AlarmKind, Evidence]:
    """Return what is known of each kind of alarm at its default threshold."""
    stored = json.loads((files(__package__) / "evidence.json").read_text(encoding="utf-8"))
    return {AlarmKind(kind): Evidence(**known) for kind, known in stored.items()}


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A head that will freeze if its scores go on growing as they do."""

    layer: int
    head: int
    place: str
    steps: float  # from this reading on
