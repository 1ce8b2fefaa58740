"""The command line: parse arguments, call one function, print. Exit 0 done, 2 user error, 1 a bug.

Heavy packages are imported inside the command that needs them, so that `--help` is quick.
"""

import io
import os
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orbitlens.cli.audit import audit
from orbitlens.cli.flow import phase, simulate
from orbitlens.cli.lab import sweep, train
from orbitlens.cli.output import JsonOption, is_number, progress_bar, stderr, stdout, write_json
from orbitlens.cli.report import report, write_demo_report
from orbitlens.cli.trace import trace
from orbitlens.cli.zoo import zoo_app
from orbitlens.errors import InputError, OrbitlensError

if TYPE_CHECKING:
    from torch import Tensor

    from orbitlens.scanning.scan_result import HeadScan, LayerScan, Scan

app = typer.Typer(
    name="orbitlens",
    help="Show where tokens go in a Transformer: which heads gather them, which spread them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

DeviceOption = Annotated[
    str, typer.Option("--device", metavar="auto|cpu|cuda|mps", help="Where to compute.")
]


app.command()(audit)
app.command()(simulate)
app.command()(phase)
app.command()(report)
app.command()(sweep)
app.command()(trace)
app.command()(train)
app.add_typer(zoo_app)
for _entry in sorted(entry_points(group="orbitlens.commands"), key=lambda entry: entry.name):
    app.add_typer(_entry.load(), name=_entry.name)  # installed beside us: `study` of papers/


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        from orbitlens import __version__

        typer.echo(f"orbitlens {__version__}")
        raise typer.Exit


@app.command()
def scan(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model's folder, a .gguf file, or a name.")
    ],
    layers: Annotated[str | None, typer.Option(metavar="0-3,7", help="Only these layers.")] = None,
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
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read .bin files, as plain tensors.")
    ] = False,
) -> None:
    """Read from the weights alone which heads gather tokens and which spread them."""
    from orbitlens.checkpoint.load import load_checkpoint
    from orbitlens.scanning.headmap import ScanOptions
    from orbitlens.scanning.headmap import scan as run_scan

    place = _head_place(head)
    options = ScanOptions(
        layers=[place[1]] if place else _layer_numbers(layers),
        context=context,
        covariances=_covariances(covariance),
        exact=exact,
        device=device,
    )
    checkpoint = load_checkpoint(model, allow_pickle=allow_pickle)
    with progress_bar("scanning") as report:
        result = run_scan(checkpoint, options, progress=report)
    _show_scan(result, place, json_file)


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where to write the model and the result.")
    ] = Path("out"),
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Write a report of the zoo's models too.")
    ] = True,
) -> None:
    """Scan a tiny model made on the spot, then write the report of the zoo's models."""
    from orbitlens.checkpoint.load import load_checkpoint
    from orbitlens.cli.demo import write_demo_model
    from orbitlens.scanning.headmap import ScanOptions
    from orbitlens.scanning.headmap import scan as run_scan

    try:
        folder = write_demo_model(out / "demo-model")
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error}). Choose another --out.") from error
    stderr().print(
        "This model was made on the spot: random weights, but with heads turned from gathering "
        "(first layer, first head) to spreading (last layer, last head).\n"
    )
    result = run_scan(load_checkpoint(folder), ScanOptions(context=256))
    _show_scan(result, None, None)
    file = out / "demo-scan.json"
    write_json(result.to_json(), file)
    typer.echo(f"\nThe model is in {folder}, the whole result in {file}.")
    if report:
        write_demo_report(folder, out / "report.html")
    typer.echo("Next: orbitlens scan PATH_OF_A_MODEL")


@app.command()
def families() -> None:
    """List the families of models that can be read."""
    from rich.table import Table

    from orbitlens.families.registry import FAMILIES

    table = Table(box=None, padding=(0, 1), header_style="bold")
    for name in ("model_type", "stacks", "attention weights of a layer"):
        table.add_column(name)
    for name, family in sorted(FAMILIES.items()):
        first = family.stacks[0]
        layer = first.layer if isinstance(first.layer, str) else "(shared layers)"
        output = first.o if isinstance(first.o, str) else "(by its refinement)"
        table.add_row(name, ", ".join(each.stack for each in family.stacks), f"{layer}.{output}")
    stdout().print(table)


# --- what arguments mean ---------------------------------------------------------------------


def _layer_numbers(text: str | None) -> list[int] | None:
    """Read "0-3,7" as layers 0, 1, 2, 3 and 7."""
    if text is None:
        return None
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not is_number(first) or (dash and not is_number(last)):
            raise InputError(f"--layers {text!r}: expected numbers and ranges, such as 0-3,7.")
        upper = int(last) if dash else int(first)
        if upper < int(first):
            raise InputError(f"--layers {text!r}: {part.strip()!r} is not a range of layers.")
        numbers += range(int(first), upper + 1)
    return numbers


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

    if not file.is_file():
        raise InputError(f"--covariance {file}: there is no such file. Expected safetensors.")
    source = SafetensorsSource([file])
    found = {}
    for name in source.tensors:
        stack, dot, layer = name.rpartition(".")
        if not dot or not is_number(layer):
            raise InputError(
                f"{file}: tensor {name!r} does not say which layer it belongs to. "
                "Expected names such as 'decoder.0' or 'encoder.3'."
            )
        found[(stack, int(layer))] = source.read(name)
    return found


# --- printing --------------------------------------------------------------------------------


def _show_scan(
    result: "Scan", place: tuple[str | None, int, int] | None, json_file: Path | None
) -> None:
    if json_file is not None:
        write_json(result.to_json(), json_file)
        if str(json_file) == "-":
            return
    from orbitlens.terminal.scan_view import head_view, scan_view

    console = stdout()
    parts = head_view(*_find_head(result, place)) if place else scan_view(result, console)
    for part in parts:
        console.print(part)
    if json_file is not None:
        console.print(f"JSON written to {json_file}", style="dim", markup=False, highlight=False)


def _find_head(result: "Scan", place: tuple[str | None, int, int]) -> "tuple[LayerScan, HeadScan]":
    stack, index, number = place
    for layer, head in result.heads():
        if layer.layer == index and head.head == number and stack in {None, layer.stack}:
            return layer, head
    raise InputError(
        f"there is no head {number} in layer {index}{f' of {stack}' if stack else ''}; "
        f"this model has {result.model.n_heads} heads a layer."
    )


def main() -> None:
    """Run the command line; the entry point of the `orbitlens` script."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a stream that lacks a character still gets all
    try:
        app(prog_name="orbitlens")
    except OrbitlensError as error:
        print(f"orbitlens: {_harmless(str(error))}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("orbitlens: stopped.", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader of our output has gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None


def _harmless(text: str) -> str:
    """Escape what a terminal would obey: messages quote names from files, which hold anything."""
    kept = (c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
    return "".join(kept)


if __name__ == "__main__":
    main()
