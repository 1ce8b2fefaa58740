"""Text, token ids or images -> batches a model can run.

Enters: a file of any size, or numbers. Leaves: an iterator of batches, each a dict of tensors. Text
is read and tokenised piece by piece and cut into contexts of one length, each with the special
tokens its tokenizer puts around a text (BERT's [CLS] and [SEP], Llama's <s>). They are tokens like
the others and are measured with them. No padding arises: what is left at the end and is shorter
than a context makes a context of its own if it is at least half as long, and is dropped otherwise.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.running.texts import passage, special_tokens

Batch = dict[str, Tensor]
PIECE = 200_000  # characters tokenised at a time
FEWEST_TOKENS = 4  # of a context


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much is run, and in which portions."""

    context: int  # tokens of a context, special ones included
    batch: int  # contexts run at once
    max_tokens: int


def n_positions(model: Any) -> int | None:  # noqa: ANN401 - of transformers
    """Return the most tokens a model takes at once; None where its config sets no bound."""
    for name in ("max_position_embeddings", "max_seq_len", "seq_length"):
        value = getattr(model.config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def read_text(file: Path | None) -> Iterator[str]:
    """Yield a text piece by piece, cut at the end of a line; the package's own passage for None."""
    if file is None:
        yield passage().read_text(encoding="utf-8")
        return
    try:
        with file.open(encoding="utf-8") as stream:
            while piece := stream.read(PIECE):
                yield piece + stream.readline()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file}: this is not UTF-8 text (byte {error.start} of a piece cannot be read). "
            "Convert it, for example with: iconv -t UTF-8."
        ) from error
    except OSError as error:
        raise InputError(f"{file}: this cannot be read ({error.strerror}).") from error


def text_contexts(pieces: Iterable[str], tokenizer: Any, limits: Limits) -> Iterator[list[int]]:  # noqa: ANN401
    """Yield contexts of a text, at most `max_tokens` tokens altogether."""
    before, after = special_tokens(tokenizer) or ([], [])
    width = limits.context - len(before) - len(after)
    if width < 1:
        raise InputError(
            f"a context of {limits.context} tokens has no room for text beside the "
            f"{len(before) + len(after)} special tokens. Use a longer --context."
        )
    waiting: list[int] = []
    left = limits.max_tokens
    for piece in pieces:
        waiting += tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"]
        while len(waiting) >= width and left > 0:
            yield before + waiting[:width] + after
            waiting = waiting[width:]
            left -= limits.context
        if left <= 0:
            return
    if len(waiting) >= max(width // 2, FEWEST_TOKENS):
        yield before + waiting + after


def shuffled(contexts: Iterable[list[int]], *, seed: int) -> Iterator[list[int]]:
    """Yield contexts with their tokens in random order, all but the first and the last: a control.

    The ends stay because special tokens stand there.
    """
    rng = torch.Generator().manual_seed(seed)
    for context in contexts:
        inner = context[1:-1]
        order = torch.randperm(len(inner), generator=rng).tolist()
        yield [context[0], *(inner[k] for k in order), context[-1]]


def parse_ids(text: str) -> list[list[int]]:
    """Read "1,2,3" as one context; a file's lines as one context each.

    Raises:
        InputError: something is not a number, or there is nothing.
    """
    file = Path(text)
    try:
        is_file = len(text) < 4096 and file.is_file()
        lines = file.read_text(encoding="utf-8").splitlines() if is_file else [text]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--tokens {text}: this cannot be read ({error}).") from error
    contexts = []
    for line in lines:
        words = line.replace(",", " ").split()
        if not all(word.isdecimal() and len(word) < 10 for word in words):
            raise InputError(
                f"--tokens: {line[:60]!r} holds something that is no token id. Expected numbers "
                "such as 5,17,3, or a file with one context a line."
            )
        if words:
            contexts.append([int(word) for word in words])
    if not contexts:
        raise InputError(f"--tokens {text[:60]!r}: there are no ids. Give some, such as 5,17,3.")
    return contexts


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
            "Give a longer text or longer lines of ids."
        )
    if positions is not None and len(context) > positions:
        raise InputError(
            f"a context has {len(context)} tokens and the model {positions} positions. "
            f"Use --context {positions} or less, or shorter lines of ids."
        )
    largest = max(context)
    if largest >= vocabulary:
        raise InputError(
            f"token id {largest} is out of range; this model's ids are 0 to {vocabulary - 1}."
        )


# --- images ----------------------------------------------------------------------------------


def read_images(file: Path, *, mean: float, std: float) -> Float[Tensor, "image channel y x"]:
    """Return the images of a .npy file or of MNIST's own format (.gz or not).

    Whole numbers are grey levels 0 to 255 and become (level / 255 - mean) / std; other numbers are
    taken as they are.
    """
    raw = _array(file)
    if raw.ndim == 3:
        raw = raw[:, None]
    if raw.ndim != 4 or raw.shape[0] == 0:
        raise InputError(
            f"{file}: holds an array of shape {list(raw.shape)}; expected images x height x width, "
            "or images x channels x height x width."
        )
    if raw.is_floating_point():
        return raw.float()
    return (raw.float() / 255 - mean) / std


def _array(file: Path) -> Tensor:
    import gzip

    import numpy as np

    try:
        if file.suffix == ".npy":
            return torch.from_numpy(np.load(file, allow_pickle=False))
        data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, ValueError, TypeError, EOFError) as error:
        raise InputError(f"{file}: the images cannot be read ({error}).") from error
    return _idx_array(data, file)


def _idx_array(data: bytes, file: Path) -> UInt8[Tensor, "image y x"]:
    """Read MNIST's format: 0, 0, type 8, number of axes, their sizes, then bytes."""
    if len(data) < 16 or data[:4] != b"\x00\x00\x08\x03":
        raise InputError(
            f"{file}: this is neither a .npy file nor a file of images as MNIST has them. "
            "Save the images with numpy.save, as images x channels x height x width."
        )
    sizes = [int.from_bytes(data[k : k + 4], "big") for k in (4, 8, 12)]
    if len(data) != 16 + sizes[0] * sizes[1] * sizes[2]:
        raise InputError(f"{file}: the file is cut off, or longer than its own header says.")
    return torch.frombuffer(bytearray(data[16:]), dtype=torch.uint8).reshape(sizes)


def image_batches(
    images: Float[Tensor, "image channel y x"], limits: Limits, *, shape: tuple[int, int, int]
) -> Iterator[Batch]:
    """Yield batches of images of the shape (channels, height, width) the model takes."""
    if tuple(images.shape[1:]) != shape:
        raise InputError(
            f"the images are {list(images.shape[1:])} (channels, height, width); this model takes "
            f"{list(shape)}. Resize them first."
        )
    for block in images.split(limits.batch):
        yield {"pixel_values": block}
