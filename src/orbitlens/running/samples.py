"""Inputs -> samples of one length, whose tokens a verb reorders.

Enters: `Inputs`, how many samples, how long. Leaves: `Samples`: a tensor of items, and where
special tokens stand, which no reordering moves: at the same places in all samples.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.running.images import patch_side, patches_of_images, square_side
from orbitlens.running.inputs import (
    Inputs,
    Source,
    n_positions,
    needs_tokenizer,
    vocabulary_size,
)
from orbitlens.running.model import Model
from orbitlens.running.special_tokens import SpecialTokens, special_tokens_of
from orbitlens.running.texts import plain_ids, special_tokens

SHORTEST = 3  # two tokens to swap and one to predict from
USUAL_LENGTH = 32
CANDIDATES = 8  # windows looked at for each that is wanted, for special tokens among them


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Inputs of one length and how they came about."""

    items: Tensor  # token ids (samples, items), or patches (samples, items, channels, y, x)
    source: str  # a `Source`
    pinned: tuple[int, ...] = ()  # places of special tokens, which never move
    notes: tuple[str, ...] = ()


def samples_of(
    model: Model,
    inputs: Inputs,
    n_samples: int,
    *,
    length: int | None = None,
    generator: torch.Generator,
) -> Samples:
    """Return samples of one length for a model.

    Raises:
        InputError: the length does not fit the model or the inputs.
    """
    if inputs.images is not None:
        return _patches(model, inputs, n_samples, generator)
    first_id = model.feed.first_id
    rows = [tuple(row) for row in inputs.contexts] or _rows_of_batches(inputs)
    if inputs.is_text:
        samples = _windows(model, inputs, n_samples, length, generator)
    else:
        wanted = check_length(_usual(length, model, max(map(len, rows), default=0)), model)
        samples = _cut_rows(model, rows, inputs, n_samples, wanted, generator)
    check_length(samples.items.shape[1], model, first_id=first_id)
    return samples


def _usual(length: int | None, model: Model, available: int) -> int:
    if length is not None:
        return length
    most = n_positions(model.module.config) or USUAL_LENGTH
    return max(SHORTEST, min(USUAL_LENGTH, most - model.feed.first_id, available))


def check_length(length: int, model: Model, *, first_id: int = 0) -> int:
    """Return the length if a model can take it; its first token has position `first_id`.

    Raises:
        InputError: shorter than 3 tokens, or longer than the model's table of positions.
    """
    if length < SHORTEST:
        raise InputError(
            f"samples of {length} tokens: at least {SHORTEST} are needed, two whose order can "
            "change and one to predict from."
        )
    longest = (n_positions(model.module.config) or 0) - first_id
    if longest > 0 and length > longest:
        raise InputError(
            f"samples of {length} tokens: this model has positions for {longest}. Choose a length "
            f"of {SHORTEST} to {longest}."
        )
    return length


# --- text ------------------------------------------------------------------------------------


def _windows(
    model: Model,
    inputs: Inputs,
    n_samples: int,
    length: int | None,
    generator: torch.Generator,
) -> Samples:
    """Return windows at random places of a text, with the tokens a tokenizer adds.

    What the tokenizer adds in front (begin-of-text, class) and behind stands around every sample
    and never moves.
    """
    needs_tokenizer(model)
    added = special_tokens(model.tokenizer)
    if added is None:
        raise InputError(
            "the tokenizer changes text when it adds its special tokens; give token ids."
        )
    front, back = added
    n_added = len(front) + len(back)
    ids = _text_ids(model, inputs)
    # A few words make several windows, so that there is more than one sample.
    room = n_added + (len(ids) if len(ids) >= 2 * USUAL_LENGTH else (len(ids) + 1) // 2 + 1)
    wanted = check_length(_usual(length, model, room), model)
    inner = wanted - n_added
    if inner < SHORTEST - 1:
        raise InputError(
            f"samples of {wanted} tokens: {n_added} of these are tokens that the tokenizer adds. "
            "Choose a longer length."
        )
    if len(ids) < inner:
        raise InputError(
            f"the text has {len(ids)} tokens, but samples of {wanted} need {inner}. Give more text "
            "or a smaller length."
        )
    starts = torch.randperm(len(ids) - inner + 1, generator=generator)[: CANDIDATES * n_samples]
    special = special_tokens_of(model)
    windows = {start: front + ids[start : start + inner] + back for start in starts.tolist()}
    ends = {*range(len(front)), *range(wanted - len(back), wanted)}
    chosen, pinned, left_out = _alike(windows, special, ends, n_samples)
    # In the text's order: samples that probes hold out then overlap with no more than one or two.
    rows = [windows[start] for start in sorted(chosen)]
    notes = (*_too_few(len(rows), n_samples), *left_out, *_added(model, front + back))
    return Samples(
        items=torch.tensor(rows),
        source=inputs.source,
        pinned=pinned,
        notes=(*inputs.notes, *notes),
    )


def _alike(
    rows: Mapping[int, Sequence[int]], special: SpecialTokens, ends: set[int], n_samples: int
) -> tuple[list[int], tuple[int, ...], tuple[str, ...]]:
    """Choose rows whose special tokens stand at the same places, those most rows have.

    Returns their keys, the places, and a note where rows were left out.
    """
    places = {
        key: tuple(k for k, token in enumerate(row) if k in ends or token in special.named)
        for key, row in rows.items()
    }
    counts = Counter(places.values())
    pinned = max(counts, key=lambda each: (counts[each], -len(each)))
    chosen = [key for key in rows if places[key] == pinned][:n_samples]
    if len(chosen) >= min(n_samples, len(rows)):
        return chosen, pinned, ()
    note = (
        f"{len(rows) - counts[pinned]} of {len(rows)} inputs were left out: their special tokens "
        "stand elsewhere"
    )
    return chosen, pinned, (note,)


def _text_ids(model: Model, inputs: Inputs) -> list[int]:
    texts = inputs.texts or ("".join(inputs.pieces()) if inputs.pieces is not None else "",)
    return [token for text in texts for token in plain_ids(model.tokenizer, text)]


def _added(model: Model, ids: list[int]) -> tuple[str, ...]:
    if not ids or model.tokenizer is None:
        return ()
    names = ", ".join(map(str, model.tokenizer.convert_ids_to_tokens(ids)))
    return (
        f"the tokenizer adds {names}; these stay where they are, and only the text's tokens are "
        "permuted",
    )


def _too_few(n_samples: int, n_wanted: int) -> tuple[str, ...]:
    if n_samples >= n_wanted:
        return ()
    return (f"only {n_samples} different samples of this length were found; {n_wanted} were asked",)


# --- token ids -------------------------------------------------------------------------------


def _rows_of_batches(inputs: Inputs) -> list[tuple[int, ...]]:
    rows = []
    for batch in inputs.batches:
        if "input_ids" not in batch:
            names = ", ".join(batch)
            raise InputError(f"batches hold {names}; samples to reorder need input_ids.")
        real = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool()
        rows += [
            tuple(row[kept].tolist()) for row, kept in zip(batch["input_ids"], real, strict=True)
        ]
    return rows


def _cut_rows(
    model: Model,
    rows: list[tuple[int, ...]],
    inputs: Inputs,
    n_samples: int,
    length: int,
    generator: torch.Generator,
) -> Samples:
    """Return rows of one length; longer ones are cut at a random place between their ends.

    The ends are the special tokens that all rows begin and end with.
    """
    n_vocabulary = vocabulary_size(model.module.config)
    special = special_tokens_of(model)
    if inputs.source is Source.RANDOM:
        rows = _dressed(model, rows, special)
    front, back = _common_ends(rows, special)
    pieces: dict[int, Sequence[int]] = {}
    for row in rows:
        wrong = [token for token in row if not 0 <= token < n_vocabulary]
        if wrong:
            raise InputError(f"token id {wrong[0]} is outside 0 to {n_vocabulary - 1}.")
        if len(row) >= length:
            start = int(torch.randint(len(row) - length + 1, (1,), generator=generator))
            inner = row[front + start : start + length - back]
            pieces[len(pieces)] = (*row[:front], *inner, *row[len(row) - back :])
    if not pieces:
        raise InputError(f"no row has {length} token ids. Choose a smaller length.")
    order = torch.randperm(len(pieces), generator=generator).tolist()
    ends = {*range(front), *range(length - back, length)}
    chosen, pinned, left_out = _alike({k: pieces[k] for k in order}, special, ends, n_samples)
    items = torch.tensor([pieces[k] for k in chosen])
    notes = (*inputs.notes, *_too_few(len(items), n_samples), *left_out)
    return Samples(items=items, source=inputs.source, pinned=pinned, notes=notes)


def _dressed(
    model: Model, rows: list[tuple[int, ...]], special: SpecialTokens
) -> list[tuple[int, ...]]:
    """Return random rows without special tokens but for those the tokenizer puts around a text."""
    added = None if model.tokenizer is None else special_tokens(model.tokenizer)
    front, back = added or ([], [])
    plain = [[token for token in row if token not in special.named] for row in rows]
    return [(*front, *row, *back) for row in plain]


def _common_ends(rows: list[tuple[int, ...]], special: SpecialTokens) -> tuple[int, int]:
    """Return how many special tokens all rows begin with, and how many they end with."""
    known = special.named | special.by_config
    counts = []
    for columns in (zip(*rows, strict=False), zip(*(row[::-1] for row in rows), strict=False)):
        n = 0
        for tokens in columns:
            if len(set(tokens)) > 1 or tokens[0] not in known:
                break
            n += 1
        counts.append(n)
    front, back = counts
    shortest = min(map(len, rows))
    return (front, back) if front + back + SHORTEST <= shortest else (0, 0)


# --- images ----------------------------------------------------------------------------------


def _patches(model: Model, inputs: Inputs, n_samples: int, generator: torch.Generator) -> Samples:
    config: Any = model.module.config
    square_side(config)
    images = inputs.images
    assert images is not None
    chosen = images[torch.randperm(len(images), generator=generator)[:n_samples]]
    items = patches_of_images(chosen, patch_side(config))
    notes = (*inputs.notes, *_too_few(len(items), n_samples))
    return Samples(items=items, source=inputs.source, notes=notes)
