"""The alarms of `Watch` in logged runs: each rule's number by step, and which alarms were raised.

Enters: logged runs, which hold whole readings of `Watch`. Leaves: courses of the library's own
rules, and the library's own alarms at any thresholds.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from _watch_judging import Course

from orbitlens.results.codec import decode
from orbitlens.watching.alarm import AlarmKind
from orbitlens.watching.alarm_book import AlarmBook
from orbitlens.watching.alarm_rules import RULES, Place, Rule
from orbitlens.watching.thresholds import DEFAULT, Thresholds
from orbitlens.watching.watch_reading import WatchedLayer, WatchHeader, WatchReading

LEARNED = (AlarmKind.COLLAPSE, AlarmKind.GATHERING, AlarmKind.FREEZING)  # thresholds learned here


def readings(run: Mapping[str, Any]) -> list[WatchReading]:
    """Return the readings of a run, without the alarms of the day."""
    stored = [{**line, "alarms": [], "expected": []} for line in run["watched"]]
    return [decode(WatchReading, line, "reading") for line in stored]


def alarm_courses(run: Mapping[str, Any]) -> dict[str, Course]:
    """Return the number of each learned alarm by step, larger for worse."""
    found = readings(run)
    return {
        rule.kind.value: Course(steps=run["at"], values=_worst(rule, found))
        for rule in RULES
        if rule.kind in LEARNED
    }


def _worst(rule: Rule, found: list[WatchReading]) -> list[float]:
    """Return the worst value over layers and heads; infinite where values are not finite."""
    past: dict[Place, float] = {}
    sign = -1.0 if rule.is_low else 1.0
    return [
        math.inf
        if reading.broken or reading.tokens is None
        else max(sign * rule.value(seen) for seen in rule.seen(reading, past))
        for reading in found
    ]


def with_learned(limits: Mapping[str, float]) -> Thresholds:
    """Return the default thresholds with some of them replaced."""
    return replace(DEFAULT, **limits)


def first_alarms(run: Mapping[str, Any], thresholds: Thresholds = DEFAULT) -> dict[AlarmKind, int]:
    """Return the step at which `Watch` raised its first alarm of each kind."""
    found = readings(run)
    sizes = [len(row) for row in found[0].heads["freezing"]]
    layers = [WatchedLayer(stack="model", number=k, n_heads=n) for k, n in enumerate(sizes)]
    header = WatchHeader(model="run", layers=tuple(layers), every=1, tokens_every=1)
    book = AlarmBook(header, thresholds)
    raised: dict[AlarmKind, int] = {}
    for reading in found:
        for alarm in book.update(reading):
            raised.setdefault(alarm.kind, reading.step)
    return raised
