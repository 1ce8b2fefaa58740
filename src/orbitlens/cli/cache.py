"""The command `orbitlens cache`: which results are kept, and where; remove them."""

from typing import Annotated

import typer

from orbitlens.cli.output import stdout


def command(
    clear: Annotated[bool, typer.Option("--clear", help="Remove every result.")] = False,
) -> None:
    """Say where results of commands are kept, how many there are, and how large they are.

    Set ORBITLENS_CACHE to keep them in another folder, or to nothing to keep none.
    """
    from orbitlens.results.shelf import FOLDER, user_shelf

    shelf = user_shelf()
    if shelf is None:
        typer.echo(f"nothing is kept: {FOLDER} is empty, or there is no home folder.")
        return
    files = shelf.files()
    size = sum(file.stat().st_size for file in files) / 1e6
    say = stdout()
    say.print(f"{shelf.folder}", highlight=False, markup=False, soft_wrap=True)
    say.print(f"{len(files)} results, {size:.1f} of {shelf.most_bytes / 1e6:.0f} MB")
    if clear:
        say.print(f"removed {shelf.clear()} results")
