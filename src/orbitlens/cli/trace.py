"""The command `orbitlens trace`: run a model and follow its tokens through depth."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orbitlens.cli.freed_memory import keep_freed_memory
from orbitlens.cli.inputs import (
    ImagesOption,
    NormaliseOption,
    PickleOption,
    TextOption,
    TokensOption,
    chosen_inputs,
    mean_std,
)
from orbitlens.cli.kept_results import NoCacheOption, remembered
from orbitlens.cli.output import JsonOption, progress_bar, show, write_json
from orbitlens.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from orbitlens.running.inputs import Inputs
    from orbitlens.running.model import Model
    from orbitlens.tracing.options import TraceOptions
    from orbitlens.tracing.trace_result import Trace


def command(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model's folder, a .gguf file, or a name.")
    ],
    text: TextOption = None,
    images: ImagesOption = None,
    tokens: TokensOption = None,
    fit_text: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Fit predictions on this text, judge them on --text."),
    ] = None,
    text_free: Annotated[
        str | None,
        typer.Option(
            metavar="LAW", help="No text: draw ids by the law embedding or embedding-zipf."
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(metavar="N", help="Stop after N tokens.")] = 20_000,
    context: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens a context, special ones included.")
    ] = None,
    batch: Annotated[int, typer.Option(metavar="B", help="Contexts run at once.")] = 8,
    normalise: NormaliseOption = "0.5,0.5",
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="Control: tokens in random order.")
    ] = False,
    twin: Annotated[
        bool, typer.Option("--twin", help="Control: trace an untrained model of the same config.")
    ] = False,
    mechanisms: Annotated[
        bool,
        typer.Option("--mechanisms", help="Induction, saturation, margin of heads; with a twin."),
    ] = False,
    by_token: Annotated[
        bool, typer.Option("--by-token", help="Follow each token of the first context.")
    ] = False,
    seed: Annotated[int, typer.Option(metavar="S", help="Seed of all that is random.")] = 0,
    json_file: JsonOption = None,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write trace.json and the covariances (for scan --covariance)."
        ),
    ] = None,
    allow_pickle: PickleOption = False,
    no_cache: NoCacheOption = False,
) -> None:
    """Run a model on text and set what its layers do beside what was predicted."""
    given = chosen_inputs(text=text, images=images, tokens=tokens)
    from orbitlens.running.model import load
    from orbitlens.tracing.api import trace_and_covariances
    from orbitlens.tracing.options import TraceOptions
    from orbitlens.tracing.trace_result import Trace

    options = TraceOptions(
        max_tokens=max_tokens,
        context=context,
        batch=batch,
        shuffle=shuffle,
        twin=twin,
        mechanisms=mechanisms,
        by_token=by_token,
        normalise=mean_std(normalise),
        seed=seed,
    )
    opened = load(model, allow_pickle=allow_pickle)
    if text_free is not None and given is not None:
        raise InputError("--text-free draws its own tokens: give no text, ids or images with it.")

    def make() -> Trace:
        keep_freed_memory()
        with progress_bar(f"tracing {opened.name}") as report:
            inputs = given if text_free is None else _drawn(opened, text_free, options)
            result, covariances = trace_and_covariances(
                opened, inputs, fit=fit_text, options=options, progress=report
            )
        if save is not None:
            _save(result, covariances, save)
        return result

    asked = {"given": given, "law": text_free, "fit": fit_text, "options": options}
    anew = no_cache or save is not None
    result = remembered(Trace, make, models=[opened], asked=asked, no_cache=anew)
    from orbitlens.terminal.trace import trace_view

    written = () if save is None else (f"covariances and trace.json written to {save}",)
    show(result, trace_view, json_file=json_file, written=written)


def _drawn(opened: "Model", law: str, options: "TraceOptions") -> "Inputs":
    from orbitlens.tracing.forecast import text_free_inputs

    return text_free_inputs(
        opened.running,
        law,
        max_tokens=options.max_tokens,
        context=options.context,
        batch=options.batch,
        seed=options.seed,
    )


def _save(result: "Trace", covariances: "dict[str, Tensor]", folder: Path) -> None:
    from safetensors.torch import save_file

    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(covariances, folder / "covariances.safetensors")
    except OSError as error:
        raise InputError(f"--save {folder}: cannot be written ({error}).") from error
    write_json(result.to_json(), folder / "trace.json")
