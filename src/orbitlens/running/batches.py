"""Inputs -> batches of whole contexts, for one pass over a text.

Enters: `Inputs` and `Limits`. Leaves: an iterator of batches, each a dict of tensors. Text is read
and tokenised piece by piece and cut into contexts of one length, each with the special tokens its
tokenizer puts around a text (BERT's [CLS] and [SEP], Llama's <s>). They are tokens like the others
and are measured with them. No padding arises: what is left at the end of a long text and is shorter
than a context makes a context of its own if it is at least half as long, and is dropped otherwise.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from orbitlens.errors import InputError
from orbitlens.running.images import Images, image_shape, patch_side
from orbitlens.running.inputs import Batch, Inputs, n_positions, needs_tokenizer, vocabulary_size
from orbitlens.running.model import Model
from orbitlens.running.texts import plain_ids, special_tokens

DEFAULT_CONTEXT = 128
FEWEST_TOKENS = 4  # of a context


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much is run, and in which portions."""

    context: int  # tokens of a context, special ones included
    batch: int  # contexts run at once
    max_tokens: int


def limits_for(
    model: Model, *, context: int | None = None, batch: int = 8, max_tokens: int = 20_000
) -> Limits:
    """Return limits that a model can take; its own number of positions bounds a context.

    Raises:
        InputError: the context is longer than the model, or a number is below 1.
    """
    for name, value in (("max_tokens", max_tokens), ("batch", batch), ("context", context)):
        if value is not None and value < 1:
            raise InputError(f"{name} is {value}; expected at least 1.")
    most = n_positions(model.module.config)
    if context is not None and most is not None and context > most:
        raise InputError(
            f"a context of {context} tokens was asked for; this model has {most} positions."
        )
    chosen = context or min(DEFAULT_CONTEXT, most or DEFAULT_CONTEXT)
    return Limits(context=chosen, batch=batch, max_tokens=max_tokens)


def batches_of(
    model: Model, inputs: Inputs, limits: Limits, *, shuffle_seed: int | None = None
) -> Iterator[Batch]:
    """Yield the batches of one pass; with a seed, tokens are in random order: a control."""
    if inputs.images is not None:
        yield from image_batches(inputs.images, limits, model.module.config)
    elif inputs.batches:
        yield from _given_batches(inputs.batches, limits)
    elif model.main_input == "input_features":
        raise InputError(f"{model.name}: this model hears sound. Give batches with input_features.")
    else:
        contexts = contexts_of(model, inputs, limits)
        if shuffle_seed is not None:
            contexts = shuffled(contexts, seed=shuffle_seed)
        config = model.module.config
        yield from id_batches(
            contexts,
            limits,
            vocabulary=vocabulary_size(config),
            positions=n_positions(config),
        )


def contexts_of(model: Model, inputs: Inputs, limits: Limits) -> Iterator[list[int]]:
    """Yield contexts of token ids, at most `max_tokens` tokens altogether."""
    if not inputs.is_text:
        yield from _enough([list(row) for row in inputs.contexts], limits.max_tokens)
        return
    needs_tokenizer(model)
    if inputs.pieces is not None:
        yield from text_contexts(inputs.pieces(), model.tokenizer, limits)
        return
    rows = (row for text in inputs.texts for row in short_contexts(text, model.tokenizer, limits))
    yield from _enough(rows, limits.max_tokens)


def text_contexts(pieces: Iterable[str], tokenizer: Any, limits: Limits) -> Iterator[list[int]]:  # noqa: ANN401
    """Yield contexts of one long text, at most `max_tokens` tokens altogether."""
    before, after, width = _frame(tokenizer, limits)
    waiting: list[int] = []
    left = limits.max_tokens
    for piece in pieces:
        waiting += plain_ids(tokenizer, piece)
        while len(waiting) >= width and left > 0:
            yield before + waiting[:width] + after
            waiting = waiting[width:]
            left -= limits.context
        if left <= 0:
            return
    if len(waiting) >= max(width // 2, FEWEST_TOKENS):
        yield before + waiting + after


def short_contexts(text: str, tokenizer: Any, limits: Limits) -> Iterator[list[int]]:  # noqa: ANN401
    """Yield the contexts of one short text: all of it, cut only where it is too long."""
    before, after, width = _frame(tokenizer, limits)
    ids = plain_ids(tokenizer, text)
    for start in range(0, len(ids), width):
        row = before + ids[start : start + width] + after
        if start == 0 or len(row) >= FEWEST_TOKENS:
            yield row


def _frame(tokenizer: Any, limits: Limits) -> tuple[list[int], list[int], int]:  # noqa: ANN401
    before, after = special_tokens(tokenizer) or ([], [])
    width = limits.context - len(before) - len(after)
    if width < 1:
        raise InputError(
            f"a context of {limits.context} tokens has no room for text beside the "
            f"{len(before) + len(after)} special tokens. Use a longer context."
        )
    return before, after, width


def shuffled(contexts: Iterable[list[int]], *, seed: int) -> Iterator[list[int]]:
    """Yield contexts with their tokens in random order, all but the first and the last: a control.

    The ends stay because special tokens stand there.
    """
    rng = torch.Generator().manual_seed(seed)
    for context in contexts:
        inner = context[1:-1]
        order = torch.randperm(len(inner), generator=rng).tolist()
        yield [context[0], *(inner[k] for k in order), context[-1]]


def id_batches(
    contexts: Iterable[list[int]], limits: Limits, *, vocabulary: int, positions: int | None
) -> Iterator[Batch]:
    """Yield batches of contexts of equal length, each checked against the model's sizes."""
    waiting: list[list[int]] = []
    for context in contexts:
        _check_context(context, vocabulary, positions)
        if waiting and (len(waiting) == limits.batch or len(waiting[0]) != len(context)):
            yield {"input_ids": torch.tensor(waiting)}
            waiting = []
        waiting.append(context)
    if waiting:
        yield {"input_ids": torch.tensor(waiting)}


def _check_context(context: list[int], vocabulary: int, positions: int | None) -> None:
    if len(context) < FEWEST_TOKENS:
        raise InputError(
            f"a context has {len(context)} tokens; expected at least {FEWEST_TOKENS}. "
            "Give a longer text or longer rows of ids."
        )
    if positions is not None and len(context) > positions:
        raise InputError(
            f"a context has {len(context)} tokens and the model {positions} positions. "
            "Use a shorter context or shorter rows of ids."
        )
    largest = max(context)
    if largest >= vocabulary:
        raise InputError(
            f"token id {largest} is out of range; this model's ids are 0 to {vocabulary - 1}."
        )


def image_batches(images: Images, limits: Limits, config: Any) -> Iterator[Batch]:  # noqa: ANN401
    """Yield batches of images, as many as their patches and class tokens leave room for."""
    _, height, width = image_shape(config)
    patch = patch_side(config)
    per_image = (height // patch) * (width // patch) + 1
    for block in images[: max(1, limits.max_tokens // per_image)].split(limits.batch):
        yield {"pixel_values": block}


def _given_batches(batches: Iterable[Batch], limits: Limits) -> Iterator[Batch]:
    left = limits.max_tokens
    for batch in batches:
        if left <= 0:
            return
        ids = batch.get("input_ids")
        left -= ids.numel() if ids is not None else 1
        yield batch


def _enough(contexts: Iterable[list[int]], max_tokens: int) -> Iterator[list[int]]:
    left = max_tokens
    for context in contexts:
        if left <= 0:
            return
        left -= len(context)
        yield context
