"""Panels of a watched run: loss, heads over steps, alarms on a time line, directions by depth.

Enters: a `WatchedRun`. Leaves: panels, drawn on a page or as pictures. A long run is shown in bins
of steps, each by its largest number; a model of many heads by layers, each by its largest head.
"""

import math
from collections.abc import Sequence

from orbitlens.draw.figure import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    SKY,
    YELLOW,
    Curve,
    Heat,
    Level,
    Panel,
)
from orbitlens.watching.alarm import AlarmKind
from orbitlens.watching.thresholds import DEFAULT
from orbitlens.watching.watch_reading import ByHead, WatchReading
from orbitlens.watching.watched_run import AlarmEpisode, WatchedRun

MOST_COLUMNS = 120  # readings side by side
MOST_ROWS = 64  # heads one below the other; more are shown by layers
DOUBLINGS = float(round(math.log2(DEFAULT.freezing)))  # from a ratio of 1 to an alarm
MOST_EPISODES = 24  # rows of the time line
COLOURS = {
    AlarmKind.FREEZING: BLUE,
    AlarmKind.COLLAPSE: ORANGE,
    AlarmKind.GATHERING: SKY,
    AlarmKind.DEAD_HEAD: PINK,
    AlarmKind.MASSIVE: YELLOW,
    AlarmKind.IDLE_LAYER: GREEN,
    AlarmKind.NOT_FINITE: GREY,
}
LABELS = {
    AlarmKind.FREEZING: "attention freezing",
    AlarmKind.COLLAPSE: "directions collapsed",
    AlarmKind.GATHERING: "directions gathering",
    AlarmKind.DEAD_HEAD: "head dying",
    AlarmKind.MASSIVE: "massive token",
    AlarmKind.IDLE_LAYER: "layer idle",
    AlarmKind.NOT_FINITE: "not finite",
}


def loss_panel(run: WatchedRun) -> Panel | None:
    """Return the loss over steps, with the first alarm of each kind."""
    known = [r for r in run.readings if r.loss is not None and math.isfinite(r.loss)]
    if len(known) < 2:
        return None
    first: dict[AlarmKind, int] = {}
    for one in run.episodes():
        first.setdefault(one.alarm.kind, one.raised)
    together: dict[int, list[AlarmKind]] = {}
    for kind, step in first.items():
        together.setdefault(step, []).append(kind)
    levels = [
        Level(
            at=float(step),
            label=", ".join(LABELS[kind] for kind in kinds),
            vertical=True,
            colour=COLOURS[kinds[0]],
        )
        for step, kinds in together.items()
    ]
    curve = Curve(x=[float(r.step) for r in known], y=[r.loss for r in known], label="loss")
    return Panel(layers=[*levels, curve], x_label="step", y_label="loss", legend=False)


def heads_panel(run: WatchedRun) -> Panel:
    """Return the freezing ratio of every head over steps, as colours: log2, 0 at a ratio of 1."""
    bins = _bins(run.readings)
    n_heads = sum(layer.n_heads for layer in run.header.layers)
    by_layer = n_heads > MOST_ROWS
    columns = [_largest([_column(r.heads["freezing"], by_layer) for r in own]) for own in bins]
    names = [
        run.header.name(row) if by_layer else f"{run.header.name(row)} head {head}"
        for row, layer in enumerate(run.header.layers)
        for head in range(1 if by_layer else layer.n_heads)
    ]
    heat = Heat(
        values=[[_log2(value) for value in row] for row in zip(*columns, strict=True)],
        x_names=[str(own[-1].step) for own in bins],
        y_names=names,
        limits=(-DOUBLINGS, DOUBLINGS),
        colours="signed",
        bar=f"log₂ of the ratio{', largest head of a layer' if by_layer else ''}",
    )
    return Panel(layers=[heat], x_label="step")


def _log2(value: float | None) -> float | None:
    return None if value is None else math.log2(max(value, 2.0**-30))


def cosine_panel(run: WatchedRun) -> Panel | None:
    """Return C, the mean cosine between tokens, by depth over steps."""
    seen = [reading for reading in run.readings if reading.tokens is not None]
    if not seen:
        return None
    bins = _bins(seen)
    columns = [_largest([r.tokens.cosine for r in own if r.tokens is not None]) for own in bins]
    names = ["into the first layer", *(f"behind {run.header.name(k)}" for k in range(_depth(run)))]
    heat = Heat(
        values=[list(row) for row in zip(*columns, strict=True)],
        x_names=[str(own[-1].step) for own in bins],
        y_names=names,
        limits=(0.0, 1.0),
        bar="C",
    )
    return Panel(layers=[heat], x_label="step")


def rank_curves(run: WatchedRun) -> Panel | None:
    """Return the effective rank of directions at some depths over steps, and where alarms begin."""
    seen = [(reading.step, reading.tokens) for reading in run.readings if reading.tokens]
    if len(seen) < 2:
        return None
    depth = _depth(run)
    chosen = sorted({0, depth // 3, 2 * depth // 3, depth})
    curves = [
        Curve(
            x=[float(step) for step, _ in seen],
            y=[tokens.direction_rank[k] for _, tokens in seen],
            label="into the first layer" if k == 0 else f"behind {run.header.name(k - 1)}",
            colour=colour,
            markers=True,
        )
        for k, colour in zip(chosen, (SKY, BLUE, GREEN, ORANGE), strict=False)
    ]
    alarm = Level(at=DEFAULT.collapse, label="alarm", colour=ORANGE)
    return Panel(layers=[alarm, *curves], x_label="step", y_label="effective rank", y_log=True)


def timeline_panel(run: WatchedRun) -> Panel | None:
    """Return from when to when alarms were on, those of one kind and layer as one row."""
    groups: dict[tuple[AlarmKind, int], list[AlarmEpisode]] = {}
    for one in run.episodes():
        groups.setdefault((one.alarm.kind, one.alarm.layer), []).append(one)
    if not groups:
        return None
    shown = list(groups.items())[:MOST_EPISODES]
    layers: list[Curve] = []
    named: set[AlarmKind] = set()
    last = float(run.readings[-1].step)
    room = 0.006 * max(last - run.readings[0].step, 1.0)
    for row, ((kind, _), own) in enumerate(shown):
        for start, end in _joined(own):
            layers.append(
                Curve(
                    x=[float(start), max(float(end), start + room)],
                    y=[-float(row)] * 2,
                    label="" if kind in named else LABELS[kind],
                    colour=COLOURS[kind],
                    width=9.0,
                )
            )
            named.add(kind)
    ticks = [
        (-float(row), run.header.name(layer) + _heads_of(own))
        for row, ((_, layer), own) in enumerate(shown)
    ]
    return Panel(
        layers=layers,
        x_label="step",
        x_range=(float(run.readings[0].step), last + room),
        y_range=(-len(shown) + 0.4, 0.6),
        y_ticks=ticks,
    )


def _heads_of(episodes: Sequence[AlarmEpisode]) -> str:
    heads = {one.alarm.head for one in episodes}
    return "" if heads == {None} else f" ({len(heads)})"


def _joined(episodes: Sequence[AlarmEpisode]) -> list[tuple[int, int]]:
    """Return the spans of steps in which any of some alarms was on."""
    spans: list[tuple[int, int]] = []
    for start, end in sorted((one.since, one.until) for one in episodes):
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans


def _depth(run: WatchedRun) -> int:
    return len(run.header.layers)


def _bins(readings: Sequence[WatchReading]) -> list[Sequence[WatchReading]]:
    size = -(-len(readings) // MOST_COLUMNS) or 1
    return [readings[k : k + size] for k in range(0, len(readings), size)]


def _column(rows: ByHead, by_layer: bool) -> list[float]:
    if by_layer:
        return [_most(row) for row in rows]
    return [value for row in rows for value in row]


def _largest(columns: Sequence[Sequence[float]]) -> list[float | None]:
    found = [_most(values) for values in zip(*columns, strict=True)]
    return [value if math.isfinite(value) else None for value in found]


def _most(values: Sequence[float]) -> float:
    return max((v for v in values if not math.isnan(v)), default=math.nan)
