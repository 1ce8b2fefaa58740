"""The command `orbitlens cut`: which heads, blocks and layers can a model do without?"""

from pathlib import Path
from typing import Annotated

import typer

from orbitlens.cli.inputs import (
    ImagesOption,
    NormaliseOption,
    PickleOption,
    TextOption,
    TokensOption,
    chosen_inputs,
    mean_std,
)
from orbitlens.cli.kept_results import NoCacheOption, remembered
from orbitlens.cli.output import JsonOption, progress_bar, replace_file, show


def command(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model's folder, a .gguf file, or a name.")
    ],
    text: TextOption = None,
    tokens: TokensOption = None,
    images: ImagesOption = None,
    keep: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Share of layers that stays, such as 0.8.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the model without its layers there.")
    ] = None,
    mergekit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the cut as slices for mergekit.")
    ] = None,
    parts: Annotated[
        str, typer.Option(metavar="KINDS", help="Of layer, attention, mlp, head: which to try.")
    ] = "layer,attention,mlp,head",
    fast: Annotated[
        bool, typer.Option("--fast", help="Layers on a sample, at a third of a pass each.")
    ] = False,
    context: Annotated[int | None, typer.Option(metavar="N", help="Tokens of a context.")] = None,
    max_tokens: Annotated[
        int, typer.Option(metavar="N", help="Tokens that losses are measured on.")
    ] = 2048,
    normalise: NormaliseOption = "0.5,0.5",
    json_file: JsonOption = None,
    allow_pickle: PickleOption = False,
    no_cache: NoCacheOption = False,
) -> None:
    """Measure a model without each of its layers, attention blocks, MLPs and heads.

    With --keep, layers are taken out one after the other, each time the one that costs least on
    half of the contexts; what that costs is measured on the other half.
    """
    given = chosen_inputs(text=text, images=images, tokens=tokens)
    from orbitlens.cutting.api import cut
    from orbitlens.cutting.cut_result import Cut
    from orbitlens.cutting.options import CutOptions, part_kinds
    from orbitlens.running.model import load
    from orbitlens.terminal.cut import cut_view

    options = CutOptions(
        kinds=part_kinds(parts),
        context=context,
        max_tokens=max_tokens,
        drop_losers=fast,
        normalise=mean_std(normalise),
    )
    opened = load(model, allow_pickle=allow_pickle)

    def make() -> Cut:
        with progress_bar(f"running {opened.name} without parts") as report:
            return cut(opened, given, keep=keep, write_to=write, options=options, progress=report)

    asked = {"given": given, "keep": keep, "options": options}
    anew = no_cache or write is not None
    result = remembered(Cut, make, models=[opened], asked=asked, no_cache=anew)
    written = []
    if mergekit is not None:
        replace_file(mergekit, result.mergekit())
        written.append(f"slices for mergekit written to {mergekit}")
    show(result, cut_view, json_file=json_file, written=written)
