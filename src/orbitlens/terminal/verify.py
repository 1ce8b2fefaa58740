"""What `orbitlens verify` shows on a terminal."""

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from orbitlens.terminal.fitted_table import Column, FittedTable, text_column
from orbitlens.verifying.ledger import Ledger


def ledger_view(ledger: Ledger, console: Console) -> Iterator[RenderableType]:
    """Yield the ledger, one certificate a row, then what was broken."""
    rows = [
        [
            entry.name,
            f"{entry.held:,}",
            f"{entry.checked:,}",
            str(entry.violations),
            "–" if entry.smallest_slack is None else f"{entry.smallest_slack:.1e}",
        ]
        for entry in ledger.entries
    ]
    columns = [
        text_column("proved", wraps=False),
        Column("held in"),
        Column("checked"),
        Column("broken"),
        Column("smallest slack"),
    ]
    yield FittedTable(columns, rows)
    for violation in ledger.violations:
        yield Text(f"broken: {violation.name} by {-violation.slack:.1e}: {violation.system}")
    yield Text(ledger.summary())
