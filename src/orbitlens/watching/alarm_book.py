"""Readings -> alarms: which are on, and since when.

Enters: one reading after another. Leaves: the alarms that are on. A sign must show in several
readings in a row before it is an alarm, and the alarm goes off with the first reading that could
show the sign and does not. Thresholds are those of `thresholds.py`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from orbitlens.watching.alarm import Alarm, AlarmKind, Forecast, Sureness
from orbitlens.watching.growth import steps_until
from orbitlens.watching.thresholds import DEFAULT, Thresholds
from orbitlens.watching.watch_reading import TokenReading, WatchHeader, WatchReading

Key = tuple[AlarmKind, int, int | None]
ALWAYS = {AlarmKind.FREEZING, AlarmKind.NOT_FINITE}  # shown by readings without tokens too
MOST_FORECASTS = 5
NEAR = 0.25  # of the threshold: below it growth says little of when it will be reached


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


class AlarmBook:
    """Which signs show, for how long, and which of them are alarms."""

    def __init__(self, header: WatchHeader, thresholds: Thresholds = DEFAULT) -> None:
        """Start without any alarm."""
        self.header, self.thresholds = header, thresholds
        self._showing: dict[Key, tuple[int, int]] = {}  # first step, number of readings
        self._on: dict[Key, Alarm] = {}
        self._most_written: dict[tuple[int, int], float] = {}
        self._first_massive: dict[int, float] = {}

    def update(self, reading: WatchReading) -> tuple[Alarm, ...]:
        """Take in a reading, and return the alarms that are on."""
        signs = {sign.key: sign for sign in self._signs(reading)}
        for key in [key for key in self._showing if key not in signs and _could(key, reading)]:
            del self._showing[key]
            self._on.pop(key, None)
        for key, sign in signs.items():
            since, count = self._showing.get(key, (reading.step, 0))
            self._showing[key] = (since, count + 1)
            needed = 1 if sign.kind is AlarmKind.NOT_FINITE else self.thresholds.readings
            if count + 1 >= needed:
                self._on[key] = self._alarm(sign, reading.step, since, count + 1)
        return tuple(self._on.values())

    def _alarm(self, sign: Sign, step: int, since: int, count: int) -> Alarm:
        known = self._on.get(sign.key)
        return Alarm(
            kind=sign.kind,
            layer=sign.layer,
            head=sign.head,
            place=place_name(self.header, sign.layer, sign.head),
            since=since,
            raised=step if known is None else known.raised,
            value=sign.value,
            threshold=sign.threshold,
            sure=sign.sure,
            readings=count,
            reason=sign.reason,
        )

    def forecasts(self, reading: WatchReading) -> tuple[Forecast, ...]:
        """Return the heads that will freeze soonest, if their scores go on growing."""
        limit, found = self.thresholds.freezing, []
        for layer, (values, rates) in enumerate(_with_rates(reading)):
            for head, (value, rate) in enumerate(zip(values, rates, strict=True)):
                steps = steps_until(value, rate, limit)
                if value >= NEAR * limit and 0 < steps <= self.thresholds.horizon:
                    place = place_name(self.header, layer, head)
                    found.append(Forecast(layer=layer, head=head, place=place, steps=steps))
        return tuple(sorted(found, key=lambda one: one.steps)[:MOST_FORECASTS])

    # --- signs ---

    def _signs(self, reading: WatchReading) -> Iterator[Sign]:
        yield from _not_finite(reading)
        yield from self._freezing(reading)
        if reading.tokens is not None:
            yield from self._collapse(reading.tokens)
            yield from self._dead_heads(reading.tokens)
            yield from self._massive(reading.tokens)
            yield from self._idle(reading.tokens)

    def _freezing(self, reading: WatchReading) -> Iterator[Sign]:
        limit = self.thresholds.freezing
        sharp = reading.tokens.sharpness if reading.tokens is not None else ()
        for layer, (values, rates) in enumerate(_with_rates(reading)):
            for head, (value, rate) in enumerate(zip(values, rates, strict=True)):
                if not value >= limit:
                    continue
                seen = sharp[layer][head] if sharp else math.nan
                measured = seen >= self.thresholds.sharpness
                pace = f", growing {rate:.2%} a step" if rate > 0 else ""
                also = f"; on tokens the sum of squared weights is {seen:.2f}" if measured else ""
                yield Sign(
                    kind=AlarmKind.FREEZING,
                    layer=layer,
                    head=head,
                    value=value,
                    threshold=limit,
                    sure=Sureness.MEASURED if measured else Sureness.ESTIMATED,
                    reason=f"scores of a query spread {value:.2f} times what freezes a softmax "
                    f"over {reading.n_tokens} tokens{pace}{also}",
                )

    def _collapse(self, tokens: TokenReading) -> Iterator[Sign]:
        for layer, cosine in enumerate(tokens.cosine[1:]):  # behind each layer
            if cosine >= self.thresholds.collapse:
                yield Sign(
                    kind=AlarmKind.COLLAPSE,
                    layer=layer,
                    value=cosine,
                    threshold=self.thresholds.collapse,
                    sure=Sureness.MEASURED,
                    reason=f"behind it the mean cosine between tokens is {cosine:.4f}, "
                    f"and their effective rank {tokens.effective_rank[layer + 1]:.1f}",
                )

    def _dead_heads(self, tokens: TokenReading) -> Iterator[Sign]:
        limit, share = self.thresholds.dead_head, self.thresholds.dead_share
        for layer, row in enumerate(tokens.written):
            for head, written in enumerate(row):
                most = max(self._most_written.get((layer, head), 0.0), written)
                self._most_written[layer, head] = most
                if written < limit and written < share * most:
                    yield Sign(
                        kind=AlarmKind.DEAD_HEAD,
                        layer=layer,
                        head=head,
                        value=written,
                        threshold=limit,
                        sure=Sureness.MEASURED,
                        reason=f"it writes {written:.1e} of the stream's length, and wrote "
                        f"{most:.1e} before",
                    )

    def _massive(self, tokens: TokenReading) -> Iterator[Sign]:
        limit = self.thresholds.massive
        for layer, ratio in enumerate(tokens.massive):
            first = self._first_massive.setdefault(layer, ratio)
            if first < limit <= ratio:
                position = tokens.massive_position[layer]
                yield Sign(
                    kind=AlarmKind.MASSIVE,
                    layer=layer,
                    value=ratio,
                    threshold=limit,
                    sure=Sureness.MEASURED,
                    reason=f"behind it the token at position {position} is {ratio:.0f} times as "
                    f"long as the median of its context; {first:.1f} times at first",
                )

    def _idle(self, tokens: TokenReading) -> Iterator[Sign]:
        for layer, update in enumerate(tokens.block_update):
            if update < self.thresholds.idle_layer:
                yield Sign(
                    kind=AlarmKind.IDLE_LAYER,
                    layer=layer,
                    value=update,
                    threshold=self.thresholds.idle_layer,
                    sure=Sureness.MEASURED,
                    reason=f"it changes tokens by {update:.1e} of their length",
                )


def _not_finite(reading: WatchReading) -> Iterator[Sign]:
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


def _with_rates(reading: WatchReading) -> Iterator[tuple[tuple[float, ...], tuple[float, ...]]]:
    yield from zip(reading.heads["freezing"], reading.growth["freezing"], strict=True)


def _could(key: Key, reading: WatchReading) -> bool:
    """Say whether a reading could show a sign."""
    return key[0] in ALWAYS or reading.tokens is not None


def place_name(header: WatchHeader, layer: int, head: int | None) -> str:
    """Return where an alarm is, in words."""
    name = header.name(layer)
    return name if head is None else f"{name} head {head}"
