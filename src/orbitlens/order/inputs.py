"""Text, token ids, images or nothing -> inputs of one length for an audit.

Enters: a file, a tokenizer if there is one. Leaves: a tensor of items and what was noticed on the
way: tokens that the tokenizer adds, text that is too short, random tokens in place of text.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.running.texts import passage, special_tokens

UNKNOWN = 0.02  # share of unknown tokens up to which a text is said to be read
SHORTEST = 3  # two tokens to swap and one to predict from


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs for an audit and how they came about."""

    items: Tensor
    source: str  # "text", "ids", "images" or "random"
    n_front: int = 0  # leading items that never move
    n_after_query: int = 0
    notes: tuple[str, ...] = ()


def check_length(length: int, config: Any, *, first_id: int = 0) -> int:  # noqa: ANN401
    """Return the length if a model can take it; its first token has position `first_id`.

    Raises:
        InputError: shorter than 3 tokens, or longer than the model's table of positions.
    """
    if length < SHORTEST:
        raise InputError(
            f"--length {length}: an input needs at least {SHORTEST} tokens: two whose order can "
            "change and one to predict from."
        )
    longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", 0)
    longest = int(longest or 0) - first_id
    if longest > 0 and length > longest:
        raise InputError(
            f"--length {length}: this model has positions for {longest} tokens. Choose a length of "
            f"{SHORTEST} to {longest}."
        )
    return length


def random_ids(
    config: Any,  # noqa: ANN401 - any config
    n_samples: int,
    length: int,
    generator: torch.Generator,
) -> Inputs:
    """Return random token ids, each equally likely, padding left out: models skip it."""
    names = torch.arange(int(config.vocab_size))
    padding = getattr(config, "pad_token_id", None)
    if padding is not None and len(names) > 1:
        names = names[names != padding]
    ids = names[torch.randint(len(names), (n_samples, length), generator=generator)]
    note = "no text was given: inputs are random tokens, on which a model need not behave as usual"
    return Inputs(items=ids, source="random", notes=(note,))


def ids_of_file(
    file: Path, n_vocabulary: int, n_samples: int, length: int, generator: torch.Generator
) -> Inputs:
    """Return inputs from lines of token ids; longer lines are cut at a random place.

    Raises:
        InputError: a line holds something that is no id, or too few lines are long enough.
    """
    rows = []
    for number, line in enumerate(_read(file).splitlines(), start=1):
        try:
            row = [int(word) for word in line.split()]
        except ValueError as error:
            raise InputError(
                f"{file}, line {number}: {line[:40]!r} is not a line of token ids. This model has "
                "no tokenizer, so --text takes whole numbers, one input a line."
            ) from error
        wrong = [token for token in row if not 0 <= token < n_vocabulary]
        if wrong:
            raise InputError(
                f"{file}, line {number}: token id {wrong[0]} is outside 0 to {n_vocabulary - 1}."
            )
        if len(row) >= length:
            start = int(torch.randint(len(row) - length + 1, (1,), generator=generator))
            rows.append(row[start : start + length])
    if not rows:
        raise InputError(f"{file}: no line has {length} token ids. Choose a smaller --length.")
    chosen = torch.randperm(len(rows), generator=generator)[:n_samples]
    items = torch.tensor(rows)[chosen]
    return Inputs(items=items, source="ids", notes=_too_few(len(items), n_samples))


def text_inputs(
    file: Path,
    tokenizer: Any,  # noqa: ANN401 - any tokenizer
    n_samples: int,
    length: int,
    generator: torch.Generator,
) -> Inputs:
    """Return inputs from text: windows at random places, with the tokens a tokenizer adds.

    What the tokenizer adds in front (begin-of-text, class) stays in front of every input and never
    moves; what it adds behind stays behind the query.

    Raises:
        InputError: the text is shorter than one input.
    """
    added = special_tokens(tokenizer)
    if added is None:
        raise InputError(
            "the tokenizer changes text when it adds its special tokens; give token ids."
        )
    front, back = added
    ids = tokenizer(_read(file), add_special_tokens=False, verbose=False)["input_ids"]
    inner = length - len(front) - len(back)
    if inner < SHORTEST - 1:
        raise InputError(
            f"--length {length}: {len(front) + len(back)} of these are tokens that the tokenizer "
            "adds. Choose a longer one."
        )
    if len(ids) < inner:
        raise InputError(
            f"{file}: {len(ids)} tokens of text, but --length {length} needs {inner}. Give more "
            "text or a smaller --length."
        )
    starts = torch.randperm(len(ids) - inner + 1, generator=generator)[:n_samples]
    # In the text's order: inputs that probes hold out then overlap with no more than one or two.
    rows = [front + ids[s : s + inner] + back for s in sorted(starts.tolist())]
    notes = list(_too_few(len(rows), n_samples))
    if front or back:
        names = tokenizer.convert_ids_to_tokens(front + back)
        notes.append(
            f"the tokenizer adds {', '.join(map(str, names))}; these stay where they are, and only "
            "the text's tokens are permuted"
        )
    return Inputs(
        items=torch.tensor(rows),
        source="text",
        n_front=len(front),
        n_after_query=len(back),
        notes=tuple(notes),
    )


def reads_passage(tokenizer: Any) -> bool:  # noqa: ANN401 - any tokenizer
    """Say whether a tokenizer is there and knows (nearly) all of the package's English text."""
    if tokenizer is None:
        return False
    ids = tokenizer(_read(passage()), add_special_tokens=False, verbose=False)["input_ids"]
    unknown = sum(token == tokenizer.unk_token_id for token in ids)
    return len(ids) > 0 and unknown <= UNKNOWN * len(ids)


def mask_query(inputs: Inputs, mask_id: int | None) -> Inputs:
    """Return the inputs with the query replaced by the mask token, if there is a known one."""
    if mask_id is None:
        note = "no mask token is known: the last token is read as it is, which tells its own name"
        return replace(inputs, notes=(*inputs.notes, note))
    items = inputs.items.clone()
    items[:, -1 - inputs.n_after_query] = mask_id
    return replace(inputs, items=items)


def square_side(config: Any) -> int:  # noqa: ANN401 - any config
    """Return the side of the images a model takes.

    Raises:
        InputError: they are not square.
    """
    size = config.image_size
    sides = {size} if isinstance(size, int) else set(size)
    if len(sides) != 1:
        raise InputError(
            f"this model takes images of {' x '.join(map(str, size))}; its patches are put "
            "together as squares here. Only models of square images can be looked at so."
        )
    return int(sides.pop())


def image_file(file: Path, n_samples: int, generator: torch.Generator) -> Tensor:
    """Return images (samples, channels, height, width) from a .npy file, already normalised.

    Raises:
        InputError: the file is not such an array.
    """
    import numpy as np

    try:
        array = np.load(file, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: not a .npy file of images ({error}).") from error
    images = torch.as_tensor(np.asarray(array, dtype=np.float32))
    if images.ndim != 4:
        raise InputError(
            f"{file}: an array of shape {tuple(images.shape)}; expected (images, channels, height, "
            "width)."
        )
    return images[torch.randperm(len(images), generator=generator)[:n_samples]]


def _too_few(n_found: int, n_wanted: int) -> tuple[str, ...]:
    if n_found >= n_wanted:
        return ()
    return (f"only {n_found} different inputs of this length were found, {n_wanted} were asked",)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--text {file}: cannot be read as UTF-8 text ({error}).") from error
