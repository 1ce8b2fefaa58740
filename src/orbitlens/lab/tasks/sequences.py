"""Tasks of a question and an answer: arithmetic, copying, sorting, looking up, counting.

Enters: sizes. Leaves: a `SequenceTask`. A row is question then answer; only the answer is judged.
Which split a row belongs to is read off a hash of its question, so no question is in two splits. An
addition and its mirror image (a + b, b + a) have one hash.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.lab.tasks.base import (
    NOT_JUDGED,
    SHARES,
    Batch,
    Ceiling,
    ImageShape,
    Split,
    batch_generator,
    in_split,
    row_keys,
)
from orbitlens.lab.tasks.ceiling import addition_ceiling

Rows = Int[Tensor, "batch tokens"]
Answers = Int[Tensor, "batch answer"]
Draw = Callable[[int, torch.Generator], Rows]
PLUS, EQUALS = 10, 11
MOST_DRAWS = 200  # rounds in search of a split's examples


@dataclass(frozen=True, kw_only=True)
class SequenceTask:
    """Random questions with one right answer each."""

    name: str
    vocab_size: int
    n_question: int
    n_answer: int
    draw: Draw = field(repr=False)
    answer: Callable[[Rows], Answers] = field(repr=False)
    key: Callable[[Rows], Int[Tensor, " batch"]] = field(repr=False, default=row_keys)
    ceiling_of: Callable[[], Ceiling] | None = field(repr=False, default=None)
    kind: Literal["tokens"] = "tokens"
    image: ImageShape | None = None
    by_token: bool = False

    @property
    def n_positions(self) -> int:
        """Tokens of an input: all but the last of the answer."""
        return self.n_question + self.n_answer - 1

    @property
    def ceiling(self) -> Ceiling | None:
        """The order-blind ceiling, where it is known."""
        return self.ceiling_of() if self.ceiling_of else None

    def n_examples(self, split: Split) -> int | None:
        """Return None: examples are drawn, as many as are asked for."""
        return None

    def batch(self, split: Split, index: int, size: int, seed: int) -> Batch:
        """Return batch number `index` of a split."""
        questions = self._questions(split, index, size, seed)
        row = torch.cat([questions, self.answer(questions)], dim=1)
        targets = row[:, 1:].clone()
        targets[:, : self.n_question - 1] = NOT_JUDGED
        return Batch(inputs=row[:, :-1], targets=targets)

    def _questions(self, split: Split, index: int, size: int, seed: int) -> Rows:
        generator = batch_generator(self.name, split, index, seed)
        low, high = SHARES[split]
        n_drawn = size * 110 // (high - low) + 32
        drawn: list[Rows] = []
        for _ in range(MOST_DRAWS):
            rows = self.draw(n_drawn, generator)
            drawn.append(rows[in_split(self.key(rows), split)])
            if sum(len(rows) for rows in drawn) >= size:
                return torch.cat(drawn)[:size]
        raise InputError(
            f"{self.name}: there are too few different questions for a {split} split. "
            "Make them longer."
        )


# --- addition --------------------------------------------------------------------------------


def addition(*, digits: int = 3, reversed_answer: bool = True) -> SequenceTask:
    """Return a + b with `digits` digits each; reversed: the answer's last digit comes first."""
    _check("digits", digits, 1, 9)
    return SequenceTask(
        name=f"addition-{digits}-{'reversed' if reversed_answer else 'plain'}",
        vocab_size=12,
        n_question=2 * digits + 2,
        n_answer=digits + 1,
        draw=lambda n, generator: _additions(n, digits, generator),
        answer=lambda rows: _sums(rows, digits, reversed_answer),
        key=lambda rows: _pair_keys(rows, digits),
        ceiling_of=(lambda: addition_ceiling(digits, reversed_answer)) if digits <= 3 else None,
    )


def _additions(n: int, digits: int, generator: torch.Generator) -> Rows:
    drawn = torch.randint(0, 10, (n, 2 * digits), generator=generator)
    plus, equals = torch.full((n, 1), PLUS), torch.full((n, 1), EQUALS)
    return torch.cat([drawn[:, :digits], plus, drawn[:, digits:], equals], dim=1)


def _numbers(rows: Rows, digits: int) -> tuple[Int[Tensor, " batch"], Int[Tensor, " batch"]]:
    powers = 10 ** torch.arange(digits - 1, -1, -1)
    return rows[:, :digits] @ powers, rows[:, digits + 1 : 2 * digits + 1] @ powers


def _sums(rows: Rows, digits: int, reversed_answer: bool) -> Answers:
    a, b = _numbers(rows, digits)
    powers = 10 ** torch.arange(digits + 1)
    answer = (a + b)[:, None] // powers % 10
    return answer if reversed_answer else answer.flip(1)


def _pair_keys(rows: Rows, digits: int) -> Int[Tensor, " batch"]:
    a, b = _numbers(rows, digits)
    return torch.minimum(a, b) * 10**digits + torch.maximum(a, b)


# --- copying, sorting, looking up ------------------------------------------------------------


def copy(*, length: int = 8, symbols: int = 16) -> SequenceTask:
    """Return the question over again."""
    return _transduction("copy", length, symbols, lambda rows: rows)


def reverse(*, length: int = 8, symbols: int = 16) -> SequenceTask:
    """Return the question from its end."""
    return _transduction("reverse", length, symbols, lambda rows: rows.flip(1))


def sort(*, length: int = 8, symbols: int = 16) -> SequenceTask:
    """Return the question's symbols in order."""
    return _transduction("sort", length, symbols, lambda rows: rows.sort(dim=1).values)


def _transduction(
    name: str, length: int, symbols: int, function: Callable[[Rows], Answers]
) -> SequenceTask:
    _check("length", length, 2, 512)
    _check("symbols", symbols, 2, 4096)
    return SequenceTask(
        name=f"{name}-{length}-{symbols}",
        vocab_size=symbols + 1,
        n_question=length + 1,
        n_answer=length,
        draw=lambda n, generator: _drawn(n, length, symbols, end=symbols, generator=generator),
        answer=lambda rows: function(rows[:, :length]),
    )


def index(*, length: int = 8, symbols: int = 16) -> SequenceTask:
    """Return what stands at position k: symbols, then one of `length` tokens that name k."""
    _check("length", length, 2, 512)
    _check("symbols", symbols, 2, 4096)

    def draw(n: int, generator: torch.Generator) -> Rows:
        rows = torch.randint(0, symbols, (n, length), generator=generator)
        place = torch.randint(0, length, (n, 1), generator=generator)
        return torch.cat([rows, symbols + place], dim=1)

    return SequenceTask(
        name=f"index-{length}-{symbols}",
        vocab_size=symbols + length,
        n_question=length + 1,
        n_answer=1,
        draw=draw,
        answer=lambda rows: rows.gather(1, rows[:, -1:] - symbols),
    )


def parity(*, length: int = 8) -> SequenceTask:
    """Return whether the number of ones is odd."""
    return _counting("parity", length, lambda bits: bits.sum(dim=1, keepdim=True) % 2)


def majority(*, length: int = 15) -> SequenceTask:
    """Return which of two symbols is more frequent; the length is odd, so one of them is."""
    if length % 2 == 0:
        raise InputError(f"length={length}: expected an odd number, so that there is a majority.")
    return _counting(
        "majority", length, lambda bits: (2 * bits.sum(dim=1, keepdim=True) > length).long()
    )


def _counting(name: str, length: int, function: Callable[[Rows], Answers]) -> SequenceTask:
    _check("length", length, 3, 512)
    return SequenceTask(
        name=f"{name}-{length}",
        vocab_size=3,
        n_question=length + 1,
        n_answer=1,
        draw=lambda n, generator: _drawn(n, length, 2, end=2, generator=generator),
        answer=lambda rows: function(rows[:, :length]),
    )


def _drawn(n: int, length: int, symbols: int, *, end: int, generator: torch.Generator) -> Rows:
    rows = torch.randint(0, symbols, (n, length), generator=generator)
    return torch.cat([rows, torch.full((n, 1), end)], dim=1)


def _check(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InputError(f"{name}={value}: expected a number from {least} to {most}.")
