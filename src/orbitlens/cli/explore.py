"""The command `orbitlens explore`: a model's flow, sentences and order, to play with on a page."""

from pathlib import Path
from typing import Annotated

import typer

from orbitlens.cli.inputs import PickleOption
from orbitlens.cli.output import stdout
from orbitlens.errors import InputError


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, or a name (zoo, hub).")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Freeze the page as one offline file."),
    ] = None,
    text: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The sentence that rooms begin with.")
    ] = None,
    allow_pickle: PickleOption = False,
) -> None:
    """Hold a head in your hands: drag tokens, cut parts, reorder a sentence."""
    from orbitlens.exploring.api import explore_data
    from orbitlens.exploring.page_file import write_page
    from orbitlens.running.model import load

    if out is None:
        raise InputError("give --out FILE: the page is written there.")
    data = explore_data(load(model, allow_pickle=allow_pickle), text)
    file = write_page(data, out)
    stdout().print(f"page written to {out} ({file.stat().st_size / 1e6:.1f} MB)", highlight=False)
