"""Trained models for studies: those of the package, and those the user names.

Enters: a bench. Leaves: opened models with inputs to run them on. A model that a claim cannot use
is named with the reason, never passed over in silence.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.checkpoint.zoo import zoo_names
from orbitlens.families.feed import Kind
from orbitlens.families.registry import feed_of
from orbitlens.order.inputs import (
    Inputs,
    random_ids,
    reads_passage,
    square_side,
    text_inputs,
)
from orbitlens.order.subject import patches_of_images
from orbitlens.running.inputs import Batch, Limits, id_batches, read_text, text_contexts
from orbitlens.running.loading import load_model
from orbitlens.running.texts import passage
from orbitlens_papers.bench import Bench

NO_MODELS = "no models: the package's own are missing, and none was given"


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A model ready to run."""

    name: str
    checkpoint: Checkpoint
    model: Any  # of transformers
    tokenizer: Any | None

    @property
    def is_image(self) -> bool:
        """Whether it looks at images."""
        return feed_of(self.model.config).kind is Kind.IMAGE


def model_names(bench: Bench) -> list[str]:
    """Return the models to look at: the zoo's (one at smoke), and those given."""
    zoo = list(zoo_names())
    return [*bench.pick(zoo[-1:], zoo, zoo), *bench.settings.models]


def open_model(name: str, *, dtype: torch.dtype = torch.float32) -> Opened:
    """Return a model with its weights; errors say what is wrong with it."""
    checkpoint = load_checkpoint(name)
    model, tokenizer = load_model(checkpoint.path, dtype=dtype, attention="sdpa")
    short = Path(checkpoint.path).name
    return Opened(name=short, checkpoint=checkpoint, model=model, tokenizer=tokenizer)


def positions_of(opened: Opened) -> int:
    """Return how many tokens the model takes, 64 at most."""
    known = getattr(opened.model.config, "max_position_embeddings", None) or 64
    return int(min(64, known))


def order_inputs(opened: Opened, n_samples: int, generator: torch.Generator) -> Inputs:
    """Return inputs whose order can be changed: text, random ids, or patches of noise."""
    config = opened.model.config
    if opened.is_image:
        shape = (
            n_samples,
            int(config.num_channels),
            square_side(config),
            square_side(config),
        )
        pixels = torch.randn(shape, generator=generator).to(next(opened.model.parameters()).dtype)
        return Inputs(items=patches_of_images(pixels, int(config.patch_size)), source="noise")
    length = min(16, positions_of(opened) - feed_of(config).first_id)
    if reads_passage(opened.tokenizer):
        return text_inputs(passage(), opened.tokenizer, n_samples, length, generator)
    return random_ids(config, n_samples, length, generator)


def trace_batches(bench: Bench, opened: Opened) -> Iterator[Batch]:
    """Return contexts of text, or of random ids or noise where a model reads none."""
    context = min(32, positions_of(opened))
    limits = Limits(context=context, batch=8, max_tokens=bench.pick(512, 4096, 40_000))
    generator = bench.generator("trace", 0)
    config = opened.model.config
    if opened.is_image:
        side = square_side(config)
        for _ in range(bench.pick(2, 8, 64)):
            shape = (8, int(config.num_channels), side, side)
            yield {"pixel_values": torch.randn(shape, generator=generator)}
    elif reads_passage(opened.tokenizer):
        file = None if bench.settings.text is None else Path(bench.settings.text)
        contexts = text_contexts(read_text(file), opened.tokenizer, limits)
        yield from id_batches(
            contexts,
            limits,
            vocabulary=int(config.get_text_config().vocab_size),
            positions=getattr(config, "max_position_embeddings", None),
        )
    else:
        n = max(2, limits.max_tokens // context)
        ids: Tensor = random_ids(config, n, context, generator).items
        for block in ids.split(limits.batch):
            yield {"input_ids": block}
