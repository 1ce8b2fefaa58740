"""Dictionaries of tokens: byte-pair encoding by a library, LZW of our own, and blocks.

Enters: a text to learn from, and a size. Leaves: a `Dictionary`, which turns a text into tokens.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from orbitlens.errors import InputError, MissingPackageError
from orbitlens_papers.tokenization.source import LETTERS

LEARN_FROM = 200  # characters a piece: the library is slow on one long string
ENCODE = 2000


@dataclass(frozen=True, kw_only=True)
class Dictionary:
    """Tokens, and how a text is cut into them."""

    tokens: tuple[str, ...]
    cut: Callable[[str], list[int]]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text's tokens; together they are the text."""
        return self.cut(text)

    def __len__(self) -> int:
        """Return how many tokens there are."""
        return len(self.tokens)


def _pieces(text: str, length: int) -> Iterator[str]:
    return (text[k : k + length] for k in range(0, len(text), length))


def characters() -> Dictionary:
    """Return the letters themselves."""
    return blocks(1)


def byte_pairs(text: str, size: int) -> Dictionary:
    """Return the byte-pair dictionary of a text, learned by the library `tokenizers`."""
    library = _library()
    if size < len(LETTERS):
        raise InputError(f"a dictionary of {size} tokens; expected at least the two letters.")
    tokenizer = library.Tokenizer(library.models.BPE())
    trainer = library.trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=list(LETTERS), show_progress=False
    )
    tokenizer.train_from_iterator(_pieces(text, LEARN_FROM), trainer)
    names = {number: name for name, number in tokenizer.get_vocab().items()}

    def cut(other: str) -> list[int]:
        ids: list[int] = []
        for piece in _pieces(other, ENCODE):
            ids += tokenizer.encode(piece).ids
        return ids

    return Dictionary(tokens=tuple(names[k] for k in range(len(names))), cut=cut)


def _library() -> Any:  # noqa: ANN401 - an optional package
    try:
        import tokenizers
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "byte-pair encoding needs tokenizers: pip install tokenizers"
        ) from error
    return tokenizers


def lzw(text: str, size: int) -> Dictionary:
    """Return the first `size` phrases that LZW finds in a text; texts are cut greedily.

    Every beginning of a phrase is a phrase, so the longest match is found a letter at a time.
    """
    phrases = {letter: k for k, letter in enumerate(LETTERS)}
    if size < len(phrases):
        raise InputError(f"a dictionary of {size} tokens; expected at least the two letters.")
    phrase = ""
    for letter in text:
        if len(phrases) == size:
            break
        if phrase + letter in phrases:
            phrase += letter
        else:
            phrases[phrase + letter] = len(phrases)
            phrase = letter
    if len(phrases) < size:
        raise InputError(
            f"a text of {len(text)} characters has {len(phrases)} phrases; expected {size}. Give a "
            "longer one."
        )
    return Dictionary(tokens=tuple(phrases), cut=lambda other: longest_match(phrases, other))


def longest_match(phrases: dict[str, int], text: str) -> list[int]:
    """Return the ids of a text cut greedily; every beginning of a phrase must be a phrase."""
    ids: list[int] = []
    phrase = ""
    for letter in text:
        if phrase + letter in phrases:
            phrase += letter
        else:
            ids.append(phrases[phrase])
            phrase = letter
    return [*ids, phrases[phrase]] if phrase else ids


def blocks(length: int) -> Dictionary:
    """Return all blocks of that length; a rest of a text that fills none is left out."""
    tokens = tuple("".join(letters) for letters in product(LETTERS, repeat=length))
    places = 2 ** torch.arange(length - 1, -1, -1)  # a block is a number in base two

    def cut(text: str) -> list[int]:
        whole = len(text) - len(text) % length
        letters = torch.frombuffer(bytearray(text[:whole].encode()), dtype=torch.uint8)
        numbers = (letters.long() - ord(LETTERS[0])).view(-1, length) @ places
        ids: list[int] = numbers.tolist()
        return ids

    return Dictionary(tokens=tokens, cut=cut)
