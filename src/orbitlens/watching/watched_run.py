"""The result of `watched`: a whole run, finished or not, as its readings tell it.

Enters: a header and readings. Leaves: a `WatchedRun`: alarms from when to when, tables, figures.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from orbitlens.results.base import Result
from orbitlens.results.html import HtmlTable
from orbitlens.results.tidy import data_frame
from orbitlens.watching.alarm import Alarm
from orbitlens.watching.fitting import check_readings
from orbitlens.watching.thresholds import DEFAULT
from orbitlens.watching.watch_reading import WatchHeader, WatchReading
from orbitlens.watching.words import places, severity

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True)
class AlarmEpisode:
    """One alarm, from when to when it was on."""

    alarm: Alarm  # as it was when it was worst
    since: int
    raised: int
    until: int  # last reading that showed it
    is_on: bool  # in the newest reading


@dataclass(frozen=True, kw_only=True, repr=False)
class WatchedRun(Result):
    """Readings of a run, in the order of its steps."""

    KIND: ClassVar[str] = "watch"

    name: str  # of the record or the folder
    header: WatchHeader
    readings: tuple[WatchReading, ...]

    def __post_init__(self) -> None:
        """Refuse readings that do not fit the header.

        Raises:
            ResultError: with what does not fit.
        """
        check_readings(self.header, self.readings)

    @property
    def last(self) -> WatchReading | None:
        """The newest reading."""
        return self.readings[-1] if self.readings else None

    def episodes(self) -> tuple[AlarmEpisode, ...]:
        """Return every alarm of the run, in the order in which they were raised."""
        found: dict[tuple[str, int, int | None, int], list[tuple[int, Alarm]]] = {}
        for reading in self.readings:
            for alarm in reading.alarms:
                key = (alarm.kind.value, alarm.layer, alarm.head, alarm.raised)
                found.setdefault(key, []).append((reading.step, alarm))
        newest = self.readings[-1].step if self.readings else 0
        episodes = [
            AlarmEpisode(
                alarm=max((alarm for _, alarm in seen), key=severity),
                since=seen[0][1].since,
                raised=seen[0][1].raised,
                until=seen[-1][0],
                is_on=seen[-1][0] == newest,
            )
            for seen in found.values()
        ]
        return tuple(sorted(episodes, key=lambda one: (one.raised, one.since)))

    def summary(self) -> str:
        """Return what happened in the run, in sentences."""
        return " ".join(run_sentences(self))

    def to_pandas(self) -> "pandas.DataFrame":
        """Return one row a head and reading, with the numbers of its layer where tokens ran."""
        return data_frame(_rows(self))

    def _tables(self) -> Sequence[HtmlTable]:
        rows = [
            [one.alarm.title, one.alarm.place, one.since, one.until, one.alarm.reason]
            for one in self.episodes()
        ]
        columns = ["alarm", "where", "since", "until", "why"]
        return [HtmlTable(caption="Alarms", columns=columns, rows=rows)]

    def _figure(self, go: Any) -> Any:  # noqa: ANN401 - plotly ships no types
        """Return the freezing ratio of every head over steps."""
        steps = [reading.step for reading in self.readings]
        names = [
            f"{self.header.name(row)} head {head}"
            for row, layer in enumerate(self.header.layers)
            for head in range(layer.n_heads)
        ]
        columns = [
            [value for row in reading.heads["freezing"] for value in row]
            for reading in self.readings
        ]
        values = list(zip(*columns, strict=True))
        shown = [[math.log2(max(v, 1e-9)) for v in row] for row in values]
        most = math.log2(DEFAULT.freezing)
        drawn = go.Figure(go.Heatmap(x=steps, y=names, z=shown, zmin=-most, zmax=most))
        drawn.update_layout(title="Spread of scores over what freezes a softmax, log2")
        drawn.update_xaxes(title="step")
        return drawn


def run_sentences(run: WatchedRun) -> Iterator[str]:
    """Yield what happened in a run."""
    last = run.last
    if last is None:
        yield f"{run.header.model}: no reading yet."
        return
    n_heads = sum(layer.n_heads for layer in run.header.layers)
    loss = "" if last.loss is None else f", loss {last.loss:.3f}"
    yield (
        f"{run.header.model}: {len(run.readings)} readings of {len(run.header.layers)} layers and "
        f"{n_heads} heads, steps {run.readings[0].step} to {last.step}{loss}."
    )
    episodes = run.episodes()
    if not episodes:
        yield "No alarm was raised."
    kinds = dict.fromkeys(one.alarm.kind for one in episodes)
    for kind in kinds:
        own = [one for one in episodes if one.alarm.kind is kind]
        on = sum(one.is_on for one in own)
        state = f"{on} on now" if on else "none on now"
        yield (
            f"{own[0].alarm.title.capitalize()}: first at step {own[0].raised} "
            f"({places(one.alarm for one in own if one.raised == own[0].raised)}), "
            f"{len(own)} in all, {state}."
        )
    for one in last.expected[:1]:
        yield f"{one.place.capitalize()}: at this pace an alarm in about {one.steps:.0f} steps."
    yield from last.notes


def _rows(run: WatchedRun) -> Iterator[dict[str, object]]:
    for reading in run.readings:
        tokens = reading.tokens
        for row, layer in enumerate(run.header.layers):
            for head in range(layer.n_heads):
                place: dict[str, object] = {
                    "step": reading.step,
                    "loss": reading.loss,
                    "stack": layer.stack,
                    "layer": layer.number,
                    "head": head,
                }
                place |= {name: values[row][head] for name, values in reading.heads.items()}
                if tokens is not None:
                    place |= {
                        "cosine": tokens.cosine[row],
                        "direction_rank": tokens.direction_rank[row],
                        "sharpness": tokens.sharpness[row][head],
                        "written": tokens.written[row][head],
                        "block_update": tokens.block_update[row],
                    }
                yield place
