"""What `orbitlens explain` shows on a terminal."""

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from orbitlens.explaining.explanation import Explanation


def explain_view(explanation: Explanation, console: Console) -> Iterator[RenderableType]:
    """Yield the explanation in sentences, then what it does not show."""
    for line in explanation.summary().splitlines():
        yield Text(line)
    for caveat in explanation.caveats:
        yield Text(f"note: {caveat}", style="dim")
