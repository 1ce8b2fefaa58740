"""How an atlas looks in a terminal: sentences, a row a model, and what is missing."""

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from orbitlens.surveying.atlas_result import Atlas
from orbitlens.terminal.fitted_table import Column, FittedTable, text_column

SHOWN = ("layers", "heads", "encoding", "aligned", "opposed", "gathering layers", "C first",
         "C last")  # fmt: skip


def atlas_view(atlas: Atlas, console: Console) -> Iterator[RenderableType]:
    """Yield the parts of an atlas."""
    yield Text(atlas.summary())
    yield Text("")
    columns = [text_column("model", wraps=False)]
    columns += [text_column(n) if n == "encoding" else Column(n) for n in SHOWN]
    rows = [[str(row["model"]), *(_cell(row[name]) for name in SHOWN)] for row in atlas.rows()]
    yield FittedTable(columns, rows)
    missing = [
        [entry.name, entry.not_read or entry.not_run or ""]
        for entry in atlas.entries
        if entry.not_read or entry.not_run
    ]
    if missing:
        yield Text("")
        yield Text("not read, or not run", style="bold")
        yield FittedTable([text_column(wraps=False), text_column()], missing, header=False)


def _cell(value: str | int | float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
