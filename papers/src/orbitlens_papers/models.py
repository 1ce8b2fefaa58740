"""Trained models for studies: those of the package, and those the user names.

Enters: a bench. Leaves: opened models with inputs to run them on. A model that a claim cannot use
is named with the reason, never passed over in silence.
"""

from collections.abc import Iterator
from pathlib import Path

import torch

from orbitlens.checkpoint.zoo import zoo_names
from orbitlens.running.batches import Limits, batches_of
from orbitlens.running.images import image_shape, patch_side, patches_of_images
from orbitlens.running.inputs import Batch, inputs_of, n_positions, random_ids
from orbitlens.running.model import Model
from orbitlens.running.samples import Samples, samples_of
from orbitlens.running.texts import reads_passage
from orbitlens_papers.bench import Bench

NO_MODELS = "no models: the package's own are missing, and none was given"


def model_names(bench: Bench) -> list[str]:
    """Return the models to look at: the zoo's (one at smoke), and those given."""
    zoo = list(zoo_names())
    return [*bench.pick(zoo[-1:], zoo, zoo), *bench.settings.models]


def _most_tokens(model: Model) -> int:
    """Return how many tokens the model takes, 64 at most."""
    return min(64, n_positions(model.module.config) or 64)


def _noise(model: Model, n_images: int, generator: torch.Generator) -> torch.Tensor:
    shape = image_shape(model.module.config)
    dtype = next(model.module.parameters()).dtype
    return torch.randn(n_images, *shape, generator=generator).to(dtype)


def order_samples(model: Model, n_samples: int, generator: torch.Generator) -> Samples:
    """Return inputs whose order can be changed: text, random ids, or patches of noise."""
    config = model.module.config
    if model.main_input == "pixel_values":
        patches = patches_of_images(_noise(model, n_samples, generator), patch_side(config))
        return Samples(items=patches, source="noise")
    length = min(16, _most_tokens(model) - model.feed.first_id)
    if reads_passage(model.tokenizer):
        passage = inputs_of(model, None)
        return samples_of(model, passage, n_samples, length=length, generator=generator)
    return Samples(items=random_ids(config, n_samples, length, generator), source="random")


def trace_batches(bench: Bench, model: Model) -> Iterator[Batch]:
    """Return contexts of text, or of random ids or noise where a model reads none."""
    context = min(32, _most_tokens(model))
    limits = Limits(context=context, batch=8, max_tokens=bench.pick(512, 4096, 40_000))
    generator = bench.generator("trace", 0)
    if model.main_input == "pixel_values":
        for _ in range(bench.pick(2, 8, 64)):
            yield {"pixel_values": _noise(model, 8, generator)}
    elif reads_passage(model.tokenizer):
        text = None if bench.settings.text is None else Path(bench.settings.text)
        yield from batches_of(model, inputs_of(model, text), limits)
    else:
        n_rows = max(2, limits.max_tokens // context)
        for block in random_ids(model.module.config, n_rows, context, generator).split(8):
            yield {"input_ids": block}
