"""What a report runs a model on, and the names of its tokens.

Enters: a model and what was given. Leaves: `Material`: the same inputs for trace, controls, audit
and orbits.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orbitlens.errors import InputError, printable
from orbitlens.reporting.options import ReportOptions
from orbitlens.running.batches import batches_of, limits_for
from orbitlens.running.images import ImageFile, image_shape, patch_side
from orbitlens.running.inputs import Batch, Inputs, inputs_of, n_positions
from orbitlens.running.model import Model

BATCH = 4  # contexts run at once


@dataclass(frozen=True, kw_only=True)
class ReportInputs:
    """What was given for a report: each model takes what it reads."""

    text: Any = None
    images: Any = None
    tokens: Any = None

    def check(self) -> None:
        """Refuse two kinds of input for the same models.

        Raises:
            InputError: text and token ids were both given.
        """
        if self.text is not None and self.tokens is not None:
            raise InputError("text and token ids were given: give one of them.")

    def for_model(self, model: Model) -> Any:  # noqa: ANN401
        """Return what this model reads."""
        if model.main_input == "pixel_values":
            return self.images if self.images is not None else _images_among(self.text)
        return self.tokens if self.tokens is not None else self.text

    def names(self) -> dict[str, str | None]:
        """Return how each input is named in the report's settings."""
        return {name: _name(getattr(self, name)) for name in ("text", "images", "tokens")}


def _images_among(text: Any) -> Any:  # noqa: ANN401
    """Return arrays given in place of a text; a vision model has no use for words."""
    return None if isinstance(text, (str, Path, list)) else text


def _name(value: object) -> str | None:
    if isinstance(value, ImageFile):
        return value.path.name
    if isinstance(value, Path):
        return value.name
    return None if value is None else "given"


@dataclass(frozen=True, kw_only=True)
class Material:
    """Inputs of one model, and how much of them is run."""

    model: Model
    inputs: Inputs
    options: ReportOptions

    @property
    def context(self) -> int:
        """Tokens of a context."""
        most = n_positions(self.model.module.config) or self.options.context
        return min(self.options.context, most)

    @property
    def can_shuffle(self) -> bool:
        """Whether the order of the inputs can be changed before they enter the model."""
        return self.inputs.images is None and not self.inputs.batches

    def first_batch(self) -> Batch:
        """Return the first contexts."""
        limits = limits_for(
            self.model, context=self.context, batch=BATCH, max_tokens=self.options.max_tokens
        )
        for batch in batches_of(self.model, self.inputs, limits):
            return batch
        raise InputError("the text is too short: it has not one context. Give a longer text.")

    def token_names(self, batch: Batch) -> list[str]:
        """Return what the tokens of the first context are called."""
        if "pixel_values" in batch:
            return _patch_names(self.model.module.config)
        tokenizer = self.model.tokenizer
        ids = batch["input_ids"][0].tolist() if "input_ids" in batch else []
        if tokenizer is None:
            return [str(k) for k in ids]
        names = [tokenizer.decode([k]) or tokenizer.convert_ids_to_tokens(k) for k in ids]
        return [printable(str(name)) for name in names]


def _patch_names(config: Any) -> list[str]:  # noqa: ANN401 - a config of transformers
    per_row = image_shape(config)[2] // patch_side(config)
    patches = [f"patch at row {k // per_row}, column {k % per_row}" for k in range(per_row**2)]
    return ["class token", *patches]


def material_of(model: Model, given: ReportInputs, options: ReportOptions) -> Material:
    """Return the inputs of a model of any kind.

    Raises:
        InputError: the model takes neither tokens nor images, or an input does not fit it.
    """
    if model.main_input == "input_features":
        raise InputError("this model hears sound, which reports do not read; trace it from Python")
    inputs = inputs_of(
        model, given.for_model(model), normalise=options.normalise, seed=options.seed
    )
    return Material(model=model, inputs=inputs, options=options)
