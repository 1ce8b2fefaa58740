"""Plain HTML from plain data: numbers, tables, notes; every string escaped.

Enters: JSON values. Leaves: HTML. A cell of a table keeps its full number in `data-v`.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
    """Return one cell of a table."""
    if isinstance(value, bool):
        return f"<td>{'yes' if value else 'no'}</td>"
    if value is None:
        return '<td class="n">–</td>'
    if isinstance(value, (int, float)):
        return f'<td class="n" data-v="{value!r}">{number(value)}</td>'
    return f"<td>{esc(value)}</td>"


def table(caption: str, columns: Sequence[str], rows: Iterable[Row]) -> str:
    """Return a table whose first column names its rows."""
    head = "".join(f'<th scope="col">{esc(name)}</th>' for name in columns)
    body = "".join(
        f'<tr><th scope="row">{esc(first)}</th>{"".join(cell(v) for v in rest)}</tr>'
        for first, *rest in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{esc(caption)}"><table>'
        f"<caption>{esc(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
        "</table></div>"
    )


def behind(content: str, words: str = "The numbers behind this chart") -> str:
    """Return content that opens on demand."""
    return f"<details><summary>{esc(words)}</summary>{content}</details>"


def chart(kind: str, model: int, label: str, *, tall: bool = False, extra: str = "") -> str:
    """Return the place of a chart, which the page's script draws from the data."""
    return (
        f'<figure class="chart{" tall" if tall else ""}" data-chart="{esc(kind)}" '
        f'data-model="{model}" data-extra="{esc(extra)}"><figcaption>{esc(label)}</figcaption>'
        f'<div class="plot" role="img" aria-label="{esc(label)}"></div></figure>'
    )


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
