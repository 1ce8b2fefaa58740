"""What a person typed or chose -> one input of a model, and what its tokens are called.

Enters: a model and a `Prompt`: a text, token ids, a sample or the levels of an image. Leaves: a
`Sentence`. Nothing here is a file's name: what a page sends is never opened.
"""

import unicodedata
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from orbitlens.errors import InputError, printable
from orbitlens.order.questions import subject_for
from orbitlens.order.subject import Subject
from orbitlens.running.images import (
    as_images,
    image_of_patches,
    image_shape,
    patch_side,
    patches_of_images,
)
from orbitlens.running.inputs import (
    NORMALISE,
    Source,
    n_positions,
    needs_tokenizer,
    parse_ids,
    vocabulary_size,
)
from orbitlens.running.model import Model
from orbitlens.running.samples import SHORTEST, Samples, check_length
from orbitlens.running.special_tokens import special_tokens_of
from orbitlens.running.texts import plain_ids, special_tokens
from orbitlens.running.token_names import names_of_tokens

MOST_TOKENS = 64  # that the rooms run and draw
MOST_CHARACTERS = 20_000  # of a text that are looked at
FEW = 5  # characters quoted in a note
N_SAMPLES = 4  # images of noise to choose from


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What is run; one of these is there."""

    text: str | None = None
    ids: str | None = None  # "5, 17 3": for a model without a tokenizer, or any other
    sample: int | None = None  # which image of noise
    levels: tuple[int, ...] | None = None  # of an image: rows of pixels, channels last, 0 to 255


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """One input."""

    items: Tensor  # token ids (1, items), or patches (1, items, channels, height, width)
    names: tuple[str, ...]  # of all tokens that the model makes of them
    n_front: int  # tokens in front that are no items: the class token of images
    pinned: tuple[int, ...]  # items that no reordering moves
    notes: tuple[str, ...]
    source: Source

    @property
    def n_items(self) -> int:
        """How many items there are."""
        return int(self.items.shape[1])

    @property
    def fed(self) -> Tensor:
        """The input as other verbs take it: token ids (1, items), or an image."""
        return self.items if self.items.ndim == 2 else image_of_patches(self.items)

    def subject(self, model: Model) -> Subject:
        """Return the model with the question that is asked of it here.

        Raises:
            InputError: there is none, for the reason given.
        """
        samples = Samples(items=self.items, source=self.source, pinned=self.pinned)
        return subject_for(model, model.module, samples)


def sentence_of(model: Model, given: Prompt) -> Sentence:
    """Return the input that a model is run on.

    Raises:
        InputError: nothing can be run, for the reason given.
    """
    if model.main_input == "input_features":
        raise InputError("this model hears sound, which this page has no way to take.")
    if model.main_input == "pixel_values":
        return _image(model, given)
    if given.text is None and given.ids is None:
        raise InputError(f"{model.name} reads text, not images. Give a few words.")
    if given.ids is not None:
        return _of_ids(model, given.ids)
    return _of_text(model, given.text or "")


def _most(model: Model) -> int:
    positions = n_positions(model.module.config) or MOST_TOKENS
    return min(MOST_TOKENS, positions - model.feed.first_id)


def _of_text(model: Model, text: str) -> Sentence:
    if not text.strip():
        raise InputError("the text is empty. Type a few words.")
    if any(0xD800 <= ord(c) <= 0xDFFF for c in text):
        raise InputError("the text holds half of a character (a lone surrogate). Type it again.")
    needs_tokenizer(model)
    front, back = special_tokens(model.tokenizer) or ([], [])
    ids = plain_ids(model.tokenizer, text[:MOST_CHARACTERS])
    lost = _lost(model.tokenizer, text[:MOST_CHARACTERS], ids)
    if len(ids) < SHORTEST:
        raise InputError(
            f"the tokenizer makes {len(ids)} tokens of this text, and at least {SHORTEST} are "
            "needed. " + (f"It drops {lost}, which it does not know." if lost else "Type more.")
        )
    room = _most(model) - len(front) - len(back)
    notes = [f"the tokenizer drops {lost}, which it does not know"] if lost else []
    if len(ids) > room or len(text) > MOST_CHARACTERS:
        notes.append(f"{len(text):,} characters were given; the first {room} tokens are run")
    unknown = getattr(model.tokenizer, "unk_token_id", None)
    n_unknown = sum(token == unknown for token in ids[:room])
    if unknown is not None and n_unknown:
        notes.append(f"{n_unknown} of the tokens are unknown to the tokenizer, which says so alone")
    return _sentence(model, front + ids[:room] + back, notes, (len(front), len(back)), Source.TEXT)


def _lost(tokenizer: Any, text: str, ids: list[int]) -> str:  # noqa: ANN401
    """Return the characters of a text that its tokens no longer tell, a few of them."""
    told = set(_plain(tokenizer.decode(ids)))
    gone = dict.fromkeys(c for c in text if not c.isspace() and not set(_plain(c)) <= told)
    shown = " ".join(printable(c) for c in list(gone)[:FEW])
    return shown + (" …" if len(gone) > FEW else "")


def _plain(text: str) -> str:
    """Return text without case and accents, which some tokenizers take away."""
    whole = unicodedata.normalize("NFKD", text.casefold())
    return "".join(c for c in whole if not unicodedata.combining(c))


def _of_ids(model: Model, text: str) -> Sentence:
    rows = parse_ids(text[:MOST_CHARACTERS], where="the ids")
    ids = [token for row in rows for token in row]
    n_vocabulary, room = vocabulary_size(model.module.config), _most(model)
    wrong = [token for token in ids if token >= n_vocabulary]
    if wrong:
        raise InputError(f"token id {wrong[0]} is outside 0 to {n_vocabulary - 1}.")
    notes = [f"{len(ids):,} ids were given; the first {room} are run"] if len(ids) > room else []
    return _sentence(model, ids[:room], notes, (0, 0), Source.IDS)


def _sentence(
    model: Model, ids: list[int], notes: list[str], added: tuple[int, int], source: Source
) -> Sentence:
    check_length(len(ids), model, first_id=model.feed.first_id)
    items = torch.tensor([ids])
    special = special_tokens_of(model)
    ends = {*range(added[0]), *range(len(ids) - added[1], len(ids))}
    pinned = [k for k, token in enumerate(ids) if k in ends or token in special.named]
    return Sentence(
        items=items,
        names=tuple(names_of_tokens(model, {"input_ids": items})),
        n_front=0,
        pinned=tuple(pinned),
        notes=tuple(printable(note) for note in notes),
        source=source,
    )


# --- images ----------------------------------------------------------------------------------


def _image(model: Model, given: Prompt) -> Sentence:
    config = model.module.config
    channels, height, width = image_shape(config)
    if given.levels is not None:
        image, notes = _given_image(given.levels, (channels, height, width)), []
    else:
        k = (given.sample or 0) % N_SAMPLES
        generator = torch.Generator().manual_seed(k)
        image = torch.randn(1, channels, height, width, generator=generator)
        notes = ["an image of noise, on which a model need not behave as usual: choose a picture"]
    items = patches_of_images(image, patch_side(config))
    n_front = model.feed.n_special
    names = names_of_tokens(model, {"pixel_values": image})
    return Sentence(
        items=items,
        names=(*(["class token", "distillation token"][:n_front]), *names[1:]),
        n_front=n_front,
        pinned=(),
        notes=tuple(notes),
        source=Source.NOISE if given.levels is None else Source.IMAGES,
    )


def _given_image(levels: tuple[int, ...], shape: tuple[int, int, int]) -> Tensor:
    channels, height, width = shape
    if len(levels) != channels * height * width or not all(0 <= v <= 255 for v in levels):
        raise InputError(
            f"the image has {len(levels)} levels; this model takes {height} x {width} pixels of "
            f"{channels} channels, each 0 to 255."
        )
    raw = torch.tensor(levels, dtype=torch.uint8).reshape(1, height, width, channels)
    mean, std = NORMALISE
    return as_images(raw.permute(0, 3, 1, 2), "the image", mean=mean, std=std)
