"""The command `orbitlens scan`: what weights say of every head, and with a text what it does."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orbitlens.cli.inputs import (
    ImagesOption,
    LayersOption,
    ModelArgument,
    PickleOption,
    TextOption,
    TokensOption,
    chosen_inputs,
    layer_numbers,
)
from orbitlens.cli.kept_results import NoCacheOption, remembered
from orbitlens.cli.output import JsonOption, is_number, progress_bar, show
from orbitlens.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from torch import Tensor

    from orbitlens.scanning.scan_result import HeadScan, LayerScan, Scan

Place = tuple[str | None, int, int]  # stack, layer, head
DeviceOption = Annotated[
    str, typer.Option("--device", metavar="auto|cpu|cuda|mps", help="Where to compute.")
]


def command(
    model: ModelArgument,
    text: TextOption = None,
    images: ImagesOption = None,
    tokens: TokensOption = None,
    layers: LayersOption = None,
    context: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Rotary: add what a context of N tokens leaves of the rates."
        ),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            metavar="LAYER.HEAD", help="Show all about one head, certificates with reasons."
        ),
    ] = None,
    covariance: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Safetensors with token covariances named 'decoder.0', ...: data-aware rates.",
        ),
    ] = None,
    json_file: JsonOption = None,
    device: DeviceOption = "auto",
    exact: Annotated[
        bool, typer.Option("--exact", help="Whole spectra of layers, however wide.")
    ] = False,
    allow_pickle: PickleOption = False,
    no_cache: NoCacheOption = False,
) -> None:
    """Read from the weights how the two maps of every head lie to each other: aligned or opposed.

    With a text (--text, --tokens or --images) the model is traced on it, and what every head does
    to the directions of tokens, measured and predicted, stands beside that.
    """
    given = chosen_inputs(text=text, images=images, tokens=tokens)
    from orbitlens.running.model import load
    from orbitlens.scanning.api import scan
    from orbitlens.scanning.options import ScanOptions
    from orbitlens.scanning.scan_result import Scan

    place = _head_place(head)
    options = ScanOptions(
        layers=[place[1]] if place else layer_numbers(layers),
        context=context,
        covariances=_covariances(covariance),
        exact=exact,
        device=device,
    )
    opened = load(model, allow_pickle=allow_pickle)
    what = "scanning" if given is None else "tracing and scanning"

    def make() -> Scan:
        with progress_bar(f"{what} {opened.name}") as report:
            return scan(opened, options, text=given, progress=report)

    asked = {
        "given": given,
        "covariance": covariance,
        "options": replace(options, covariances=None),
    }
    result = remembered(Scan, make, models=[opened], asked=asked, no_cache=no_cache)
    show_scan(result, json_file=json_file, place=place)


def show_scan(result: "Scan", *, json_file: Path | None = None, place: Place | None = None) -> None:
    """Print a scan, or all about one head of it."""
    from orbitlens.terminal.scan import scan_view

    show(result, scan_view if place is None else partial(_one_head, place), json_file=json_file)


def _one_head(place: Place, result: "Scan", console: "Console") -> "Iterator[RenderableType]":
    from orbitlens.terminal.scan import head_view

    return head_view(*_find_head(result, place))


def _find_head(result: "Scan", place: tuple[str | None, int, int]) -> "tuple[LayerScan, HeadScan]":
    stack, index, number = place
    for layer, head in result.heads():
        if layer.layer == index and head.head == number and stack in {None, layer.stack}:
            return layer, head
    raise InputError(
        f"there is no head {number} in layer {index}{f' of {stack}' if stack else ''}; "
        f"this model has {result.model.n_heads} heads a layer."
    )


# --- what arguments mean ---------------------------------------------------------------------


def _head_place(text: str | None) -> tuple[str | None, int, int] | None:
    """Read "3.7" or "decoder.3.7" as (stack, layer, head)."""
    if text is None:
        return None
    parts = text.split(".")
    stack = parts.pop(0) if len(parts) == 3 else None
    if len(parts) != 2 or not all(is_number(part) for part in parts):
        raise InputError(f"--head {text!r}: expected LAYER.HEAD, such as 3.7 (or decoder.3.7).")
    return stack, int(parts[0]), int(parts[1])


def _covariances(file: Path | None) -> "dict[tuple[str, int], Tensor] | None":
    if file is None:
        return None
    from orbitlens.checkpoint.safetensors_file import SafetensorsSource
    from orbitlens.checkpoint.stored_file import DiskFile
    from orbitlens.scanning.on_text import covariances_by_place

    if not file.is_file():
        raise InputError(f"--covariance {file}: there is no such file. Expected safetensors.")
    source = SafetensorsSource([DiskFile(file)])
    return covariances_by_place({name: source.read(name) for name in source.tensors})
