"""What `orbitlens positions --reach` shows on a terminal."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from orbitlens.encodings.reach_result import Advice, HeadReach, Reach, ReachPoint
from orbitlens.terminal.fitted_table import Column, FittedTable

MOST_HEADS = 16  # rows of heads that are shown
POINTS = (
    Column("tokens"),
    Column("times"),
    Column("predicted"),
    Column("± s.e."),
    Column("measured"),
    Column("± s.e."),
)
SCALINGS = (Column("scaling", right=False), Column("predicted, nats above as it is within"))


def reach_view(reach: Reach) -> Iterator[RenderableType]:
    """Yield losses beyond the context, heads, and scalings."""
    if reach.points:
        yield Text("")
        yield FittedTable(columns=POINTS, rows=[_point(point) for point in reach.points])
        yield Text(
            f"nats a token above a context of {reach.trained}, at the end of longer ones; "
            f"predicted from {reach.n_short} texts of that length",
            style="dim",
        )
    if reach.heads:
        yield Text("")
        columns = [Column("head", right=False), Column("unfinished"), Column("half within")]
        columns += [Column("beyond"), *(Column(f"sharp {n}") for n in reach.lengths)]
        shown = sorted(reach.heads, key=lambda head: -head.beyond)[:MOST_HEADS]
        yield FittedTable(columns=columns, rows=[_head(head) for head in shown])
        yield Text(
            "unfinished: share of scores in planes that never complete a turn in the trained "
            "context; half within: tokens that half of the attention falls on there; beyond: share "
            f"of attention further back, in {reach.lengths[-1]} tokens; sharp: T7",
            style="dim",
        )
    if reach.advice is not None:
        yield Text("")
        yield _advice(reach.advice)
    for note in reach.notes:
        yield Text(f"note: {note}", style="dim")


def _point(point: ReachPoint) -> list[str | Text]:
    numbers = (point.predicted, point.predicted_error, point.measured, point.measured_error)
    formats = ("{:+.3f}", "{:.3f}", "{:+.3f}", "{:.3f}")
    return [
        str(point.length),
        f"{point.ratio:g}",
        *("" if x is None else form.format(x) for x, form in zip(numbers, formats, strict=True)),
    ]


def _head(head: HeadReach) -> list[str | Text]:
    share = "" if head.unfinished is None else f"{head.unfinished:.0%}"
    sharp = [f"{value:.2f}" for value in head.sharpness]
    return [f"{head.layer}.{head.head}", share, str(head.half), f"{head.beyond:.0%}", *sharp]


def _advice(advice: Advice) -> FittedTable:
    rows: list[list[str | Text]] = [
        [
            Text(trial.name, style="bold green" if trial.name == advice.chosen else ""),
            f"{trial.predicted:+.3f}",
        ]
        for trial in advice.trials
    ]
    return FittedTable(columns=SCALINGS, rows=rows)
