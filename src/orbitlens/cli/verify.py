"""The command `orbitlens verify`: try to break what certificates say."""

from typing import Annotated

import typer

from orbitlens.cli.output import JsonOption, progress_bar, show


def command(
    systems: Annotated[int, typer.Option(metavar="N", help="How many systems to try.")] = 2000,
    seed: Annotated[int, typer.Option(metavar="S", help="Of everything that is drawn.")] = 0,
    jobs: Annotated[int, typer.Option(metavar="J", help="Processes.")] = 1,
    json_file: JsonOption = None,
) -> None:
    """Try to break every certificate on random and adversarial systems, and print a ledger.

    Exits with 1 if a statement that was printed as held is false of some system.
    """
    from orbitlens.terminal.verify import ledger_view
    from orbitlens.verifying.falsifier import verify

    with progress_bar("systems") as report:
        ledger = verify(
            systems, seed=seed, n_workers=jobs, progress=lambda done: report(done, systems)
        )
    show(ledger, ledger_view, json_file=json_file)
    if ledger.n_violations:
        raise typer.Exit(1)
