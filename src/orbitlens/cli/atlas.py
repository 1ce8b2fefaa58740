"""The command `orbitlens atlas`: many models in one table and page."""

from pathlib import Path
from typing import Annotated

import typer

from orbitlens.cli.output import (
    ClusterOption,
    JsonOption,
    progress_bar,
    replace_file,
    show,
    silence_transformers,
)


def command(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODELS",
            help="Folders with models below them, text files with a path or name a line, models.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write a page.")
    ] = None,
    keep: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Where finished models are kept, and not made again."),
    ] = Path("out/atlas"),
    weights_only: Annotated[
        bool, typer.Option("--weights-only", help="Run no model: scan and positions alone.")
    ] = False,
    largest: Annotated[
        int, typer.Option(metavar="N", help="Parameters up to which a model is run.")
    ] = 200_000_000,
    max_tokens: Annotated[
        int, typer.Option(metavar="N", help="Tokens that a model is run on.")
    ] = 1024,
    workers: Annotated[int, typer.Option(metavar="N", help="Processes, one thread each.")] = 1,
    cluster: ClusterOption = None,
    json_file: JsonOption = None,
) -> None:
    """Scan many models, trace those that fit, and put them into one table and page.

    What was done is kept: started again, it reads that and does what is missing. A model that
    cannot be read is a row with its reason.
    """
    from orbitlens.surveying.api import atlas
    from orbitlens.surveying.options import AtlasOptions
    from orbitlens.terminal.atlas import atlas_view

    silence_transformers()
    options = AtlasOptions(trace=not weights_only, largest=largest, max_tokens=max_tokens)
    with progress_bar("reading models") as report:
        result = atlas(
            models, options, keep_in=keep, workers=workers, cluster=cluster, progress=report
        )
    written = []
    if output is not None:
        from orbitlens.reporting.atlas_page import page_of_atlas

        replace_file(output, page_of_atlas(result))
        written.append(f"Page written to {output}")
    show(result, atlas_view, json_file=json_file, written=written)
