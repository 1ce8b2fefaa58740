"""The command `orbitlens demo`: everything, with nothing at hand."""

from pathlib import Path
from typing import Annotated

import typer

from orbitlens.cli.output import stderr, write_json
from orbitlens.cli.report import write_demo_report
from orbitlens.cli.scan import show_scan
from orbitlens.errors import InputError


def command(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where to write the model and the result.")
    ] = Path("out"),
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Write a report of the zoo's models too.")
    ] = True,
) -> None:
    """Scan a tiny model made on the spot, then write the report of the zoo's models."""
    from orbitlens.cli.demo_model import write_demo_model
    from orbitlens.scanning.api import scan
    from orbitlens.scanning.options import ScanOptions

    try:
        folder = write_demo_model(out / "demo-model")
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error}). Choose another --out.") from error
    stderr().print(
        "This model was made on the spot: random weights, but with value maps turned from opposed "
        "to the score map (first layer, first head) to aligned with it (last layer, last head).\n"
    )
    result = scan(folder, ScanOptions(context=256))
    show_scan(result)
    file = out / "demo-scan.json"
    write_json(result.to_json(), file)
    typer.echo(f"\nThe model is in {folder}, the whole result in {file}.")
    if report:
        write_demo_report(folder, out / "report.html")
    typer.echo("Next: orbitlens scan PATH_OF_A_MODEL")
