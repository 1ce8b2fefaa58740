"""Plain HTML from plain data: numbers, tables, notes; every string escaped.

Enters: JSON values. Leaves: HTML. A cell of a table keeps its full number in `data-v`.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_DESCRIBED = 3  # columns in a chart's text alternative
Row = Sequence[Any]
Model = Mapping[str, Any]  # one model of a report's JSON


def esc(value: object) -> str:
    """Return text that is safe inside an element and inside a quoted attribute.

    >>> esc("</script>")
    '&lt;/script&gt;'
    """
    return html.escape(str(value), quote=True)


def number(value: float | int | None, sign: bool = False) -> str:
    """Write a number with three digits.

    >>> number(0.123456), number(1234567), number(None), number(0.5, sign=True)
    ('0.123', '1,234,567', '–', '+0.5')
    """
    if value is None:
        return "–"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:+,}" if sign else f"{value:,}"
    text = f"{value:+.3g}" if sign else f"{value:.3g}"
    return text.replace("-", "−")


def cell(value: object) -> str:
    """Return one cell of a table; HTML lets its end go unsaid, which saves a tenth of a page."""
    if isinstance(value, bool):
        return f"<td>{'yes' if value else 'no'}"
    if value is None:
        return "<td>–"
    if isinstance(value, (int, float)):
        return f'<td data-v="{value!r}">{number(value)}'
    return f"<td>{esc(value)}"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows whose first entry names them; `name` is that of its CSV file."""

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: Sequence[Row]


@dataclass(frozen=True)
class Key:
    """One entry of a chart's legend: words, a colour of the page's, and how it is drawn."""

    words: str
    tone: str
    drawn: str = "line"  # "line", "dash", "dots", "band", "bar" or "point"


def table(found: Table) -> str:
    """Return a table whose first column names its rows."""
    head = "".join(f'<th scope="col">{esc(name)}</th>' for name in found.columns)
    body = "".join(
        f'<tr><th scope="row">{esc(first)}{"".join(cell(v) for v in rest)}'
        for first, *rest in found.rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{esc(found.caption)}">'
        f'<table data-table="{esc(found.name)}"><caption>{esc(found.caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


NUMBERS = ("The numbers behind this chart", "The numbers")  # below charts, and below small ones


def behind(content: str, words: str = NUMBERS[0]) -> str:
    """Return content that opens on demand."""
    return f"<details><summary>{esc(words)}</summary>{content}</details>"


def keys(entries: Iterable[Key]) -> str:
    """Return a legend."""
    shown = "".join(
        f'<span><i class="{esc(key.drawn)}" style="--tone:var(--{esc(key.tone)})"></i>'
        f"{esc(key.words)}</span>"
        for key in entries
    )
    return f'<p class="keys">{shown}</p>' if shown else ""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """The place of a chart: its kind, whose it is, its title, and the table with its numbers."""

    kind: str
    model: int
    title: str
    table: Table
    keys: tuple[Key, ...] = ()
    extra: str = ""
    shape: str = ""  # "tall" or "low"


def chart(one: Chart, *, after: str = "") -> str:
    """Return a figure which the page's script draws, with the numbers behind it."""
    return (
        f'<figure class="chart {esc(one.shape)}" data-chart="{esc(one.kind)}" '
        f'data-model="{one.model}" data-extra="{esc(one.extra)}">'
        f"<figcaption>{esc(one.title)}</figcaption>{keys(one.keys)}"
        f'<div class="plot" role="img" aria-label="{esc(described(one))}"></div>{after}'
        f"{behind(table(one.table), NUMBERS[one.shape == 'low'])}</figure>"
    )


def described(one: Chart) -> str:
    """Say in words what a chart shows: each column's smallest and largest value.

    >>> rows = [["0", 1.0], ["1", 3.0]]
    >>> found = Table(name="t", caption="", columns=("layer", "model"), rows=rows)
    >>> described(Chart(kind="k", model=0, title="Rank", table=found))
    'Rank. model: from 1 (0) to 3 (1). The table below has all numbers.'
    """
    said = [one.title]
    for n, name in enumerate(one.table.columns[1:], start=1):
        pairs = [(row[n], row[0]) for row in one.table.rows if isinstance(row[n], float)]
        if pairs and len(said) <= MOST_DESCRIBED:
            low, high = min(pairs), max(pairs)
            said.append(
                f"{name}: from {number(low[0])} ({low[1]}) to {number(high[0])} ({high[1]})"
            )
    return ". ".join(said) + ". The table below has all numbers."


def absent(why: str) -> str:
    """Return a line that says why a section is empty."""
    return f'<p class="absent">Not here: {esc(why)}</p>'


def items(texts: Iterable[str], name: str = "") -> str:
    """Return a list."""
    rows = "".join(f"<li>{esc(text)}</li>" for text in texts)
    return f'<ul class="{esc(name)}">{rows}</ul>' if rows else ""


def why(model: Model, *parts: str) -> str:
    """Return why a part is missing."""
    found = [model["missing"][part] for part in parts if part in model["missing"]]
    return found[0] if found else "it was not computed"
