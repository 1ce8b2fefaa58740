"""The command `orbitlens report`: everything about one or more models in one HTML file."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orbitlens.cli.freed_memory import keep_freed_memory
from orbitlens.cli.inputs import NormaliseOption, PickleOption, TokensOption, mean_std, token_ids
from orbitlens.cli.kept_results import NoCacheOption, remembered
from orbitlens.cli.output import (
    JsonOption,
    StageLines,
    replace_file,
    stderr,
    stdout,
    write_json,
)
from orbitlens.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orbitlens.reporting.options import ReportOptions
    from orbitlens.reporting.report import Report
    from orbitlens.running.model import Model

OPERATIONS = 5e10  # a second: what a core does of products like these, all else included
LONG_RUN = 20.0  # seconds of processor time that are said beforehand
PASSES, LENGTH = 4, 32  # of an audit: its four cells, and tokens of an input


def command(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="Folders of models, or names (zoo, hub)."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")
    ] = Path("report.html"),
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw this report's JSON (or HTML) anew; no MODEL."),
    ] = None,
    json_file: JsonOption = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write every table as CSV too.")
    ] = None,
    png: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write pictures of the sections too.")
    ] = None,
    text: Annotated[
        Path | None, typer.Option(metavar="FILE", help="UTF-8 text for models with a tokenizer.")
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Images for vision models: .npy, or MNIST's own (.gz)."),
    ] = None,
    tokens: TokensOption = None,
    normalise: NormaliseOption = "0.5,0.5",
    max_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens to run.")] = 2048,
    context: Annotated[int, typer.Option(metavar="N", help="Tokens a context.")] = 64,
    samples: Annotated[int, typer.Option(metavar="N", help="Inputs of the audit.")] = 32,
    permutations: Annotated[int, typer.Option(metavar="P", help="Shuffles of each.")] = 16,
    flows: Annotated[
        int | None,
        typer.Option(metavar="N", help="Heads whose flow is simulated: up to 96 if not given."),
    ] = None,
    controls: Annotated[
        int,
        typer.Option(metavar="N", help="Runs of each control (untrained, shuffled); 0: none."),
    ] = 3,
    cut: Annotated[
        bool, typer.Option("--cut", help="Also run without each layer and head: costs passes.")
    ] = False,
    seed: Annotated[int, typer.Option(metavar="S", help="Seed of all that is random.")] = 0,
    fast: Annotated[
        bool,
        typer.Option("--fast", help="512 tokens, 8 inputs x 4 shuffles, no controls, no flows."),
    ] = False,
    allow_pickle: PickleOption = False,
    no_cache: NoCacheOption = False,
) -> None:
    """Write one offline HTML file: heads, depth, agreement, orbits, order, and how sure that is.

    Needs `pip install 'orbitlens[measure]'`, and `[plot]` for --png. The flow of a head runs until
    no token can have grown by more than a factor of e^4, so that of a strong head is short.
    """
    _check_target(out)
    _check_exports(csv, png)
    if data is not None:
        from orbitlens.reporting.report import Report

        if models:
            raise InputError("--data FILE draws a report anew: give it, or models, not both.")
        made = Report.load(data)
    else:
        for name, value, least in (
            ("--max-tokens", max_tokens, 16),
            ("--context", context, 4),
            ("--samples", samples, 2),
            ("--permutations", permutations, 1),
            ("--flows", 0 if flows is None else flows, 0),
            ("--controls", controls, 0),
        ):
            if value < least:
                raise InputError(f"{name} {value}: expected at least {least}.")
        _check_inputs({"--text": text, "--images": images})
        from orbitlens.reporting.options import ReportOptions
        from orbitlens.running.images import ImageFile
        from orbitlens.running.model import load

        options = ReportOptions(
            normalise=mean_std(normalise),
            max_tokens=max_tokens,
            context=context,
            samples=samples,
            permutations=permutations,
            flows=flows,
            controls=controls,
            cut=cut,
            seed=seed,
        )
        opened = [load(model, allow_pickle=allow_pickle) for model in models or []]
        given = {
            "text": text,
            "images": None if images is None else ImageFile(images),
            "tokens": None if tokens is None else token_ids(tokens),
        }
        chosen = _fast(options) if fast else options
        made = _remembered(opened, chosen, given, no_cache=no_cache)
    if json_file is not None:
        write_json(made.to_json(), json_file)
    _export(made, csv, png)
    replace_file(out, made.html)
    if str(json_file) != "-":
        _say(made, out)


def write_demo_report(made: Path, out: Path) -> None:
    """Write the report that a demo shows, and say where it is; `made` is the model of the demo."""
    from orbitlens.cli.demo_model import demo_models
    from orbitlens.reporting.options import ReportOptions

    _check_target(out)
    models = demo_models(made)
    names = ", ".join(Path(model).name for model in models)
    stderr().print(f"\nNow a report of {names}: a minute or so.", markup=False)
    options = ReportOptions(max_tokens=1024, samples=16, permutations=8, controls=2)
    found = _make(models, options)
    replace_file(out, found.html)
    _say(found, out)
    typer.echo(f"Open it in a browser: {out.resolve()}")


def _check_target(out: Path) -> None:
    """Complain before minutes of work, not after."""
    folder = out.resolve().parent
    if out.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError(f"{out}: a page cannot be written there. Choose another --out FILE.")


def _check_inputs(files: dict[str, Path | None]) -> None:
    for option, file in files.items():
        if file is not None and not file.is_file():
            raise InputError(f"{option} {file}: there is no such file.")


def _check_exports(csv: Path | None, png: Path | None) -> None:
    from orbitlens.draw.figure import check_packages
    from orbitlens.files import writable_folder

    if png is not None:
        check_packages()
    for folder in (csv, png):
        if folder is not None:
            writable_folder(folder)


def _export(made: "Report", csv: Path | None, png: Path | None) -> None:
    from orbitlens.reporting.export import write_csv, write_png

    if csv is not None:
        write_csv(made.models, csv)
    if png is not None:
        write_png(made.models, png)


def _fast(options: "ReportOptions") -> "ReportOptions":
    """Return options that leave out controls and flows, and run a quarter of all else at most."""
    return replace(
        options,
        max_tokens=min(options.max_tokens, 512),
        samples=min(options.samples, 8),
        permutations=min(options.permutations, 4),
        flows=0,
        controls=0,
    )


def _remembered(
    models: "Sequence[Model]", options: "ReportOptions", given: dict[str, Any], *, no_cache: bool
) -> "Report":
    from orbitlens.reporting.report import Report

    def make() -> Report:
        keep_freed_memory()
        _say_cost(models, options)
        return _make(models, options, **given)

    asked = {**given, "options": options}
    return remembered(Report, make, models=models, asked=asked, no_cache=no_cache)


def _say_cost(models: "Sequence[Model]", options: "ReportOptions") -> None:
    """Say beforehand what a long report takes."""
    from orbitlens.reporting.measured import n_control_runs

    audited = PASSES * options.samples * options.permutations * LENGTH
    runs = [1 + 2 * n_control_runs(model.n_parameters, options) for model in models]
    tokens = [audited + n_runs * options.max_tokens for n_runs in runs]
    work = sum(2 * model.n_parameters * n for model, n in zip(models, tokens, strict=True))
    if work > LONG_RUN * OPERATIONS:
        minutes = max(1, round(work / OPERATIONS / 60))
        shorter = "" if _fast(options) == options else "; --fast leaves out controls and flows"
        stderr().print(
            f"{sum(tokens):,} tokens are run: some {minutes} min of processor time or more"
            + shorter,
            highlight=False,
        )


def _make(models: "Sequence[Any]", options: "ReportOptions", **given: Any) -> "Report":  # noqa: ANN401
    from rich.text import Text

    from orbitlens.reporting.api import report

    console = stderr()

    def tell(sentence: str) -> None:
        console.print(Text(sentence, style="dim"), soft_wrap=True)

    if not console.is_terminal:
        lines = StageLines()
        try:
            return report(models, **given, options=options, step=lines, ready=tell)
        finally:
            lines.end()
    with console.status("starting") as status:
        return report(models, **given, options=options, step=status.update, ready=tell)


def _say(made: "Report", out: Path) -> None:
    from rich.text import Text

    console = stdout()
    for model in made.models:
        console.print(Text(model.name, style="bold"))
        for sentence in model.words:
            console.print(Text(f"  {sentence}"))
        for part, why in model.missing.items():
            console.print(Text(f"  missing, {part}: {why}", style="dim"))
        for note in model.notes:
            console.print(Text(f"  note: {note}", style="dim"))
    size = len(made.html.encode()) / 1e6
    console.print(Text(f"report written to {out} ({size:.1f} MB)", style="dim"))
