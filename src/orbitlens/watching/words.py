"""Alarms in sentences, those of one kind together."""

from collections.abc import Iterable, Iterator

from orbitlens.watching.alarm import Alarm

MOST_PLACES = 6


def grouped_alarms(alarms: Iterable[Alarm]) -> Iterator[str]:
    """Yield a line for each kind of alarm: where, how sure, why, and what people do about it."""
    kinds: dict[str, list[Alarm]] = {}
    for alarm in alarms:
        kinds.setdefault(alarm.kind.value, []).append(alarm)
    for group in kinds.values():
        worst = max(group, key=severity)
        reason = f"{worst.reason} ({worst.how_sure})"
        said = [f"{worst.title}: {places(group)}. {worst.place}: {reason}", worst.track_record]
        said.append(f"What people do about it: {'; '.join(worst.advice)}")
        yield ". ".join(filter(None, said)) + "."


def severity(alarm: Alarm) -> float:
    """Return how far an alarm's number is beyond its threshold; large is worse."""
    if not (alarm.value > 0 and alarm.threshold > 0):  # NaN included
        return float("inf")
    ratio = alarm.value / alarm.threshold
    return max(ratio, 1 / ratio)


def places(alarms: Iterable[Alarm]) -> str:
    """Return where alarms are, the first few by name."""
    named = [alarm.place for alarm in alarms]
    more = f" and {len(named) - MOST_PLACES} more" if len(named) > MOST_PLACES else ""
    return ", ".join(named[:MOST_PLACES]) + more


def lowered(sentence: str) -> str:
    """Return a sentence that begins in lower case, to stand behind a colon."""
    return sentence[:1].lower() + sentence[1:]
