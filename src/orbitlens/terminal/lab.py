"""Runs and sweeps -> what a terminal shows.

Enters: summaries. Leaves: Rich renderables that fit 80 columns.
"""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from orbitlens.lab.summary import Interval, Row
from orbitlens.lab.sweep_result import SweepResult
from orbitlens.lab.tasks import Ceiling
from orbitlens.terminal.fitted_table import Column, FittedTable, text_column


def runs_view(rows: Sequence[Row], ceiling: Ceiling | None) -> Iterator[RenderableType]:
    """Yield the summary of runs: a table, and what order-blindness allows where it is known."""
    compared = any(row.difference is not None for row in rows)
    yield _table(rows, compared)
    if any(row.measured for row in rows):
        yield Text("")
        yield _measured_table(rows)
    if ceiling is not None:
        yield Text(
            f"\nThe best predictor that does not see order is right in {ceiling.exact_match:.1%} "
            f"of the answers and {ceiling.token_accuracy:.1%} of their tokens, at a loss of "
            f"{ceiling.loss:.3f}."
        )
    if any(row.loss.n > 1 for row in rows):
        against = " Differences are paired by seed; * excludes 0." if compared else ""
        yield Text(f"± is the 95 % interval over seeds.{against}", style="dim")


def sweep_view(result: SweepResult) -> Iterator[RenderableType]:
    """Yield a sweep: its summary in words and as a table, then the runs that failed."""
    yield Text(result.summary() + "\n")
    if result.rows:
        yield from runs_view(result.rows, None)
    for failure in result.failed:
        yield Text(f"failed: {failure.label}, seed {failure.seed}: {failure.error}", style="red")


def _table(rows: Sequence[Row], compared: bool) -> FittedTable:
    names = ["n", "right %", "loss", *(["loss - base"] if compared else []), "params", "ms/step"]
    lines = []
    for row in rows:
        cells = [str(row.loss.n), _percent(row.accuracy), _plain(row.loss)]
        if compared:
            cells.append("" if row.difference is None else _signed(row.difference.loss))
        lines.append([row.label, *cells, _count(row.parameters), f"{row.step_ms:.3g}"])
    return FittedTable([text_column("setting"), *map(Column, names)], lines, full=True)


def _measured_table(rows: Sequence[Row]) -> FittedTable:
    names = ("ln distance", "dispersion", "cosine")
    lines = [[row.label, *(_plain(value) for value in row.measured.values())] for row in rows]
    first = text_column("tokens through depth")
    return FittedTable([first, *map(Column, names)], lines, full=True)


def _plain(value: Interval) -> str:
    return f"{value.mean:.3f}" + ("" if value.half_width is None else f"±{value.half_width:.3f}")


def _percent(value: Interval) -> str:
    half = "" if value.half_width is None else f"±{100 * value.half_width:.1f}"
    return f"{100 * value.mean:.1f}{half}"


def _signed(value: Interval) -> str:
    half = "" if value.half_width is None else f"±{value.half_width:.3f}"
    return f"{value.mean:+.3f}{half}{'*' if value.excludes_zero else ''}"


def _count(number: int) -> str:
    return f"{number / 1000:.0f}K" if number >= 10_000 else str(number)
