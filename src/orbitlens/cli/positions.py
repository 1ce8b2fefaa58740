"""The command `orbitlens positions`: was the model rotated as it was trained?"""

from pathlib import Path
from typing import Annotated

import typer

from orbitlens.cli.inputs import (
    LayersOption,
    ModelArgument,
    PickleOption,
    TextOption,
    TokensOption,
    chosen_inputs,
    layer_numbers,
)
from orbitlens.cli.kept_results import NoCacheOption, remembered
from orbitlens.cli.output import JsonOption, progress_bar, show


def command(
    model: ModelArgument,
    text: TextOption = None,
    tokens: TokensOption = None,
    layers: LayersOption = None,
    repair: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write a repaired copy there, if the loss on the text confirms it."
        ),
    ] = None,
    shuffles: Annotated[
        int, typer.Option(metavar="N", help="Shuffles within heads, for p-values.")
    ] = 0,
    max_tokens: Annotated[
        int, typer.Option(metavar="N", help="Tokens that losses are measured on.")
    ] = 2048,
    reach: Annotated[
        bool,
        typer.Option(
            "--reach", help="Say how far a context reaches: predicted, then measured on the text."
        ),
    ] = False,
    context: Annotated[
        int | None,
        typer.Option(metavar="N", help="With --reach: tokens of a context in training."),
    ] = None,
    json_file: JsonOption = None,
    allow_pickle: PickleOption = False,
    no_cache: NoCacheOption = False,
) -> None:
    """Say from the weights how a model's queries and keys were rotated in training.

    With a text the model is run as loaded and under other hypotheses: the other pairing, layers
    unrotated, other bases. A wrong conversion shows as a loss that another one lowers. With --reach
    the loss beyond the trained context is predicted from short text, measured on long text, and a
    scaling of the rotary encoding is advised.
    """
    given = chosen_inputs(text=text, images=None, tokens=tokens)
    from orbitlens.encodings.api import positions
    from orbitlens.encodings.options import PositionsOptions, ReachOptions
    from orbitlens.encodings.positions_result import Positions
    from orbitlens.running.model import load
    from orbitlens.terminal.positions import positions_view

    opened = load(model, allow_pickle=allow_pickle)
    options = PositionsOptions(
        layers=layer_numbers(layers),
        shuffles=shuffles,
        max_tokens=max_tokens,
        reach=ReachOptions(trained=context) if reach else None,
    )

    def make() -> Positions:
        with progress_bar(f"reading layers of {opened.name}") as report:
            return positions(opened, given, repair_to=repair, options=options, progress=report)

    asked, anew = {"given": given, "options": options}, no_cache or repair is not None
    result = remembered(Positions, make, models=[opened], asked=asked, no_cache=anew)
    show(result, positions_view, json_file=json_file)
