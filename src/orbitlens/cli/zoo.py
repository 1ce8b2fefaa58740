"""The command `orbitlens zoo`: the small models inside the package."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from orbitlens.cli.output import JsonOption, stdout, write_json


class ListByDefault(TyperGroup):
    """Commands of which `list` is run where none is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - of typer's own
        """Put the name of a command where there is none."""
        return super().parse_args(ctx, args or ["list"])


zoo_app = typer.Typer(
    name="zoo",
    cls=ListByDefault,
    help="The small models inside the package; their names stand for MODEL everywhere.",
    rich_markup_mode=None,
)


@zoo_app.command("list")
def list_models(json_file: JsonOption = None) -> None:
    """List the models, their size and how well they predict."""
    from orbitlens.checkpoint.zoo import zoo_model, zoo_names

    found = [zoo_model(name) for name in zoo_names()]
    if json_file is not None:
        write_json({"models": [model.to_json() for model in found]}, json_file)
    if json_file is not None and str(json_file) == "-":
        return
    from rich.text import Text

    from orbitlens.terminal.fitted_table import Column, FittedTable, text_column

    rows = []
    for model in found:
        cells = [f"{model.parameters:,}", f"{model.n_bytes / 1000:.0f}", f"{model.test_loss:.3f}"]
        cells.append(f"{100 * model.test_accuracy:.1f}")
        rows.append([model.name, model.position, *cells])
    first = [text_column("name", wraps=False), text_column("position", wraps=False)]
    numbers = map(Column, ("parameters", "KB", "test loss", "right %"))
    console = stdout()
    console.print(FittedTable([*first, *numbers], rows))
    console.print(
        Text("Loss in nats a character, on text held out from training.", style="dim"),
        soft_wrap=True,
    )


@zoo_app.command("path")
def show_path(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Such as orbit-nano-rotary.")],
) -> None:
    """Print the folder of a model."""
    from orbitlens.checkpoint.zoo import zoo_path

    typer.echo(str(zoo_path(name)))
