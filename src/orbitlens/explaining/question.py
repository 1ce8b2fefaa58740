"""One input of a model, with tokens masked, and the attention of its last layer.

Enters: a model of transformers (or the lab's) that takes `input_ids`, and one sequence. Leaves: the
prediction with any set of tokens masked, and attention as the explanation reads it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.families.registry import FAMILIES

Inputs = Tensor | Mapping[str, Any]
Scores = Callable[[Any], Tensor]  # from a model's output for a batch of one to a vector of scores


@dataclass(frozen=True, kw_only=True)
class Question:
    """A model, an input and what is asked about it."""

    model: Any
    inputs: Mapping[str, Tensor]
    mask_id: int | None
    scores: Scores | None
    asked: int | None  # the position that was asked about; None: the mask, or the first token

    @property
    def ids(self) -> Int[Tensor, " tokens"]:
        """The token ids."""
        return self.inputs["input_ids"][0]

    @property
    def target(self) -> int:
        """The token whose prediction is explained."""
        if self.asked is not None:
            return self.asked
        if self.mask_id is None:
            return 0
        masks = (self.ids == self.mask_id).nonzero()[:, 0].tolist()
        if len(masks) > 1:
            raise InputError(
                f"the mask token is at {len(masks)} positions, {masks}. Say which one is asked "
                "about: target=POSITION."
            )
        return int(masks[0]) if masks else 0

    @torch.no_grad()
    def prediction(self, masked: Sequence[int] = ()) -> int:
        """Return the class or token with the largest score when these tokens are masked."""
        output = self.model(**self._masked(masked))
        return int(self._scores(output).argmax())

    @torch.no_grad()
    def attention(self, prediction: int) -> Float[Tensor, "head tokens tokens"]:
        """Return the last layer's attention; a mask at the target is filled in first.

        Raises:
            InputError: the model returns none, or attends to the past only.
        """
        inputs = dict(self.inputs)
        if self.mask_id is not None and int(self.ids[self.target]) == self.mask_id:
            inputs["input_ids"] = self._with_ids({self.target: prediction})
        patterns = getattr(self.model(**inputs, output_attentions=True), "attentions", None)
        if not patterns or patterns[-1] is None:
            raise InputError(
                "the model returned no attention. Expected an encoder whose layers return their "
                "patterns: load it with attn_implementation='eager'."
            )
        pattern: Tensor = patterns[-1][0].double().cpu()
        if not bool(pattern.triu(1).any()):
            raise InputError(
                "attention is causal: no token sees a later one. Expected an encoder; in a causal "
                "model the order of causes is known and this search would not use it."
            )
        return pattern

    def _masked(self, masked: Sequence[int]) -> dict[str, Tensor]:
        inputs = dict(self.inputs)
        if not masked:
            return inputs
        if self.mask_id is not None:
            inputs["input_ids"] = self._with_ids(dict.fromkeys(masked, self.mask_id))
        else:
            seen = inputs.get("attention_mask", torch.ones_like(self.inputs["input_ids"])).clone()
            seen[0, list(masked)] = 0
            inputs["attention_mask"] = seen
        return inputs

    def _with_ids(self, changed: Mapping[int, int]) -> Int[Tensor, "1 tokens"]:
        ids = self.ids.clone()
        for place, value in changed.items():
            ids[place] = value
        return ids[None]

    def _scores(self, output: Any) -> Float[Tensor, " classes"]:  # noqa: ANN401
        scores = self._logits(output) if self.scores is None else self.scores(output)
        if scores.ndim != 1 or len(scores) < 2:
            raise InputError(
                f"scores have shape {list(scores.shape)}; expected one number for each of at least "
                "two classes."
            )
        return scores

    def _logits(self, output: Any) -> Tensor:  # noqa: ANN401
        logits: Tensor | None = getattr(output, "logits", None)
        if logits is None:
            raise InputError(
                "the model predicts nothing: its output has no logits. Give scores=FUNCTION from "
                "its output to one number a class, or load the model with its head."
            )
        return logits[0] if logits.ndim == 2 else logits[0, self.target]


def question_of(
    model: Any,  # noqa: ANN401 - a model of transformers
    inputs: Inputs,
    *,
    target: int | None = None,
    mask_id: int | None = None,
    scores: Scores | None = None,
) -> Question:
    """Return a question, checked.

    Raises:
        InputError: the model is training, or the input is not one sequence of token ids.
    """
    if model.training:
        raise InputError("the model is in training mode, and dropout is random: model.eval() it.")
    given = dict(inputs) if isinstance(inputs, Mapping) else {"input_ids": inputs}
    ids = given.get("input_ids")
    if not isinstance(ids, Tensor) or ids.is_floating_point():
        raise InputError("inputs have no token ids. Expected a tensor of ids, or `input_ids`.")
    if ids.ndim == 1:
        given = {name: value[None] for name, value in given.items()}
    ids = given["input_ids"]
    if ids.ndim != 2 or len(ids) != 1 or ids.shape[1] < 2:
        raise InputError(
            f"inputs have shape {list(ids.shape)}; expected one sequence of 2 tokens or more."
        )
    if target is not None and not 0 <= target < ids.shape[1]:
        raise InputError(f"target {target}: tokens are 0 to {ids.shape[1] - 1}.")
    if mask_id is None and _counts_along_mask(model.config):
        # Hidden tokens would move the others.
        given.setdefault("position_ids", torch.arange(ids.shape[1])[None])
    on_device = {name: value.to(model.device) for name, value in given.items()}
    return Question(model=model, inputs=on_device, mask_id=mask_id, scores=scores, asked=target)


def _counts_along_mask(config: Any) -> bool:  # noqa: ANN401
    """Say whether position ids that are not given are counted along the attention mask."""
    family = FAMILIES.get(str(config.model_type))
    return family is not None and family.feed is not None and family.feed.ids_follow_mask
