"""A table that fits where it is printed: columns that find no room are left out and named.

Enters: columns and rows. Leaves: a Rich renderable. Rich by itself cuts cells that are too wide, so
that numbers lose digits without a sign.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

WIDTH = 80  # of a table, where there is room for more
GAP = 2  # columns of padding
LEAST_TEXT = 20  # columns to which text may shrink; longer words are folded


def view_width(console: Console) -> int:
    """Return how wide a view may be."""
    return min(WIDTH, console.width)


@dataclass(frozen=True)
class Column:
    """One column; text wraps, numbers do not."""

    name: str
    wraps: bool = False
    right: bool = True  # numbers end below one another
    style: str = ""


@dataclass(frozen=True)
class FittedTable:
    """Rows below the names of their columns; the last columns go first where room is short."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str | Text]]
    title: str = ""
    header: bool = True
    full: bool = field(default=False, kw_only=True)  # as wide as there is room

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Yield the table and, where columns are left out, a line with their names."""
        width = min(WIDTH, options.max_width)
        n = self.n_columns(width)
        if self.title:
            yield Text(self.title, style="bold")
        yield self._table(n, width)
        if n < len(self.columns):
            names = ", ".join(column.name for column in self.columns[n:])
            yield Text(f"no room in {width} columns for: {names}", style="dim")

    def n_columns(self, width: int) -> int:
        """Return how many columns fit, the first one in any case."""
        used = 0
        for k in range(len(self.columns)):
            used += self._least_width(k) + GAP
            if used > width and k > 0:
                return k
        return len(self.columns)

    def _least_width(self, k: int) -> int:
        column = self.columns[k]
        cells = [str(row[k]) for row in self.rows] + ([column.name] if self.header else [])
        if column.wraps:
            words = [word for cell in cells for word in cell.split()]
            return min(LEAST_TEXT, max(map(cell_len, words), default=0))
        return max(map(cell_len, cells), default=0)

    def _table(self, n: int, width: int) -> Table:
        table = Table(
            box=None,
            padding=(0, 1),
            header_style="bold",
            show_header=self.header,
            width=width if self.full else None,
        )
        for column in self.columns[:n]:
            table.add_column(
                Text(column.name),
                justify="right" if column.right else "left",
                no_wrap=not column.wraps,
                overflow="fold",
                style=column.style,
            )
        for row in self.rows:
            table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row[:n]))
        return table


def text_column(name: str = "", *, wraps: bool = True) -> Column:
    """Return a column of words."""
    return Column(name, wraps=wraps, right=False)
