"""The command `orbitlens study`: papers as executable claims, each with a verdict."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orbitlens.cli.output import (
    JsonOption,
    progress_bar,
    silence_transformers,
    stderr,
    stdout,
    write_json,
)

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from orbitlens_papers.bench import Settings
    from orbitlens_papers.result import StudyResult
    from orbitlens_papers.study import Study

study_app = typer.Typer(
    name="study",
    help="Run papers as executable claims, each with thresholds, controls and a verdict.",
    short_help="Papers as executable claims, each with controls and a verdict.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@study_app.command("list")
def list_studies() -> None:
    """List the studies."""
    from orbitlens_papers.registry import STUDIES
    from orbitlens_papers.terminal import list_view

    console = stdout()
    for part in list_view(STUDIES.values()):
        console.print(part)


@study_app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A study (see list).")],
) -> None:
    """Show a study's claims: what is measured, against which threshold, and why."""
    from orbitlens_papers.registry import study_of
    from orbitlens_papers.terminal import show_view

    console = stdout()
    for part in show_view(study_of(name)):
        console.print(part)


@study_app.command()
def run(
    name: Annotated[str, typer.Argument(metavar="NAME|all", help="A study, or all of them.")],
    scale: Annotated[
        str, typer.Option(metavar="smoke|default|full", help="How much to run.")
    ] = "default",
    seeds: Annotated[
        int, typer.Option(metavar="K", help="Seeds; 0: as many as the scale has.")
    ] = 0,
    first_seed: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="The first seed; others draw anew."),
    ] = 0,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Outcomes and figures; a rerun resumes.")
    ] = Path("out/studies"),
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL", help="Also look at this model; may be repeated."),
    ] = None,
    text: Annotated[
        Path | None, typer.Option(metavar="FILE", help="UTF-8 text for language modelling.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Data sets, such as Omniglot; others are made here."),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A Dask scheduler to run on.")
    ] = None,
    claim: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Only this claim; may be repeated. No figures."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure anew what was measured before.")
    ] = False,
    figures: Annotated[
        bool, typer.Option("--figures/--no-figures", help="Draw figures as HTML and PNG.")
    ] = True,
    json_file: JsonOption = None,
) -> None:
    """Test every claim of a study; what is done is kept, and a second run goes on from there."""
    from orbitlens.draw.figure import check_packages
    from orbitlens.files import writable_folder
    from orbitlens.running.workers import workers_of
    from orbitlens_papers.bench import Settings, scale_of
    from orbitlens_papers.registry import STUDIES, study_of

    chosen = list(STUDIES.values()) if name == "all" else [study_of(name)]
    settings = Settings(
        scale=scale_of(scale),
        seeds=seeds,
        base_seed=first_seed,
        models=tuple(model or ()),
        text=None if text is None else str(text),
        data=None if data is None else str(data),
        claims=tuple(claim or ()),
    )
    settings.check_files()
    figures = figures and not settings.claims  # they are drawn from all claims
    if figures:
        check_packages()
    writable_folder(out)
    silence_transformers()
    own = nullcontext() if cluster is None else workers_of(None, cluster)
    try:
        with own as executor:
            results = [_run_one(study, settings, out, executor, fresh) for study in chosen]
    except KeyboardInterrupt:
        kept = f"what is done is kept in {out}, and the same command resumes."
        stderr().print(kept, soft_wrap=True, markup=False)
        raise
    written = [result.to_json() for result in results]
    files = _write(results, chosen, out, figures=figures)
    if json_file is not None:
        write_json(written[0] if len(written) == 1 else {"studies": written}, json_file)
    if json_file is None or str(json_file) != "-":
        _show(results, chosen, files, json_file)


@study_app.command()
def verify(
    name: Annotated[str, typer.Argument(metavar="NAME|all", help="A study, or all.")] = "all",
    results: Annotated[
        Path, typer.Option(metavar="DIR", help="Stored results, one NAME.json a study.")
    ] = Path("docs/results"),
    claim: Annotated[
        str, typer.Option(metavar="KEY", help="This claim, not one drawn at random.")
    ] = "",
    most: Annotated[
        float, typer.Option(metavar="S", help="Draw among claims that took at most so long.")
    ] = 60.0,
    draw: Annotated[int, typer.Option(metavar="N", help="Seed of the draw; -1: a new one.")] = -1,
    model: Annotated[
        list[str] | None, typer.Option(metavar="MODEL", help="As for the stored result.")
    ] = None,
    text: Annotated[
        Path | None, typer.Option(metavar="FILE", help="As for the stored result.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="As for the stored result.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="For training runs.")] = Path(
        "out/studies"
    ),
) -> None:
    """Measure one claim of each study again and compare it with its stored number."""
    import random

    from orbitlens.files import writable_folder
    from orbitlens_papers.registry import STUDIES, study_of
    from orbitlens_papers.terminal import verification_view
    from orbitlens_papers.verifying import Again, verify_studies

    number = draw if draw >= 0 else random.SystemRandom().randrange(10**6)
    again = Again(
        models=tuple(model or ()),
        text=None if text is None else str(text),
        data=None if data is None else str(data),
        claim=claim,
        most=most,
        draw=number,
    )
    chosen = list(STUDIES.values()) if name == "all" else [study_of(name)]
    writable_folder(out)
    silence_transformers()
    console = stdout()
    console.print(f"drawn with --draw {number}", style="dim")
    differs = False
    for found in verify_studies(chosen, results, again, out):
        console.print(verification_view(found))
        differs = differs or not found.agrees
    if differs:
        raise typer.Exit(1)


def _run_one(
    study: "Study", settings: "Settings", out: Path, executor: "Executor | None", fresh: bool
) -> "StudyResult":
    from orbitlens_papers.bench import Scale
    from orbitlens_papers.running import run_study

    if settings.scale is Scale.DEFAULT and not settings.claims and study.is_long:
        note = f"{study.name}: up to {study.minutes} minutes on two cores; a rerun resumes."
        stderr().print(note, soft_wrap=True, markup=False)
    with progress_bar(study.name) as report:
        return run_study(study, settings, out, executor=executor, progress=report, fresh=fresh)


def _write(
    results: "list[StudyResult]", studies: "list[Study]", out: Path, *, figures: bool
) -> list[Path]:
    """Write every result, and its figures beside it."""
    from orbitlens.draw.figure import write_figures

    files = []
    for result, study in zip(results, studies, strict=True):
        # A part never takes the place of the whole: what it lacks would be missed.
        file = out / f"{result.study}-{result.scale}{'-part' if result.part else ''}.json"
        write_json(result.to_json(), file)
        files.append(file)
        if figures:
            files += write_figures(study.figures(result), out)
    return files


def _show(
    results: "list[StudyResult]", studies: "list[Study]", files: list[Path], json_file: Path | None
) -> None:
    from rich.text import Text

    from orbitlens_papers.terminal import result_view

    console = stdout()
    for result, study in zip(results, studies, strict=True):
        for part in result_view(result, given=study.given):
            console.print(part)
        console.print()
    for file in [*files, *([json_file] if json_file is not None else [])]:
        console.print(Text(f"written to {file}", style="dim"))
