"""The command `orbitlens explain`: which tokens a prediction of an encoder is due to."""

from typing import Annotated

import typer

from orbitlens.cli.inputs import PickleOption, TokensOption, token_ids
from orbitlens.cli.kept_results import NoCacheOption, remembered
from orbitlens.cli.output import JsonOption, progress_bar, show
from orbitlens.errors import InputError


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="An encoder's folder, or a name.")],
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="One sequence; [MASK] may stand in it.")
    ] = None,
    tokens: TokensOption = None,
    target: Annotated[
        int | None,
        typer.Option(metavar="K", help="Position asked about; the mask, or else the first token."),
    ] = None,
    alpha: Annotated[
        float, typer.Option(metavar="A", help="Level of the independence tests.")
    ] = 0.01,
    json_file: JsonOption = None,
    allow_pickle: PickleOption = False,
    no_cache: NoCacheOption = False,
) -> None:
    """Name a few tokens whose masking changes an encoder's prediction."""
    if (text is None) == (tokens is None):
        raise InputError("give a text, or token ids with --tokens.")
    given = text if tokens is None else token_ids(tokens)
    from orbitlens.explaining.api import explain
    from orbitlens.explaining.explanation import Explanation
    from orbitlens.running.model import load
    from orbitlens.terminal.explain import explain_view

    opened = load(model, allow_pickle=allow_pickle)

    def make() -> Explanation:
        with progress_bar(f"explaining {opened.name}"):
            return explain(opened, given, target=target, alpha=alpha)

    asked = {"given": given, "target": target, "alpha": alpha}
    result = remembered(Explanation, make, models=[opened], asked=asked, no_cache=no_cache)
    show(result, explain_view, json_file=json_file)
