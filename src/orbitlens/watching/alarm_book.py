"""Readings -> alarms: which are on, and since when.

Enters: one reading after another. Leaves: the alarms that are on. An alarm goes off with the first
reading that could show its sign and does not. Signs are those of `alarm_rules.py`, thresholds those
of `thresholds.py`.
"""

from collections.abc import Iterator

from orbitlens.watching.alarm import Alarm, AlarmKind, Forecast
from orbitlens.watching.alarm_rules import RULES, Key, Place, Sign, not_finite
from orbitlens.watching.growth import steps_until
from orbitlens.watching.thresholds import DEFAULT, Thresholds
from orbitlens.watching.watch_reading import WatchHeader, WatchReading

MOST_FORECASTS = 5
NEAR = 0.25  # of the threshold: below it growth says little of when it will be reached


class AlarmBook:
    """Which signs show, for how long, and which of them are alarms."""

    def __init__(self, header: WatchHeader, thresholds: Thresholds = DEFAULT) -> None:
        """Start without any alarm."""
        self.header, self.thresholds = header, thresholds
        self._showing: dict[Key, tuple[int, int]] = {}  # first step, number of readings
        self._on: dict[Key, Alarm] = {}
        self._past: dict[AlarmKind, dict[Place, float]] = {rule.kind: {} for rule in RULES}

    def update(self, reading: WatchReading) -> tuple[Alarm, ...]:
        """Take in a reading, and return the alarms that are on."""
        signs = {sign.key: sign for sign in self._signs(reading)}
        could = {rule.kind for rule in RULES if rule.numbers(reading) is not None}
        could.add(AlarmKind.NOT_FINITE)
        for key in [key for key in self._showing if key not in signs and key[0] in could]:
            del self._showing[key]
            self._on.pop(key, None)
        for key, sign in signs.items():
            since, count = self._showing.get(key, (reading.step, 0))
            self._showing[key] = (since, count + 1)
            needed = 1 if sign.kind is AlarmKind.NOT_FINITE else self.thresholds.readings
            if count + 1 >= needed:
                self._on[key] = self._alarm(sign, reading.step, since, count + 1)
        return tuple(self._on.values())

    def _signs(self, reading: WatchReading) -> Iterator[Sign]:
        yield from not_finite(reading)
        for rule in RULES:
            yield from rule.signs(reading, self._past[rule.kind], self.thresholds)

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
        """Return the heads whose alarm of freezing comes soonest, if scores go on growing."""
        limit, found = self.thresholds.freezing, []
        pairs = zip(reading.heads["freezing"], reading.growth["freezing"], strict=True)
        for layer, (values, rates) in enumerate(pairs):
            for head, (value, rate) in enumerate(zip(values, rates, strict=True)):
                steps = steps_until(value, rate, limit)
                if value >= NEAR * limit and 0 < steps <= self.thresholds.horizon:
                    place = place_name(self.header, layer, head)
                    found.append(Forecast(layer=layer, head=head, place=place, steps=steps))
        return tuple(sorted(found, key=lambda one: one.steps)[:MOST_FORECASTS])


def place_name(header: WatchHeader, layer: int, head: int | None) -> str:
    """Return where an alarm is, in words."""
    name = header.name(layer)
    return name if head is None else f"{name} head {head}"
