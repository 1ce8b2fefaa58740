"""The command `orbitlens forecast`: will an architecture collapse before it learns?"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orbitlens.cli.output import JsonOption, progress_bar, show, swept_values
from orbitlens.errors import InputError
from orbitlens.files import write_result

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitlens.draw.figure import Figure
    from orbitlens.forecasting.blueprint import Blueprint
    from orbitlens.forecasting.mapping import MapAxis


def command(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG]",
            help="A config.json of transformers or of a run of the lab, its folder, or a sweep "
            "file (.toml): one line for each of its settings.",
        ),
    ] = None,
    layers: Annotated[int | None, typer.Option(metavar="N", help="Layers.")] = None,
    width: Annotated[int | None, typer.Option(metavar="N", help="Width of the stream.")] = None,
    heads: Annotated[int | None, typer.Option(metavar="N", help="Heads of a layer.")] = None,
    inner: Annotated[
        int | None, typer.Option(metavar="N", help="Width of the MLP; 0: none.")
    ] = None,
    norm: Annotated[str | None, typer.Option(help="pre, post, peri or none.")] = None,
    init: Annotated[
        float | None, typer.Option(metavar="STD", help="Standard deviation of first weights.")
    ] = None,
    output_init: Annotated[
        float | None, typer.Option(metavar="STD", help="Of maps that write to the stream.")
    ] = None,
    residual_scale: Annotated[
        float | None, typer.Option(metavar="X", help="What branches are multiplied by.")
    ] = None,
    activation: Annotated[str | None, typer.Option(help="relu, gelu, swiglu or geglu.")] = None,
    position: Annotated[
        str | None, typer.Option(help="none, learned, sinusoidal, rotary or alibi.")
    ] = None,
    mask: Annotated[str | None, typer.Option(help="causal or full.")] = None,
    qk_norm: Annotated[
        bool | None, typer.Option("--qk-norm/--no-qk-norm", help="Queries and keys normalised.")
    ] = None,
    context: Annotated[int | None, typer.Option(metavar="N", help="Tokens of a context.")] = None,
    x: Annotated[
        str | None,
        typer.Option("--x", metavar="NAME=A,B,C", help="Draw a map: what goes across."),
    ] = None,
    y: Annotated[
        str | None, typer.Option("--y", metavar="NAME=A,B,C", help="And what goes upwards.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("-o", "--plot", metavar="FILE", help="The map as .html or .png.")
    ] = None,
    built: Annotated[
        int, typer.Option(metavar="N", help="Build N untrained models of each, to compare.")
    ] = 0,
    json_file: JsonOption = None,
) -> None:
    """Say what untrained layers do to tokens and gradients, in closed form: no weights are made.

    A config of transformers says how its model starts; options change it, or describe a stack. With
    --x and --y, a map of which combinations of two parameters are trainable.
    """
    given: dict[str, Any] = {
        "layers": layers,
        "width": width,
        "heads": heads,
        "inner": inner,
        "norm": norm,
        "init": init,
        "output_init": output_init,
        "residual_scale": residual_scale,
        "activation": activation,
        "position": position,
        "mask": mask,
        "qk_norm": qk_norm,
        "context": context,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if config is None and not changes:
        raise InputError("give a config.json, or sizes such as --layers 48 --width 512 --heads 8.")
    from orbitlens.forecasting.blueprint import Blueprint

    plans = {"": Blueprint()} if config is None else _plans(config)
    plans = {name: replace(plan, **changes) for name, plan in plans.items()}
    if x is not None or y is not None:
        _show_map(plans, x, y, plot, json_file)
    elif plot is not None:
        raise InputError("-o draws a map: give --x and --y, such as --x init=0.02,0.05,0.1.")
    else:
        _show_forecasts(plans, built, json_file)


def _plans(config: Path) -> "dict[str, Blueprint]":
    """Return what a file describes, by name."""
    from orbitlens.forecasting.api import plan_of

    if config.suffix != ".toml":
        plan, name = plan_of(config)
        return {name: plan}
    from orbitlens.lab.run import task_of
    from orbitlens.lab.sweep_file import read_sweep

    found = {}
    for cell in read_sweep(config).cells:
        run = cell.config(0)
        plan, _ = plan_of(run.to_json())
        found[cell.label] = replace(plan, vocabulary=task_of(run).vocab_size)
    return found


def _show_forecasts(plans: "dict[str, Blueprint]", built: int, json_file: Path | None) -> None:
    from orbitlens.forecasting.api import forecast
    from orbitlens.forecasting.comparison import compared
    from orbitlens.terminal.forecast import comparison_view, forecast_view

    if len(plans) == 1 and not built:
        ((name, plan),) = plans.items()
        show(forecast(plan, name=name or None), forecast_view, json_file=json_file)
        return
    with progress_bar("forecasting") as report:
        result = compared(plans, built=built, progress=report)
    show(result, comparison_view, json_file=json_file)


def _show_map(
    plans: "dict[str, Blueprint]",
    x: str | None,
    y: str | None,
    plot: Path | None,
    json_file: Path | None,
) -> None:
    from orbitlens.forecasting.mapping import forecast_map
    from orbitlens.terminal.forecast import map_view

    if len(plans) != 1 or x is None or y is None:
        raise InputError(
            "a map is of one architecture over two parameters: give --x and --y, such as "
            "--x init=0.02,0.05,0.1 --y layers=4,8,16."
        )
    write = _writer(plot)
    axes = [_axis(text, option) for text, option in ((x, "--x"), (y, "--y"))]
    with progress_bar("mapping") as report:
        result = forecast_map(next(iter(plans.values())), *axes, progress=report)
    written = []
    if plot is not None:
        write_result(plot, write(result.figure()))
        written.append(f"map drawn in {plot}")
    show(result, map_view, json_file=json_file, written=written)


def _axis(text: str, option: str) -> "MapAxis":
    from orbitlens.forecasting.mapping import MapAxis

    name, values = swept_values(text, option, example="init=0.02,0.05,0.1")
    return MapAxis(name=name, values=values)


def _writer(file: Path | None) -> "Callable[[Figure], bytes]":
    """Return what makes a file of this kind, before anything is computed.

    Raises:
        InputError: neither a page nor a picture.
    """
    from orbitlens.draw.figure import check_packages
    from orbitlens.draw.figure_html import html_of
    from orbitlens.draw.figure_png import png_of

    suffix = ".html" if file is None else file.suffix
    if suffix == ".html":
        return lambda figure: html_of(figure).encode("utf-8")
    if suffix != ".png":
        raise InputError(f"{file}: a map is drawn as .html or .png.")
    check_packages()
    return png_of
