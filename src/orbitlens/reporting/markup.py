"""Plain HTML from plain data: numbers, tables, notes; every string escaped.

Enters: numbers and words. Leaves: HTML. A cell of a table keeps its full number in `data-v`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orbitlens.draw.page import esc

Value = str | float | int | bool | None
Row = Sequence[Value]
NUMBERS = ("The numbers behind this chart", "The numbers")  # below charts, and below small ones


def number(value: float | int | None, sign: bool = False) -> str:
    """Write a number with three digits.

    >>> number(0.123456), number(1234567), number(None), number(0.5, sign=True)
    ('0.123', '1,234,567', '–', '+0.5')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:+,}" if sign else f"{value:,}"
    text = f"{value:+.3g}" if sign else f"{value:.3g}"
    return text.replace("-", "−")


def cell(value: Value) -> str:
    """Return one cell of a table; HTML lets its end go unsaid, which saves a tenth of a page."""
    if isinstance(value, bool):
        return f"<td>{'yes' if value else 'no'}"
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "<td class=none>–"
    if isinstance(value, int | float):
        return f'<td data-v="{value!r}">{number(value)}'
    return f"<td>{esc(value)}"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows whose first entry names them; `name` is that of its CSV file."""

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: Sequence[Row]
    heads: tuple[str, ...] = ()  # of each row, where rows are heads: as in the page's address

    def column(self, name: str) -> list[float | None]:
        """Return the numbers of a column; None where there is none."""
        k = self.columns.index(name)
        return [v if isinstance(v, int | float) else None for v in (row[k] for row in self.rows)]


def table(data: Table) -> str:
    """Return a table whose first column names its rows."""
    head = "".join(f'<th scope="col">{esc(name)}</th>' for name in data.columns)
    opened = [f'<tr data-head="{esc(key)}">' for key in data.heads] or ["<tr>"] * len(data.rows)
    body = "".join(
        f'{tr}<th scope="row">{esc(first)}{"".join(cell(v) for v in rest)}'
        for tr, (first, *rest) in zip(opened, data.rows, strict=True)
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{esc(data.caption)}">'
        f'<table data-table="{esc(data.name)}"><caption>{esc(data.caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def behind(content: str, words: str = NUMBERS[0]) -> str:
    """Return content that opens on demand."""
    return f"<details><summary>{esc(words)}</summary>{content}</details>"


def absent(why: str) -> str:
    """Return a line that says why a section is empty."""
    return f'<p class="absent">Not here: {esc(why)}</p>'


def note(text: str) -> str:
    """Return a remark below what it is about."""
    return f'<p class="note">{esc(text)}</p>'


def items(texts: Iterable[str], name: str = "") -> str:
    """Return a list."""
    rows = "".join(f"<li>{esc(text)}</li>" for text in texts)
    return f'<ul class="{esc(name)}">{rows}</ul>' if rows else ""
