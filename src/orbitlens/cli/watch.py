"""The command `orbitlens watch`: a run, finished or not, or a folder of its checkpoints."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orbitlens.cli.inputs import TextOption, TokensOption, chosen_inputs
from orbitlens.cli.output import JsonOption, progress_bar, replace_file, show, stdout
from orbitlens.errors import InputError

if TYPE_CHECKING:
    from orbitlens.watching.watched_run import WatchedRun


def command(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="What Watch writes, its folder, or checkpoints."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write a page as well.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show new readings until Ctrl-C.")
    ] = False,
    every: Annotated[
        int, typer.Option(metavar="SECONDS", help="Between two looks with --follow.")
    ] = 5,
    text: TextOption = None,
    tokens: TokensOption = None,
    json_file: JsonOption = None,
) -> None:
    """Show how near a run is to freezing or collapsing: heads over steps, alarms, directions.

    With --follow the page reads itself anew in the browser. On checkpoints a text gives readings
    with tokens.
    """
    if every < 1:
        raise InputError(f"--every {every}: expected at least 1 second.")
    from orbitlens.terminal.watch import watch_view
    from orbitlens.watching.looking import watched

    given = chosen_inputs(text=text, images=None, tokens=tokens)
    if follow:
        _follow(run, out, every)
        return
    with progress_bar("reading checkpoints") as report:
        found = watched(run, given, progress=report)
    written = [] if out is None else [_write(found, out)]
    show(found, watch_view, json_file=json_file, written=written)


def _write(found: "WatchedRun", out: Path, reload_after: int | None = None) -> str:
    from orbitlens.reporting.watch_page import page_of_run

    replace_file(out, page_of_run(found, reload_after=reload_after))
    return f"page written to {out}"


def _follow(run: Path, out: Path | None, every: int) -> None:
    """Show a record again whenever it has grown; Ctrl-C ends it and leaves a page that rests."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from orbitlens.terminal.watch import watch_view
    from orbitlens.watching.looking import watched
    from orbitlens.watching.record import record_file

    record, console, seen = record_file(run), stdout(), -1
    found = None
    try:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                size = record.stat().st_size if record.is_file() else 0
                if size != seen and size > 0:
                    seen, found = size, watched(record)
                    live.update(Group(*watch_view(found, console)), refresh=True)
                    if out is not None:
                        _write(found, out, reload_after=every)
                elif size == 0:
                    live.update(Text(f"waiting for {record}"), refresh=True)
                time.sleep(every)
    except KeyboardInterrupt:
        if out is not None and found is not None:
            console.print(_write(found, out), style="dim", markup=False)
