"""Character language modelling on any text file.

Enters: a UTF-8 file and a context. Leaves: a `TextTask`. Train, valid and test are three blocks of
the file, one after the other, and a window never leaves its block: no two splits share a character.
"""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.lab.tasks.base import (
    SHARES,
    SPLITS,
    Batch,
    Ceiling,
    ImageShape,
    Split,
    batch_generator,
)
from orbitlens.running.texts import passage


@dataclass(frozen=True, kw_only=True)
class TextTask:
    """Windows of a text; every next character is judged."""

    name: str
    characters: tuple[str, ...]  # by token id
    ids: Int[Tensor, " length"] = field(repr=False)
    context: int
    kind: Literal["tokens"] = "tokens"
    image: ImageShape | None = None
    ceiling: Ceiling | None = None
    by_token: bool = True

    @property
    def vocab_size(self) -> int:
        """Number of different characters."""
        return len(self.characters)

    @property
    def n_positions(self) -> int:
        """Characters of an input."""
        return self.context

    def block(self, split: Split) -> tuple[int, int]:
        """Return where a split's characters begin and end."""
        low, high = SHARES[split]
        n = self.ids.shape[0]
        return n * low // 100, n * high // 100

    def n_examples(self, split: Split) -> int:
        """Return how many windows lie side by side in a split."""
        begin, end = self.block(split)
        return (end - begin - 1) // self.context

    def starts(self, split: Split, index: int, size: int, seed: int) -> Int[Tensor, " batch"]:
        """Return where the windows of a batch begin: anywhere to train, side by side to judge."""
        begin, end = self.block(split)
        if split == "train":
            generator = batch_generator(self.name, split, index, seed)
            return torch.randint(begin, end - self.context, (size,), generator=generator)
        number = (index * size + torch.arange(size)) % self.n_examples(split)
        return begin + number * self.context

    def batch(self, split: Split, index: int, size: int, seed: int) -> Batch:
        """Return batch number `index` of a split."""
        starts = self.starts(split, index, size, seed)
        windows = self.ids[starts[:, None] + torch.arange(self.context + 1)]
        return Batch(inputs=windows[:, :-1], targets=windows[:, 1:])


def text(*, file: str | None = None, context: int = 64) -> TextTask:
    """Return the characters of a UTF-8 file; the package's own passage if none is given."""
    if context < 2:
        raise InputError(f"context={context}: expected at least 2.")
    path = Path(file) if file is not None else passage()
    content = _read(path)
    name = hashlib.sha256(content.encode()).hexdigest()[:12]
    characters = tuple(sorted(set(content)))
    numbers = {character: number for number, character in enumerate(characters)}
    task = TextTask(
        name=f"text-{name}-{context}",
        characters=characters,
        ids=torch.tensor([numbers[character] for character in content], dtype=torch.int64),
        context=context,
    )
    shortest = min(end - begin for begin, end in map(task.block, SPLITS))
    if shortest < context + 1:
        raise InputError(
            f"{path}: the text is too small, {len(content)} characters. The valid and test splits "
            f"are 5 % each and must hold one window of {context + 1}: at least "
            f"{20 * (context + 2)} characters are needed, or a smaller context."
        )
    return task


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: this is not UTF-8 text (byte {error.start}). Convert it, for example with: "
            "iconv -t UTF-8."
        ) from error
    except OSError as error:
        raise InputError(f"{path}: this text cannot be read ({error.strerror}).") from error
