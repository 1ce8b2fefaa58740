"""What all commands share: where results go, how they are written, and the progress bar.

Nothing heavy is imported before it is needed: `orbitlens --help` passes through here.
"""

import os
import re
import sys
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orbitlens.errors import InputError, printable
from orbitlens.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.console import Console, RenderableType

JsonOption = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write the result as JSON; - prints it."),
]

WorkersOption = Annotated[
    int | None, typer.Option(metavar="N", help="Processes; all cores if not given.")
]
ClusterOption = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="A Dask scheduler to run on instead.")
]


def write_json(data: dict[str, Any], file: Path) -> None:
    """Write JSON whole or not at all: to a temporary file beside the target, then renamed."""
    from orbitlens.results.codec import dumps

    text = dumps(data)
    if str(file) == "-":
        typer.echo(text)  # JSON escapes whatever is not ASCII
        return
    try:
        if file.exists() and not file.is_file():  # a device or a pipe: nothing to keep whole
            file.write_text(text + "\n", encoding="utf-8")
        else:
            write_whole(file.resolve(), (text + "\n").encode())
    except OSError as error:
        raise InputError(f"{file}: the result cannot be written ({error}).") from error


def show(
    result: Any,  # noqa: ANN401 - any result
    view: "Callable[[Any, Console], Iterator[RenderableType]]",
    *,
    json_file: Path | None = None,
    written: "Iterable[str]" = (),
) -> None:
    """Print a result, or write it as JSON; `-` for the file prints nothing else."""
    lines = list(written)
    if json_file is not None:
        write_json(result.to_json(), json_file)
        if str(json_file) == "-":
            return
        lines.insert(0, f"JSON written to {json_file}")
    console = stdout()
    for part in view(result, console):
        console.print(part)
    for line in lines:
        console.print(line, style="dim", markup=False, highlight=False)


def replace_file(file: Path, text: str) -> None:
    """Write text whole or not at all.

    Raises:
        InputError: it cannot be written there.
    """
    try:
        write_whole(file.resolve(), text.encode())
    except OSError as error:
        raise InputError(f"{file}: the result cannot be written ({error}).") from error


def stdout() -> "Console":
    """Return the console results go to; piped, it is as wide as COLUMNS says, or 80."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()  # None: closed by the caller
    columns = os.environ.get("COLUMNS", "")
    piped = int(columns) if re.fullmatch("[1-9][0-9]{0,4}", columns) else 80
    return _console(width=None if is_terminal else piped)


def stderr() -> "Console":
    """Return the console for everything that is not a result."""
    return _console(stderr=True)


def _console(*, width: int | None = None, stderr: bool = False) -> "Console":
    """Return a console that shows text and never has the terminal obey it.

    Names and tokens come from files. Rich's own styles and cursor movements are no text to it.
    """
    from rich.console import Console
    from rich.segment import Segment
    from rich.text import Text

    class SafeConsole(Console):
        def render(self, renderable: Any, options: Any = None) -> "Iterator[Segment]":  # noqa: ANN401 - rich's
            # Text is escaped before it is laid out: what grows afterwards is cut off at the edge.
            if isinstance(renderable, Text) and printable(renderable.plain) != renderable.plain:
                renderable = renderable.blank_copy(printable(renderable.plain))
            for part in super().render(renderable, options):
                shown = part.text if part.control else printable(part.text)
                yield part if shown == part.text else Segment(shown, part.style)

    return SafeConsole(width=width, stderr=stderr, highlight=False)


LONG = 2.0  # seconds after which a log says what goes on


@contextmanager
def progress_bar(what: str) -> "Iterator[Callable[[int, int | None], None]]":
    """Show a bar on stderr while work goes on; where it is no terminal, a line if that is long."""
    from rich.progress import Progress

    console = stderr()
    if not console.is_terminal:
        with stage_line(what):
            yield lambda done, total: None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)

        def report(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total)

        yield report


@contextmanager
def stage_line(what: str) -> "Iterator[None]":
    """Write one line to stderr if the stage inside takes long: a log is neither silent nor full."""
    from threading import Timer

    timer = Timer(LONG, lambda: print(f"{printable(what)} ...", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class StageLines:
    """One line on stderr for each stage that takes long, as a log wants it."""

    def __init__(self) -> None:
        """Begin before the first stage."""
        self._open: AbstractContextManager[None] | None = None

    def __call__(self, what: str) -> None:
        """End the stage before, and begin one."""
        self.end()
        self._open = stage_line(what)
        self._open.__enter__()

    def end(self) -> None:
        """End the last stage."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None


def is_number(text: str) -> bool:
    """Say whether `text` is a whole number of a size that layers and heads have."""
    return re.fullmatch("[0-9]{1,5}", text.strip()) is not None


def swept_values(text: str, option: str, *, example: str) -> tuple[str, tuple[float, ...]]:
    """Read "beta=0.5:8:5" as five values from 0.5 to 8, "beta=1,2,4" as these three.

    Raises:
        InputError: it is neither.
    """
    name, _, values = text.partition("=")
    try:
        if values.count(":") == 2:
            first, last, count = values.split(":")
            n = int(count)
            step = (float(last) - float(first)) / max(n - 1, 1)
            numbers = tuple(float(first) + step * k for k in range(n))
        else:
            numbers = tuple(float(value) for value in values.split(","))
    except ValueError as error:
        raise InputError(
            f"{option} {text!r}: expected NAME=FROM:TO:N or NAME=A,B,C, such as {example}."
        ) from error
    return name.strip().replace("-", "_"), numbers


def silence_transformers() -> None:
    """Keep transformers' bars and notices off the terminal for as long as the command runs."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
