"""The command `orbitlens forecast`: will an architecture collapse before it learns?"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from orbitlens.cli.output import JsonOption, show
from orbitlens.errors import InputError


def command(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG]", help="A config.json, or its folder.")
    ] = None,
    layers: Annotated[int | None, typer.Option(metavar="N", help="Layers.")] = None,
    width: Annotated[int | None, typer.Option(metavar="N", help="Width of the stream.")] = None,
    heads: Annotated[int | None, typer.Option(metavar="N", help="Heads of a layer.")] = None,
    inner: Annotated[
        int | None, typer.Option(metavar="N", help="Width of the MLP; 0: none.")
    ] = None,
    norm: Annotated[str | None, typer.Option(help="pre, post or peri.")] = None,
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
    json_file: JsonOption = None,
) -> None:
    """Say what untrained layers do to tokens and gradients, in closed form: no weights are made.

    A config of transformers says how its model starts; options change it, or describe a stack.
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
    from orbitlens.forecasting.api import forecast, plan_of
    from orbitlens.forecasting.blueprint import Blueprint
    from orbitlens.terminal.forecast import forecast_view

    plan, name = (Blueprint(), None) if config is None else plan_of(config)
    show(forecast(replace(plan, **changes), name=name), forecast_view, json_file=json_file)
