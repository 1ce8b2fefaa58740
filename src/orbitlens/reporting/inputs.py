"""What a report runs a model on: text, ids or images, and noise where there are none.

Enters: a running model, its tokenizer, files. Leaves: batches for a trace, items for an audit, the
names of tokens, and notes on where they come from.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.families.registry import FAMILIES
from orbitlens.order.inputs import Inputs, mask_query, random_ids, text_inputs
from orbitlens.order.subject import patches_of_images
from orbitlens.running.inputs import (
    Batch,
    Limits,
    id_batches,
    image_batches,
    parse_ids,
    read_images,
    read_text,
    shuffled,
    text_contexts,
)
from orbitlens.running.texts import passage

AUDIT_LENGTH = 32


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """How much a report computes, and on what."""

    text: Path | None = None
    images: Path | None = None
    tokens: Path | None = None
    normalise: tuple[float, float] = (0.5, 0.5)
    max_tokens: int = 2048
    context: int = 64
    samples: int = 24
    permutations: int = 16
    flows: int | None = None  # heads whose flow is simulated; None: as many as there is room for
    flow_growth: float = 4.0  # flows run until the fastest token could have grown by e to this
    controls: int = 3  # runs of each control, the untrained twin and shuffled tokens; 0: none
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Material:
    """Inputs for one model."""

    batches: Callable[[], list[Batch]]
    shuffled: Callable[[int], list[Batch]] | None  # by seed; None: no order at the input
    audit: Callable[[], Inputs]
    token_names: Callable[[Batch], list[str]]
    source: str
    notes: tuple[str, ...]


def material(running: Any, tokenizer: Any, family: str, options: ReportOptions) -> Material:  # noqa: ANN401
    """Return the inputs of a model of any kind.

    Raises:
        InputError: the model takes neither tokens nor images, or a file does not fit it.
    """
    if FAMILIES[family].takes_images:
        return _images(running, options)
    if hasattr(running.config, "num_mel_bins"):
        raise InputError("this model hears sound, which reports do not read; trace it from Python")
    return _words(running, tokenizer, options)


# --- tokens ----------------------------------------------------------------------------------


def _positions(config: Any) -> int | None:  # noqa: ANN401
    for name in ("max_position_embeddings", "max_seq_len", "n_positions", "seq_length"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def _words(running: Any, tokenizer: Any, options: ReportOptions) -> Material:  # noqa: ANN401
    config = running.config.get_text_config()
    most, vocabulary = _positions(config), int(config.vocab_size)
    limits = Limits(
        context=min(options.context, most or options.context),
        batch=4,
        max_tokens=options.max_tokens,
    )
    contexts, source, notes = _contexts(tokenizer, config, limits, options)
    rng = torch.Generator().manual_seed(options.seed)
    length = min(AUDIT_LENGTH, limits.context)

    def audit() -> Inputs:
        if source != "text":
            return _audited_ids(contexts, options.samples, length, source, notes)
        file = options.text or passage()
        found = text_inputs(file, tokenizer, options.samples, length, rng)
        mask_id = getattr(tokenizer, "mask_token_id", None)
        masked = type(running).__name__.endswith("ForMaskedLM")
        return mask_query(found, mask_id) if masked else found

    def run(rows: list[list[int]]) -> list[Batch]:
        return list(id_batches(rows, limits, vocabulary=vocabulary, positions=most))

    return Material(
        batches=lambda: run(contexts),
        shuffled=lambda seed: run(list(shuffled(contexts, seed=seed))),
        audit=audit,
        token_names=lambda batch: _names(batch, tokenizer),
        source=source,
        notes=notes,
    )


def _contexts(
    tokenizer: Any,  # noqa: ANN401
    config: Any,  # noqa: ANN401
    limits: Limits,
    options: ReportOptions,
) -> tuple[list[list[int]], str, tuple[str, ...]]:
    """Return contexts of ids, what they are, and what to note about them."""
    if tokenizer is not None:
        note = () if options.text else ("the text is the passage that comes with the package",)
        return list(text_contexts(read_text(options.text), tokenizer, limits)), "text", note
    if options.tokens is not None:
        return parse_ids(str(options.tokens))[: limits.max_tokens // 4], "ids", ()
    rng = torch.Generator().manual_seed(options.seed)
    n = max(2, limits.max_tokens // limits.context)
    rows = random_ids(config, n, limits.context, rng).items.tolist()
    note = (
        "the folder has no tokenizer and no ids were given (--tokens FILE): inputs are random "
        "tokens, on which a model need not behave as usual",
    )
    return rows, "random tokens", note


def _audited_ids(
    contexts: list[list[int]], n_samples: int, length: int, source: str, notes: tuple[str, ...]
) -> Inputs:
    """Return pieces of one length, cut from contexts one behind the other."""
    length = min(length, min(len(row) for row in contexts))
    pieces = [
        row[start : start + length]
        for row in contexts
        for start in range(0, len(row) - length + 1, length)
    ]
    kind = "random" if source == "random tokens" else "ids"
    return Inputs(items=torch.tensor(pieces[:n_samples]), source=kind, notes=notes)


def _names(batch: Batch, tokenizer: Any) -> list[str]:  # noqa: ANN401
    ids = batch["input_ids"][0].tolist()
    if tokenizer is None:
        return [str(k) for k in ids]
    return [str(tokenizer.decode([k])) or str(tokenizer.convert_ids_to_tokens(k)) for k in ids]


# --- images ----------------------------------------------------------------------------------


def _images(running: Any, options: ReportOptions) -> Material:  # noqa: ANN401
    config = running.config
    side, patch, channels = int(config.image_size), int(config.patch_size), int(config.num_channels)
    per_row = side // patch
    n_images = max(8, options.max_tokens // (per_row**2 + 1))
    pixels, notes = _pixels(options, (n_images, channels, side))
    limits = Limits(context=per_row**2 + 1, batch=8, max_tokens=options.max_tokens)

    def batches() -> list[Batch]:
        return list(image_batches(pixels, limits, shape=(channels, side, side)))

    def names(batch: Batch) -> list[str]:
        patches = [f"patch at row {k // per_row}, column {k % per_row}" for k in range(per_row**2)]
        return ["class token", *patches]

    def audit() -> Inputs:
        items = patches_of_images(pixels[: options.samples], patch)
        return Inputs(items=items, source="images" if options.images else "noise", notes=notes)

    return Material(
        batches=batches,
        shuffled=None,
        audit=audit,
        token_names=names,
        source="images" if options.images else "noise",
        notes=notes,
    )


def _pixels(options: ReportOptions, shape: tuple[int, int, int]) -> tuple[Tensor, tuple[str, ...]]:
    n_images, channels, side = shape
    if options.images is not None:
        mean, std = options.normalise
        return read_images(options.images, mean=mean, std=std)[:n_images], ()
    rng = torch.Generator().manual_seed(options.seed)
    note = (
        "no images were given (--images FILE): inputs are noise, on which a model need not behave "
        "as usual",
    )
    return torch.randn(n_images, channels, side, side, generator=rng), note
