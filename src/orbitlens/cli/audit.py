"""The command `orbitlens audit`: what a model makes of the order of its tokens."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orbitlens.cli.output import JsonOption, progress_bar, stdout, write_json
from orbitlens.errors import InputError

if TYPE_CHECKING:
    import torch

    from orbitlens.order.audit_result import Audit
    from orbitlens.order.inputs import Inputs
    from orbitlens.order.subject import Subject


def audit(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model's folder, or a hub name.")],
    text: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Text; lines of token ids where there is no tokenizer."),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Vision: a .npy array of normalised images."),
    ] = None,
    samples: Annotated[int, typer.Option(metavar="N", help="Inputs.")] = 64,
    permutations: Annotated[int, typer.Option(metavar="P", help="Permutations.")] = 64,
    length: Annotated[
        int | None, typer.Option(metavar="L", help="Tokens of an input; 32 if not given.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="S", help="Seed of inputs and shuffles.")] = 0,
    slices: Annotated[
        bool, typer.Option("--slices/--no-slices", help="Probe what slices stand for.")
    ] = True,
    json_file: JsonOption = None,
) -> None:
    """Ask if predictions depend on the order of tokens, how much, and through what."""
    if samples < 2 or permutations < 1:
        raise InputError(
            f"--samples {samples} --permutations {permutations}: expected at least 2 and 1."
        )
    import torch

    from orbitlens.order.audit import AuditOptions
    from orbitlens.order.audit import audit as run_audit
    from orbitlens.running.loading import threads_for

    loaded, tokenizer, path = _load(model)
    n_parameters = sum(p.numel() for p in loaded.parameters())
    generator = torch.Generator().manual_seed(seed)
    inputs = _inputs(loaded, tokenizer, (text, images), (samples, length), generator)
    subject = _subject(loaded, inputs)
    options = AuditOptions(
        permutations=permutations,
        seed=seed,
        slices=slices,
        path=Path(path).name,
        source=inputs.source,
        notes=inputs.notes,
    )
    with progress_bar("auditing") as report, threads_for(n_parameters):
        result = run_audit(subject, inputs.items, options, progress=report)
    _show(result, json_file)


def _load(model: str) -> tuple[Any, Any, str]:
    """Return the model, its tokenizer or None, and where it was found."""
    from orbitlens.checkpoint.load import load_checkpoint
    from orbitlens.families.registry import FAMILIES
    from orbitlens.running.loading import load_model, quiet_transformers

    checkpoint = load_checkpoint(model)
    family = checkpoint.architecture.family
    if FAMILIES[family].feed is None:
        known = ", ".join(sorted(name for name, other in FAMILIES.items() if other.feed))
        raise InputError(
            f"{model}: family {family!r} is known to scan, but not how it takes positions and "
            f"masks. The audit knows: {known}."
        )
    quiet_transformers()
    loaded, tokenizer = load_model(checkpoint.path, attention="sdpa")
    return loaded, tokenizer, checkpoint.path


def _inputs(
    model: Any,  # noqa: ANN401
    tokenizer: Any,  # noqa: ANN401
    files: tuple[Path | None, Path | None],
    size: tuple[int, int | None],
    generator: "torch.Generator",
) -> "Inputs":
    from orbitlens.families.feed import Kind
    from orbitlens.families.registry import feed_of
    from orbitlens.order.inputs import (
        check_length,
        ids_of_file,
        mask_query,
        random_ids,
        reads_passage,
        text_inputs,
    )
    from orbitlens.running.texts import passage

    text, images = files
    n_samples, length = size
    feed = feed_of(model.config)
    kind = feed.kind
    if kind is Kind.IMAGE:
        return _image_inputs(model, images, n_samples, generator)
    if images is not None:
        raise InputError("--images is for vision models; this one reads tokens. Give --text.")
    positions = getattr(model.config, "max_position_embeddings", None) or 32
    wanted = length if length is not None else min(32, positions - feed.first_id)
    n_tokens = check_length(wanted, model.config, first_id=feed.first_id)
    n_vocabulary = int(model.config.vocab_size)
    if text is None and reads_passage(tokenizer):
        inputs = text_inputs(passage(), tokenizer, n_samples, n_tokens, generator)
        note = "no text was given: inputs are from a short English passage of the package"
        inputs = replace(inputs, notes=(note, *inputs.notes))
    elif text is None:
        inputs = random_ids(model.config, n_samples, n_tokens, generator)
    elif tokenizer is None:
        inputs = ids_of_file(text, n_vocabulary, n_samples, n_tokens, generator)
    else:
        inputs = text_inputs(text, tokenizer, n_samples, n_tokens, generator)
    mask_id = getattr(tokenizer, "mask_token_id", None)
    is_masked = kind is Kind.ENCODER and type(model).__name__.endswith("ForMaskedLM")
    return mask_query(inputs, mask_id) if is_masked else inputs


def _image_inputs(
    model: Any,  # noqa: ANN401
    images: Path | None,
    n_samples: int,
    generator: "torch.Generator",
) -> "Inputs":
    import torch

    from orbitlens.order.inputs import Inputs, image_file, square_side
    from orbitlens.order.subject import patches_of_images

    config = model.config
    side, channels = square_side(config), int(config.num_channels)
    if images is None:
        pixels = torch.randn(n_samples, channels, side, side, generator=generator)
        note = "no images were given: inputs are noise, on which a model need not behave as usual"
        items = patches_of_images(pixels, int(config.patch_size))
        return Inputs(items=items, source="noise", notes=(note,))
    pixels = image_file(images, n_samples, generator)
    if pixels.shape[1:] != (channels, side, side):
        raise InputError(
            f"{images}: images of shape {tuple(pixels.shape[1:])}; this model takes "
            f"{(channels, side, side)}."
        )
    return Inputs(items=patches_of_images(pixels, int(config.patch_size)), source="images")


def _subject(model: Any, inputs: "Inputs") -> "Subject":  # noqa: ANN401
    from orbitlens.families.registry import feed_of
    from orbitlens.order.subject import make_subject

    make = feed_of(model.config).companion
    companion = make(model.config) if make is not None else {}
    return make_subject(
        model, n_front=inputs.n_front, n_after_query=inputs.n_after_query, companion=companion
    )


def _show(result: "Audit", json_file: Path | None) -> None:
    if json_file is not None:
        write_json(result.to_json(), json_file)
        if str(json_file) == "-":
            return
    from orbitlens.terminal.audit_view import audit_view

    console = stdout()
    for part in audit_view(result, console):
        console.print(part)
    if json_file is not None:
        console.print(f"JSON written to {json_file}", style="dim", markup=False, highlight=False)
