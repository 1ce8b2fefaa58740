"""What a notebook shows of a result: sentences and tables, every string escaped, no script.

Enters: plain numbers and words. Leaves: HTML in a frame of its own, so that no style leaks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from orbitlens.draw.page import esc

STYLE = (
    "body{font:14px/1.5 system-ui,sans-serif;color:#22262E;background:#FFF;margin:0;padding:10px}"
    "table{border-collapse:collapse;margin:10px 0;font-variant-numeric:tabular-nums}"
    "caption{text-align:left;color:#636A75;padding-bottom:4px}"
    "th,td{padding:3px 9px;text-align:right;border-bottom:1px solid #E3E6EA}"
    "th:first-child{text-align:left}p{max-width:50em;margin:6px 0}"
)
MOST_ROWS = 200  # of a table; the rest is counted
ROW, LINE = 29, 22  # heights in pixels


@dataclass(frozen=True)
class Shade:
    """A cell of a table with a colour behind it."""

    text: str
    colour: str  # as CSS writes it


@dataclass(frozen=True, kw_only=True)
class HtmlTable:
    """Rows whose first entry names them."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


def frame(content: str, height: int) -> str:
    """Return a page as a frame in another page; its text is escaped, so it cannot break out.

    All of it is ASCII: a page that reads it in another encoding would change the frame's script,
    whose hash its policy names.
    """
    inside = esc(content).encode("ascii", "xmlcharrefreplace").decode("ascii")
    return (
        f'<iframe srcdoc="{inside}" style="width:100%;height:{height}px;border:0" '
        'title="orbitlens"></iframe>'
    )


def framed(summary: str, tables: Sequence[HtmlTable]) -> str:
    """Return sentences and tables as one frame."""
    body = "".join(f"<p>{esc(line)}</p>" for line in summary.splitlines())
    body += "".join(_table(table) for table in tables)
    n_rows = sum(min(len(table.rows), MOST_ROWS) + 2 for table in tables)
    height = 30 + ROW * n_rows + LINE * (len(summary) // 90 + 2)
    page = f'<!DOCTYPE html><meta charset="utf-8"><style>{STYLE}</style>{body}'
    return frame(page, min(height, 800))


def _table(table: HtmlTable) -> str:
    head = "".join(f'<th scope="col">{esc(name)}</th>' for name in table.columns)
    rows = "".join(_row(row) for row in table.rows[:MOST_ROWS])
    more = len(table.rows) - MOST_ROWS
    after = f"<p>{more:,} more rows: to_pandas() has all.</p>" if more > 0 else ""
    return (
        f"<table><caption>{esc(table.caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table>{after}"
    )


def _row(row: Sequence[object]) -> str:
    first, *rest = row
    return f'<tr><th scope="row">{esc(first)}</th>{"".join(_cell(value) for value in rest)}</tr>'


def _cell(value: object) -> str:
    if isinstance(value, Shade):
        return f'<td style="background:{esc(value.colour)}">{esc(value.text)}</td>'
    return f"<td>{esc(written(value))}</td>"


def written(value: object) -> str:
    """Return a value as a table shows it.

    >>> written(0.123456), written(-2.0), written(None), written(True)
    ('0.123', '−2', '–', 'yes')
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}".replace("-", "−")
    return str(value)
