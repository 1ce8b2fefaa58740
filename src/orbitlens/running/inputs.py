"""What a verb was given, sorted out: the one place that decides what inputs mean.

Enters: a model and a text (string, strings, path), token ids (list, array, tensor), images (array,
path), batches as a model takes them, or nothing. Leaves: `Inputs`: contexts of text that is
streamed, ids, images or batches, and a note where inputs had to be made up. `batches.py` makes them
into whole passes, `samples.py` into inputs of one length.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.running.images import ImageFile, Images, as_images, image_shape, read_images
from orbitlens.running.model import Model
from orbitlens.running.texts import passage, read_text, reads_passage

Batch = dict[str, Tensor]
NORMALISE = (0.5, 0.5)  # mean and standard deviation of grey levels divided by 255
MADE_UP_TOKENS, MADE_UP_IMAGES = 16_384, 64  # how much is drawn where nothing was given
RANDOM_LENGTH = 128


class Source(StrEnum):
    """Where inputs come from."""

    TEXT = "text"
    IDS = "ids"
    IMAGES = "images"
    BATCHES = "batches"
    RANDOM = "random"  # tokens, for want of a text
    NOISE = "noise"  # images, for want of images


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a model is run on; one of the four kinds of content is there."""

    source: Source
    pieces: Callable[[], Iterator[str]] | None = None  # of one long text, made anew at each call
    texts: tuple[str, ...] = ()  # short texts, each a context of its own
    contexts: tuple[tuple[int, ...], ...] = ()  # token ids
    images: Images | None = None
    batches: tuple[Batch, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_text(self) -> bool:
        """Whether a tokenizer turns these inputs into ids."""
        return self.pieces is not None or bool(self.texts)


def inputs_of(
    model: Model,
    given: Any,  # noqa: ANN401 - see the module
    *,
    normalise: tuple[float, float] = NORMALISE,
    seed: int = 0,
) -> Inputs:
    """Return what to run a model on.

    Args:
        model: the model.
        given: a text (string, list of strings, path object), token ids (list, array, tensor),
            images (array, tensor, path object), batches as the model takes them, or None: the
            package's passage for models that read English, else random tokens or noise.
        normalise: mean and standard deviation for images of whole numbers.
        seed: of random tokens and noise.

    Raises:
        InputError: the inputs are of no kind that the model takes.
    """
    if isinstance(given, Inputs):
        return given
    if _is_batches(given):
        return Inputs(source=Source.BATCHES, batches=_batches(given))
    if model.main_input == "pixel_values":
        return _images(model, given, normalise, seed)
    if isinstance(given, ImageFile):
        raise InputError(f"{given.path}: {model.name} reads text, not images.")
    if given is None:
        return _made_up(model, seed)
    if isinstance(given, Path):
        return _file(model, given)
    if isinstance(given, str):
        return _texts(model, (given,))
    if _is_strings(given):
        return _texts(model, tuple(given))
    return Inputs(source=Source.IDS, contexts=as_contexts(given))


# --- text ------------------------------------------------------------------------------------


def _texts(model: Model, texts: tuple[str, ...]) -> Inputs:
    for text in texts:
        if not text.strip():
            raise InputError("the text is empty. Give a few words at least.")
        if len(text) < 256 and "\n" not in text and _is_file(text):
            raise InputError(
                f"{text!r} is the name of a file. For its contents give pathlib.Path({text!r})."
            )
    needs_tokenizer(model)
    return Inputs(source=Source.TEXT, texts=texts)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # names that no file can have
        return False


def _file(model: Model, file: Path) -> Inputs:
    """Read a file: text, or lines of token ids where the model has no tokenizer."""
    if not file.is_file():
        raise InputError(f"{file}: there is no such file.")
    if model.tokenizer is None:
        text = "".join(read_text(file))
        return Inputs(source=Source.IDS, contexts=parse_ids(text, where=str(file)))
    return Inputs(source=Source.TEXT, pieces=lambda: read_text(file))


def needs_tokenizer(model: Model) -> None:
    """Refuse text for a model without a tokenizer.

    Raises:
        InputError: with the way around.
    """
    if model.tokenizer is None:
        raise InputError(
            f"{model.name}: there is no tokenizer (tokenizer.json) beside the weights, so text "
            "cannot be turned into ids. Give token ids, or load the model with a tokenizer."
        )


def _made_up(model: Model, seed: int) -> Inputs:
    if reads_passage(model.tokenizer):
        note = "no text was given: inputs are from a short English passage of the package"
        return Inputs(source=Source.TEXT, pieces=lambda: read_text(passage()), notes=(note,))
    note = "no text was given: inputs are random tokens, on which a model need not behave as usual"
    generator = torch.Generator().manual_seed(seed)
    length = min(RANDOM_LENGTH, n_positions(model.module.config) or RANDOM_LENGTH)
    n_rows = MADE_UP_TOKENS // length
    ids = random_ids(model.module.config, n_rows, length, generator)
    contexts = tuple(tuple(row) for row in ids.tolist())
    return Inputs(source=Source.RANDOM, contexts=contexts, notes=(note,))


def random_ids(
    config: Any,  # noqa: ANN401 - a config of transformers
    n_rows: int,
    length: int,
    generator: torch.Generator,
) -> Int[Tensor, "batch tokens"]:
    """Return random token ids, each equally likely, padding left out: models skip it."""
    ids = torch.arange(vocabulary_size(config))
    padding = getattr(config, "pad_token_id", None)
    if padding is not None and len(ids) > 1:
        ids = ids[ids != padding]
    return ids[torch.randint(len(ids), (n_rows, length), generator=generator)]


# --- token ids -------------------------------------------------------------------------------


def as_contexts(given: Any) -> tuple[tuple[int, ...], ...]:  # noqa: ANN401 - lists, arrays, tensors
    """Return token ids as contexts: one row, or several of any lengths.

    Raises:
        InputError: this is not made of whole numbers.
    """
    if not hasattr(given, "tolist") and not isinstance(given, Sequence):
        raise InputError(
            f"an input was given as {type(given).__name__}. Expected a text, strings, a path "
            "object, token ids, or batches."
        )
    rows = given.tolist() if hasattr(given, "tolist") else list(given)
    if rows and not isinstance(rows[0], (list, tuple)) and not hasattr(rows[0], "tolist"):
        rows = [rows]
    plain = [row.tolist() if hasattr(row, "tolist") else list(row) for row in rows]
    if not plain or not all(plain):
        raise InputError("the input is too short: there are no ids. Give some: [5, 17, 3, 8].")
    for row in plain:
        for value in row:
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise InputError(
                    f"{value!r} is no token id. Expected whole numbers from 0 on, such as "
                    "[5, 17, 3, 8], in one row or several."
                )
    return tuple(tuple(row) for row in plain)


def parse_ids(text: str, *, where: str = "token ids") -> tuple[tuple[int, ...], ...]:
    """Read lines such as "5, 17 3" as contexts of ids, one a line.

    Raises:
        InputError: something is not a number, or there is nothing.
    """
    contexts = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.replace(",", " ").split()
        if not all(word.isdecimal() and len(word) < 10 for word in words):
            raise InputError(
                f"{where}, line {number}: {line[:60]!r} holds something that is no token id. "
                "Expected numbers such as 5,17,3, one context a line."
            )
        if words:
            contexts.append(tuple(int(word) for word in words))
    if not contexts:
        raise InputError(f"{where}: there are no ids in {text[:60]!r}. Give some, such as 5,17,3.")
    return tuple(contexts)


def n_positions(config: Any) -> int | None:  # noqa: ANN401 - a config of transformers
    """Return the most tokens a model takes at once; None where its config sets no bound."""
    for name in ("max_position_embeddings", "max_seq_len", "n_positions", "seq_length"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def vocabulary_size(config: Any) -> int:  # noqa: ANN401 - a config of transformers
    """Return how many token ids a model knows."""
    return int(config.get_text_config().vocab_size)


# --- images ----------------------------------------------------------------------------------


def _images(model: Model, given: Any, normalise: tuple[float, float], seed: int) -> Inputs:  # noqa: ANN401
    shape = image_shape(model.module.config)
    mean, std = normalise
    if given is None:
        generator = torch.Generator().manual_seed(seed)
        note = "no images were given: inputs are noise, on which a model need not behave as usual"
        noise = torch.randn(MADE_UP_IMAGES, *shape, generator=generator)
        return Inputs(source=Source.NOISE, images=noise, notes=(note,))
    if isinstance(given, (Path, ImageFile)):
        file = given if isinstance(given, Path) else given.path
        images = read_images(file, mean=mean, std=std)
    elif isinstance(given, str) or _is_strings(given):
        raise InputError(f"{model.name}: this model looks at images, not at text.")
    else:
        images = as_images(torch.as_tensor(given), "images", mean=mean, std=std)
    if tuple(images.shape[1:]) != shape:
        raise InputError(
            f"the images are {list(images.shape[1:])} (channels, height, width); this model takes "
            f"{list(shape)}. Resize them first."
        )
    return Inputs(source=Source.IMAGES, images=images)


# --- batches ---------------------------------------------------------------------------------


def _is_batches(given: object) -> bool:
    if isinstance(given, Mapping):
        return True
    if isinstance(given, (str, Path, Tensor)) or given is None or hasattr(given, "dtype"):
        return False
    if isinstance(given, Sequence):
        return len(given) > 0 and isinstance(given[0], Mapping)
    return isinstance(given, Iterable)  # a data loader or a generator


def _batches(given: Any) -> tuple[Batch, ...]:  # noqa: ANN401
    rows = [given] if isinstance(given, Mapping) else list(given)
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        raise InputError(
            "batches are too short, or no mappings from names to tensors: there is nothing to run."
        )
    tensors = [{k: v for k, v in row.items() if isinstance(v, Tensor)} for row in rows]
    labels = {"labels"}  # of a training loop: a loss is not asked for here
    return tuple({k: v for k, v in row.items() if k not in labels} for row in tensors)


def _is_strings(given: object) -> bool:
    if not isinstance(given, (list, tuple)) or not given:
        return False
    return all(isinstance(part, str) for part in given)
