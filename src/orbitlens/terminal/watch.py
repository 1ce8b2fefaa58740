"""What `orbitlens watch` shows on a terminal."""

import math
from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from orbitlens.terminal.fitted_table import Column, FittedTable, view_width
from orbitlens.watching.thresholds import DEFAULT
from orbitlens.watching.watch_reading import WatchReading
from orbitlens.watching.watched_run import WatchedRun, run_sentences
from orbitlens.watching.words import grouped_alarms

COLUMNS = (
    Column("layer", right=False),
    Column("freezing"),
    Column("of head"),
    Column("% a step"),
    Column("C behind"),
    Column("rank"),
    Column("sharpness"),
    Column("massive"),
    Column("update"),
)
SHADES = " ·░▒▓█"
FULL = DEFAULT.freezing  # ratio with the darkest shade; the lightest is below 1
MOST_LINES = 24  # layers of the map


def watch_view(run: WatchedRun, console: Console) -> Iterator[RenderableType]:
    """Yield what happened, the map of layers over steps, the newest reading, and alarms."""
    bad = run.last is not None and bool(run.last.alarms)
    for number, sentence in enumerate(run_sentences(run)):
        yield Text(sentence, style="bold red" if bad and number else "")
    if run.last is None:
        return
    yield Text("")
    yield from _map(run, view_width(console))
    yield Text("")
    yield FittedTable(columns=COLUMNS, rows=list(_rows(run)))
    yield Text(
        "freezing: spread of scores over what freezes a softmax, largest head; C: mean cosine "
        "between tokens; rank: effective, of their directions, behind the layer",
        style="dim",
    )
    for line in grouped_alarms(run.last.alarms):
        yield Text("")
        yield Text(f"! {line}", style="red")


def _map(run: WatchedRun, width: int) -> Iterator[RenderableType]:
    """Yield a line a layer: its largest freezing ratio over steps, as shades."""
    names = [run.header.name(row) for row in range(len(run.header.layers))]
    room = max(10, width - max(map(len, names)) - 2)
    size = -(-len(run.readings) // room)
    bins = [run.readings[k : k + size] for k in range(0, len(run.readings), size)]
    for row, name in list(enumerate(names))[:MOST_LINES]:
        shades = "".join(_shade(_largest(own, row)) for own in bins)
        yield Text(f"{name:<{max(map(len, names))}}  {shades}")
    if len(names) > MOST_LINES:
        yield Text(f"{len(names) - MOST_LINES} more layers are on the page (-o FILE)", style="dim")
    first, last = run.readings[0].step, run.readings[-1].step
    yield Text(
        f"freezing over steps {first} to {last}: {SHADES[1]} below 1 to {SHADES[-1]} {FULL:g} and "
        "more, ? not finite",
        style="dim",
    )


def _largest(readings: Sequence[WatchReading], row: int) -> float:
    values = [value for reading in readings for value in reading.heads["freezing"][row]]
    return math.nan if any(map(math.isnan, values)) else max(values)


def _shade(value: float) -> str:
    if math.isnan(value):
        return "?"
    held = min(max(value, 1e-9), FULL)  # infinite ones too
    steps = math.log(held) / math.log(FULL) * (len(SHADES) - 3)
    return SHADES[1 + min(max(math.floor(steps) + 1, 0), len(SHADES) - 2)]


def _rows(run: WatchedRun) -> Iterator[list[str | Text]]:
    last = run.last
    assert last is not None
    tokens = next((r.tokens for r in reversed(run.readings) if r.tokens is not None), None)
    for row in range(len(run.header.layers)):
        ratios = last.heads["freezing"][row]
        head = max(range(len(ratios)), key=lambda h: (not math.isnan(ratios[h]), ratios[h]))
        is_on = any(alarm.layer == row for alarm in last.alarms)
        cells: list[str | Text] = [
            Text(run.header.name(row), style="red" if is_on else ""),
            _number(ratios[head], ".3g"),
            str(head),
            _number(100 * last.growth["freezing"][row][head], "+.2f"),
        ]
        if tokens is None:
            yield [*cells, *[""] * 5]
            continue
        yield [
            *cells,
            _number(tokens.cosine[row + 1], ".3f"),
            _number(tokens.direction_rank[row + 1], ".2f"),
            _number(max(tokens.sharpness[row]), ".2f"),
            _number(tokens.massive[row], ".1f"),
            _number(tokens.block_update[row], ".2g"),
        ]


def _number(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "–"
