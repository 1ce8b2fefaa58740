"""The command line: parse arguments, call one verb, show. Exit 0 done, 2 user error, 1 a bug.

Heavy packages are imported inside the command that needs them, so that `--help` is quick.
"""

import gc
import io
import os
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Annotated

import typer

from orbitlens.cli import (
    atlas,
    audit,
    cache,
    cut,
    demo,
    explain,
    explore,
    families,
    flow,
    forecast,
    lab,
    positions,
    report,
    scan,
    trace,
    verify,
    watch,
    zoo,
)
from orbitlens.errors import OrbitlensError

app = typer.Typer(
    name="orbitlens",
    help="Show where tokens go in a Transformer, and which reorderings it cannot tell apart.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# In the order a newcomer needs them, each with a line that 80 columns have room for.
_COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "demo": (demo.command, "Try it all on a tiny model made on the spot."),
    "scan": (
        scan.command,
        "How the maps of each head lie; with --text, what it does.",
    ),
    "trace": (trace.command, "What layers do to tokens of a text, beside what was predicted."),
    "audit": (audit.command, "Whether predictions depend on the order of tokens, and why."),
    "positions": (positions.command, "Whether a model is rotated as it was trained; repair it."),
    "explain": (explain.command, "Which tokens a prediction of an encoder is due to."),
    "report": (report.command, "All of this about one or more models, as one HTML page."),
    "atlas": (atlas.command, "Many models side by side: one table, one page."),
    "explore": (explore.command, "Drag tokens, cut parts, reorder a sentence: a page to play on."),
    "simulate": (flow.simulate, "The flow of tokens under attention, beside what theory says."),
    "phase": (flow.phase, "A map of regimes over two parameters of the flow."),
    "cut": (cut.command, "What a model loses without heads, blocks and layers; cut them."),
    "forecast": (forecast.command, "What untrained layers of an architecture do to tokens."),
    "train": (lab.train, "Train a small model on a task and judge it on new examples."),
    "sweep": (lab.sweep, "Train many models that differ in settings, and compare them."),
    "watch": (watch.command, "How near a training run is to freezing or collapsing, and where."),
    "verify": (verify.command, "Try to break every certificate; print a ledger."),
    "cache": (cache.command, "Where results are kept for a second call; remove them."),
    "families": (families.command, "The families of models that can be read."),
}
for _name, (_command, _line) in _COMMANDS.items():
    app.command(_name, short_help=_line)(_command)
app.add_typer(zoo.zoo_app, short_help="The small models inside the package.")
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


def main() -> None:
    """Run the command line; the entry point of the `orbitlens` script."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a stream that lacks a character still gets all
    gc.set_threshold(200_000, 20, 20)  # looking for garbage is a tenth of what imports cost
    _wait_without_spinning()
    try:
        app(prog_name="orbitlens")
    except OrbitlensError as error:
        # The library speaks of arguments, which the commands have as options.
        text = str(error).replace("allow_pickle=True", "--allow-pickle")
        print(f"orbitlens: {text}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("orbitlens: stopped.", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader of our output has gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None


def _wait_without_spinning() -> None:
    """Have threads sleep while they wait for each other; torch is not loaded yet.

    Otherwise they use up processor time for milliseconds after each product, on a busy machine
    that of others. What the environment says already stays.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # spins 2^4 cycles, not 2^26


if __name__ == "__main__":
    main()
