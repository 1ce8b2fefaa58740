"""What raises each kind of alarm: which number is looked at, and from where on it is a sign.

Enters: a reading, and what the same place showed before. Leaves: signs. A rule looks at one number
of every layer or head; all rules have one shape, and stand in `RULES`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from orbitlens.watching.alarm import AlarmKind, Sureness
from orbitlens.watching.thresholds import Thresholds
from orbitlens.watching.watch_reading import ByHead, ByLayer, TokenReading, WatchReading

Place = tuple[int, int | None]  # layer, and head unless it is the whole layer
Key = tuple[AlarmKind, int, int | None]


@dataclass(frozen=True, kw_only=True)
class Sign:
    """What one reading shows of an alarm."""

    kind: AlarmKind
    layer: int
    head: int | None = None
    value: float
    threshold: float
    sure: Sureness
    reason: str

    @property
    def key(self) -> Key:
        """What tells it apart from other signs."""
        return self.kind, self.layer, self.head


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One number of a reading, with what was seen there before."""

    reading: WatchReading
    layer: int
    head: int | None
    read: float
    before: float  # what the rule keeps of this place's past, this reading included

    @property
    def tokens(self) -> TokenReading:
        """The part with tokens, which rules on tokens have."""
        assert self.reading.tokens is not None
        return self.reading.tokens


Numbers = ByLayer | ByHead | None  # None: this reading cannot show the sign


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One kind of alarm."""

    kind: AlarmKind
    sure: Sureness
    numbers: Callable[[WatchReading], Numbers]
    limit: str  # name of the threshold
    reason: Callable[[Seen], str]
    keep: Callable[[float, float], float] = max  # of what was before and what is read now
    value: Callable[[Seen], float] = lambda seen: seen.read  # what is compared
    is_low: bool = False  # whether numbers at the limit and below are the sign, or above
    only_if: Callable[[Seen, Thresholds], bool] = lambda seen, limits: True

    def seen(self, reading: WatchReading, past: dict[Place, float]) -> Iterator[Seen]:
        """Yield every place's number, and keep what later readings are compared with."""
        rows: Sequence[float | ByLayer] = self.numbers(reading) or ()
        for layer, row in enumerate(rows):
            heads: Iterable[tuple[int | None, float]]
            heads = enumerate(row) if isinstance(row, tuple) else ((None, row),)
            for head, read in heads:
                before = self.keep(past.get((layer, head), read), read)
                past[layer, head] = before
                yield Seen(reading=reading, layer=layer, head=head, read=read, before=before)

    def signs(
        self, reading: WatchReading, past: dict[Place, float], limits: Thresholds
    ) -> Iterator[Sign]:
        """Yield the places that show the sign."""
        limit = getattr(limits, self.limit)
        for seen in self.seen(reading, past):
            value = self.value(seen)
            beyond = value <= limit if self.is_low else value >= limit
            if beyond and math.isfinite(value) and self.only_if(seen, limits):
                yield Sign(
                    kind=self.kind,
                    layer=seen.layer,
                    head=seen.head,
                    value=value,
                    threshold=limit,
                    sure=self.sure,
                    reason=self.reason(seen),
                )


def _first(before: float, now: float) -> float:
    return before


def _of_tokens(name: str, *, behind: bool = False) -> Callable[[WatchReading], Numbers]:
    """Return a reader of one field of `TokenReading`; `behind`: without what enters the stack."""

    def numbers(reading: WatchReading) -> Numbers:
        if reading.tokens is None:
            return None
        found = getattr(reading.tokens, name)
        return found[1:] if behind else found

    return numbers


# --- reasons ---


def _freezing(seen: Seen) -> str:
    reading, head = seen.reading, seen.head
    assert head is not None
    rate = reading.growth["freezing"][seen.layer][head]
    pace = f", growing {rate:.2%} a step" if rate > 0 else ""
    said = (
        f"scores of a query spread {seen.read:,.0f} times what freezes a softmax over "
        f"{reading.n_tokens} tokens{pace}"
    )
    if reading.tokens is None:
        return said
    sharpness = reading.tokens.sharpness[seen.layer][head]
    also = f"; on tokens the sum of squared weights is {sharpness:.2f}"
    return said + (also if math.isfinite(sharpness) else "")


def _collapse(seen: Seen) -> str:
    cosine = seen.tokens.cosine[seen.layer + 1]
    return (
        f"behind it the directions of tokens have an effective rank of {seen.read:.2f}, and their "
        f"mean cosine is {cosine:.3f}"
    )


def _gathering(seen: Seen) -> str:
    return (
        f"behind it the mean cosine between tokens has risen to {seen.read:.3f}, from "
        f"{seen.before:.3f} at its least"
    )


def _dead_head(seen: Seen) -> str:
    return f"it writes {seen.read:.1e} of the stream's length, and wrote {seen.before:.1e} before"


def _massive(seen: Seen) -> str:
    position = seen.tokens.massive_position[seen.layer]
    return (
        f"behind it the token at position {position} is {seen.read:.0f} times as long as the "
        f"median of its context; {seen.before:.1f} times at first"
    )


RULES = (
    Rule(
        kind=AlarmKind.FREEZING,
        sure=Sureness.ESTIMATED,
        numbers=lambda reading: reading.heads["freezing"],
        limit="freezing",
        reason=_freezing,
    ),
    Rule(
        kind=AlarmKind.COLLAPSE,
        sure=Sureness.MEASURED,
        numbers=_of_tokens("direction_rank", behind=True),
        limit="collapse",
        is_low=True,
        reason=_collapse,
    ),
    Rule(
        kind=AlarmKind.GATHERING,
        sure=Sureness.MEASURED,
        numbers=_of_tokens("cosine", behind=True),
        keep=min,
        value=lambda seen: seen.read - seen.before,
        limit="gathering",
        reason=_gathering,
    ),
    Rule(
        kind=AlarmKind.DEAD_HEAD,
        sure=Sureness.MEASURED,
        numbers=_of_tokens("written"),
        limit="dead_head",
        is_low=True,
        only_if=lambda seen, limits: seen.read < limits.dead_share * seen.before,
        reason=_dead_head,
    ),
    Rule(
        kind=AlarmKind.MASSIVE,
        sure=Sureness.MEASURED,
        numbers=_of_tokens("massive"),
        keep=_first,
        limit="massive",
        only_if=lambda seen, limits: seen.before < limits.massive,
        reason=_massive,
    ),
    Rule(
        kind=AlarmKind.IDLE_LAYER,
        sure=Sureness.MEASURED,
        numbers=_of_tokens("block_update"),
        limit="idle_layer",
        is_low=True,
        reason=lambda seen: f"it changes tokens by {seen.read:.1e} of their length",
    ),
)


def not_finite(reading: WatchReading) -> Iterator[Sign]:
    """Yield layers with weights, or tokens behind them, that are not finite."""
    found = dict.fromkeys(reading.broken, "its weights hold NaN, infinity or numbers beyond 1e10")
    for layer in reading.overflowed:
        found.setdefault(layer, "with finite weights the tokens behind it are NaN or infinite")
    for layer, reason in found.items():
        yield Sign(
            kind=AlarmKind.NOT_FINITE,
            layer=layer,
            value=math.nan,
            threshold=math.nan,
            sure=Sureness.CERTAIN if layer in reading.broken else Sureness.MEASURED,
            reason=reason,
        )
