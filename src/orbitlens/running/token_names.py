"""What the tokens of a context are called: their text, their ids, or the patch they stand for."""

from typing import Any

from orbitlens.errors import printable
from orbitlens.running.images import image_shape, patch_side
from orbitlens.running.inputs import Batch
from orbitlens.running.model import Model


def names_of_tokens(model: Model, batch: Batch) -> list[str]:
    """Return the names of the tokens of the first context of a batch."""
    if "pixel_values" in batch:
        return _patch_names(model.module.config)
    tokenizer = model.tokenizer
    ids = batch["input_ids"][0].tolist() if "input_ids" in batch else []
    if tokenizer is None:
        return [str(k) for k in ids]
    names = [tokenizer.decode([k]) or tokenizer.convert_ids_to_tokens(k) for k in ids]
    return [printable(str(name)) for name in names]


def _patch_names(config: Any) -> list[str]:  # noqa: ANN401 - a config of transformers
    per_row = image_shape(config)[2] // patch_side(config)
    patches = [f"patch at row {k // per_row}, column {k % per_row}" for k in range(per_row**2)]
    return ["class token", *patches]
