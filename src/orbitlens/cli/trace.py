"""The command `orbitlens trace`: run a model and follow its tokens through depth."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orbitlens.cli.output import (
    JsonOption,
    NormaliseOption,
    mean_std,
    progress_bar,
    stdout,
    write_json,
)
from orbitlens.errors import InputError

if TYPE_CHECKING:
    from orbitlens.checkpoint.opened import Checkpoint
    from orbitlens.running.inputs import Batch, Limits
    from orbitlens.tracing.mechanism_result import Mechanisms
    from orbitlens.tracing.trace_result import Trace

    Opened = tuple[Checkpoint, Any]  # with the running model

DEFAULT_CONTEXT = 128
Batches = Callable[[], "Iterator[Batch]"]


def trace(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model's folder or a hub name.")],
    text: Annotated[
        Path | None, typer.Option(metavar="FILE", help="UTF-8 text of any size; it is streamed.")
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Images: .npy, or MNIST's own format (.gz)."),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(metavar="IDS", help="Token ids: 5,17,3 or a file, one context a line."),
    ] = None,
    fit_text: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Fit predictions on this text, judge them on --text."),
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
    seed: Annotated[int, typer.Option(metavar="S", help="Seed of all that is random.")] = 0,
    json_file: JsonOption = None,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write trace.json and the covariances (for scan --covariance)."
        ),
    ] = None,
) -> None:
    """Run a model on text and set what its layers do beside what was predicted."""
    from orbitlens.checkpoint.load import load_checkpoint
    from orbitlens.running.loading import load_model, quiet_transformers

    if sum(given is not None for given in (text, images, tokens)) > 1:
        raise InputError("--text, --images and --tokens: give one of them.")
    for name, value in (("--max-tokens", max_tokens), ("--batch", batch), ("--context", context)):
        if value is not None and value < 1:
            raise InputError(f"{name} {value}: expected at least 1.")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    quiet_transformers()
    checkpoint = load_checkpoint(model)
    running, tokenizer = load_model(checkpoint.path)
    limits = _limits(running, context, batch, max_tokens)
    source = _Source(checkpoint, running, tokenizer, limits, seed if shuffle else None)
    if images is not None:
        batches = source.images(images, *mean_std(normalise))
    elif tokens is not None:
        batches = source.ids(tokens)
    else:
        batches = source.text(text)
    fit = source.text(fit_text) if fit_text is not None else None
    result = _run(checkpoint, running, batches, fit, seed, save)
    if twin or mechanisms:
        with _untrained(checkpoint, seed) as control:
            if twin:
                result = replace(result, twin=_run(*control, batches, fit, seed, None))
            if mechanisms:
                pair = (checkpoint, running), control
                scores = _mechanisms(pair, tokenizer, batches, limits, seed)
                result = replace(result, mechanisms=scores)
    _show(result, json_file, save)


def _limits(running: Any, context: int | None, batch: int, max_tokens: int) -> "Limits":  # noqa: ANN401
    from orbitlens.running.inputs import Limits, n_positions

    most = n_positions(running)
    if context is not None and most is not None and context > most:
        raise InputError(
            f"--context {context}: this model has {most} positions. Use --context {most} or less."
        )
    chosen = context or min(DEFAULT_CONTEXT, most or DEFAULT_CONTEXT)
    return Limits(context=chosen, batch=batch, max_tokens=max_tokens)


class _Source:
    """Makes batches for one model, as often as they are needed."""

    def __init__(
        self,
        checkpoint: "Checkpoint",
        running: Any,  # noqa: ANN401
        tokenizer: Any,  # noqa: ANN401
        limits: "Limits",
        shuffle_seed: int | None,
    ) -> None:
        self.checkpoint, self.running, self.tokenizer = checkpoint, running, tokenizer
        self.limits, self.shuffle_seed = limits, shuffle_seed

    def text(self, file: Path | None) -> Batches:
        from orbitlens.running.inputs import read_text, text_contexts

        if self._takes_images():
            raise InputError(
                f"{self.checkpoint.path}: this model looks at images. Give them with --images FILE."
            )
        if hasattr(self.running.config, "num_mel_bins"):
            raise InputError(
                f"{self.checkpoint.path}: this model hears sound, which the command line does not "
                "read. From Python, give orbitlens.tracing.trace batches with input_features."
            )
        if self.tokenizer is None:
            raise InputError(
                f"{self.checkpoint.path}: there is no tokenizer in the model's folder "
                "(tokenizer.json), so text cannot be turned into ids. Pass ids: --tokens 5,17,3 or "
                "--tokens FILE with one context a line."
            )
        return lambda: self._batches(text_contexts(read_text(file), self.tokenizer, self.limits))

    def ids(self, given: str) -> Batches:
        from orbitlens.running.inputs import parse_ids

        if self._takes_images():
            raise InputError("this model looks at images, not at tokens. Use --images FILE.")
        contexts = parse_ids(given)
        return lambda: self._batches(_enough(contexts, self.limits.max_tokens))

    def images(self, file: Path, mean: float, std: float) -> Batches:
        from orbitlens.running.inputs import image_batches, read_images

        if not self._takes_images():
            raise InputError("--images: this model reads text. Give it with --text FILE.")
        config = self.running.config
        size = config.image_size
        height, width = (size, size) if isinstance(size, int) else tuple(size)
        patch = config.patch_size if isinstance(config.patch_size, int) else config.patch_size[0]
        per_image = (height // patch) * (width // patch) + 1
        found = read_images(file, mean=mean, std=std)[: max(1, self.limits.max_tokens // per_image)]
        shape = (config.num_channels, height, width)
        return lambda: image_batches(found, self.limits, shape=shape)

    def _takes_images(self) -> bool:
        from orbitlens.families.registry import FAMILIES

        return FAMILIES[self.checkpoint.architecture.family].takes_images

    def _batches(self, contexts: "Iterator[list[int]]") -> "Iterator[Batch]":
        from orbitlens.running.inputs import id_batches, n_positions, shuffled

        if self.shuffle_seed is not None:
            contexts = shuffled(contexts, seed=self.shuffle_seed)
        return id_batches(
            contexts,
            self.limits,
            vocabulary=self.running.config.get_text_config().vocab_size,
            positions=n_positions(self.running),
        )


def _enough(contexts: list[list[int]], max_tokens: int) -> "Iterator[list[int]]":
    left = max_tokens
    for context in contexts:
        if left <= 0:
            return
        left -= len(context)
        yield context


def _run(
    checkpoint: "Checkpoint",
    running: Any,  # noqa: ANN401
    batches: Batches,
    fit: Batches | None,
    seed: int,
    save: Path | None,
) -> "Trace":
    from orbitlens.tracing.trace import Collector, TraceOptions, finish

    options = TraceOptions(seed=seed)
    with progress_bar("tracing") as report:
        collector = Collector(checkpoint, n_kept=options.n_kept)
        collector.run(running, fit() if fit else None, batches(), report)
        result = finish(collector, running, options, report)
    if save is not None:
        _save(collector, result, save)
    return result


def _save(collector: Any, result: "Trace", folder: Path) -> None:  # noqa: ANN401
    from safetensors.torch import save_file

    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(collector.covariances(), folder / "covariances.safetensors")
    except OSError as error:
        raise InputError(f"--save {folder}: cannot be written ({error}).") from error
    write_json(result.to_json(), folder / "trace.json")


@contextmanager
def _untrained(checkpoint: "Checkpoint", seed: int) -> "Iterator[Opened]":
    """Yield a model of the same config with fresh weights, and its checkpoint."""
    from orbitlens.checkpoint.load import load_checkpoint
    from orbitlens.running.loading import fresh_twin

    with tempfile.TemporaryDirectory(prefix="orbitlens-") as folder:
        running = fresh_twin(checkpoint.path, seed=seed)
        running.save_pretrained(folder)
        yield load_checkpoint(folder), running


def _mechanisms(
    pair: "tuple[Opened, Opened]",
    tokenizer: Any,  # noqa: ANN401
    batches: Batches,
    limits: "Limits",
    seed: int,
) -> "Mechanisms":
    from orbitlens.tracing.mechanisms import MechanismOptions, Subject, mechanisms

    subject, twin = (Subject(checkpoint=opened[0], model=opened[1]) for opened in pair)
    options = MechanismOptions(batch=limits.batch, seed=seed)
    with progress_bar("scoring heads") as report:
        return mechanisms(
            subject, twin, batches, tokenizer=tokenizer, options=options, progress=report
        )


def _show(result: "Trace", json_file: Path | None, save: Path | None) -> None:
    if json_file is not None:
        write_json(result.to_json(), json_file)
        if str(json_file) == "-":
            return
    from rich.text import Text

    from orbitlens.terminal.trace_view import trace_view

    console = stdout()
    for part in trace_view(result, console):
        console.print(part)
    if json_file is not None:
        console.print(Text(f"JSON written to {json_file}", style="dim"))
    if save is not None:
        console.print(Text(f"covariances and trace.json written to {save}", style="dim"))
