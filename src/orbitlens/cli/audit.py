"""The command `orbitlens audit`: what a model makes of the order of its tokens."""

from typing import Annotated

import typer

from orbitlens.cli.freed_memory import keep_freed_memory
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
from orbitlens.cli.output import JsonOption, progress_bar, show


def command(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model's folder, a .gguf file, or a name.")
    ],
    text: TextOption = None,
    images: ImagesOption = None,
    tokens: TokensOption = None,
    samples: Annotated[int, typer.Option(metavar="N", help="Inputs.")] = 32,
    permutations: Annotated[int, typer.Option(metavar="P", help="Permutations.")] = 16,
    length: Annotated[
        int | None, typer.Option(metavar="L", help="Tokens of an input; 32 if not given.")
    ] = None,
    normalise: NormaliseOption = "0.5,0.5",
    seed: Annotated[int, typer.Option(metavar="S", help="Seed of inputs and shuffles.")] = 0,
    slices: Annotated[
        bool | None, typer.Option("--slices/--no-slices", help="Probe what slices stand for.")
    ] = None,
    json_file: JsonOption = None,
    allow_pickle: PickleOption = False,
    no_cache: NoCacheOption = False,
) -> None:
    """Ask if predictions depend on the order of tokens, how much, and through what."""
    given = chosen_inputs(text=text, images=images, tokens=tokens)
    from orbitlens.order.api import audit
    from orbitlens.order.audit_result import Audit
    from orbitlens.order.options import AuditOptions
    from orbitlens.running.model import load
    from orbitlens.terminal.audit import audit_view

    options = AuditOptions(
        samples=samples,
        permutations=permutations,
        length=length,
        seed=seed,
        slices=slices,
        normalise=mean_std(normalise),
    )
    opened = load(model, allow_pickle=allow_pickle)

    def make() -> Audit:
        keep_freed_memory()
        with progress_bar(f"auditing {opened.name}") as report:
            return audit(opened, given, options=options, progress=report)

    asked = {"given": given, "options": options}
    result = remembered(Audit, make, models=[opened], asked=asked, no_cache=no_cache)
    show(result, audit_view, json_file=json_file)
