"""The command `orbitlens explore`: a model's flow, sentences and order, to play with on a page."""

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orbitlens.cli.inputs import PickleOption
from orbitlens.cli.output import progress_bar, stdout

if TYPE_CHECKING:
    from orbitlens.running.model import Model


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, or a name (zoo, hub).")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Freeze the page as one offline file."),
    ] = None,
    text: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The sentence that rooms begin with.")
    ] = None,
    port: Annotated[int, typer.Option(metavar="PORT", help="Serve there; 0: a free one.")] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
    allow_pickle: PickleOption = False,
) -> None:
    """Hold a head in your hands: drag tokens, cut parts, reorder a sentence."""
    from orbitlens.exploring.api import explore_data
    from orbitlens.exploring.page_file import write_page
    from orbitlens.running.model import load

    opened = load(model, allow_pickle=allow_pickle)
    if out is None:
        _serve(opened, text, port=port, browser=browser)
        return
    with progress_bar("exploring") as told:
        data = explore_data(opened, text, told=told)
    file = write_page(data, out)
    stdout().print(f"page written to {out} ({file.stat().st_size / 1e6:.1f} MB)", highlight=False)


def _serve(model: "Model", text: str | None, *, port: int, browser: bool) -> None:
    """Serve the page until Ctrl-C; its address is printed, and opened in a browser."""
    from orbitlens.exploring.api import explore_data
    from orbitlens.exploring.page_file import page_html
    from orbitlens.exploring.passes import explored_of
    from orbitlens.exploring.server import ExplorerServer

    say = stdout()
    size = f"{model.n_parameters / 1e6:,.1f}M parameters, {4e-9 * model.n_parameters:.2g} GB to run"
    say.print(f"loading {model.name} ({size})", highlight=False, markup=False)
    page = page_html(explore_data(model, text, live=True), live=True)
    server = ExplorerServer(explored_of(model), page, port=port)
    say.print(f"{server.address}\nCtrl-C stops it.", highlight=False, markup=False, soft_wrap=True)
    if browser:
        webbrowser.open(server.address)
    try:
        server.serve()
    except KeyboardInterrupt:
        say.print("stopped.", highlight=False)
    finally:
        server.close()
