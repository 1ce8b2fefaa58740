"""Sequences with random labels, and what one uniform attention layer makes of them: ids.

Enters: sizes and a generator. Leaves: a `Problem`, ids with labels. A token is mapped to a random
whole number (the token-wise map), attention with equal scores takes the mean, and n times the mean
is the sum: an id of the multiset of tokens. Equal multisets get equal ids, whatever their order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

import torch

from orbitlens.errors import InputError

N_LABELS = 8
LABEL_BITS = 3
VOCABULARY = 64
LARGE_VOCABULARY = 1024  # for one label a token: tokens of a sequence differ
MAX_TRIES = 100

Sequences = list[tuple[int, ...]]


class Kind(StrEnum):
    """What has a label of its own, and what the ids are made of."""

    SEQUENCE = "sequence"  # one label a sequence; ids by attention
    UNATTENDED = "last token"  # the same labels; attention sees the last token alone
    TOKEN = "token"  # one label a token; ids are the context's plus the token's
    UNNAMED = "context"  # the same labels; ids are the context's alone
    PLACED = "positions"  # permuted sequences, labels of their own; a map of token and place
    PERMUTED = "no positions"  # the same sequences; a map of the token alone


@dataclass(frozen=True, kw_only=True)
class Case:
    """One thing to memorize, by sizes and a seed."""

    kind: Kind
    n_sequences: int
    length: int
    number: int  # of the generator


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Ids and the labels that they should get, one of each a row."""

    ids: list[int]
    labels: list[int]
    id_bits: int
    tries: int  # of random maps, until different contexts had different ids

    @property
    def first_labels(self) -> dict[int, int]:
        """The label of each id; the first one where two rows share an id and disagree."""
        labels: dict[int, int] = {}
        for i, label in zip(self.ids, self.labels, strict=True):
            labels.setdefault(i, label)
        return labels

    @property
    def n_shared(self) -> int:
        """Rows whose id was seen before."""
        return len(self.ids) - len(set(self.ids))


def build(case: Case) -> Problem:
    """Return the problem of a case."""
    generator = torch.Generator().manual_seed(case.number)
    sequences = _sequences(case, generator)
    each = case.kind in (Kind.TOKEN, Kind.UNNAMED)  # one label a token
    n_rows = len(sequences) * (case.length if each else 1)
    labels = torch.randint(N_LABELS, (n_rows,), generator=generator).tolist()
    ids, tries = context_ids(
        sequences,
        placed=case.kind is Kind.PLACED,
        generator=generator,
        injective=case.kind is not Kind.PERMUTED,
    )
    span = _span(case.n_sequences, case.length)
    if each:
        own = span if case.kind is Kind.TOKEN else 0  # a token's own value, beside its context's
        rows = [i + own * t for i, x in zip(ids, sequences, strict=True) for t in x]
        span *= LARGE_VOCABULARY
    elif case.kind is Kind.UNATTENDED:
        rows = [case.length * x[-1] for x in sequences]
    else:
        rows = ids
    return Problem(ids=rows, labels=labels, id_bits=(span - 1).bit_length(), tries=tries)


def _span(n_sequences: int, length: int) -> int:
    """Return a bound on sums of `length` values below 4 N^2."""
    return 4 * length * n_sequences**2


def attend(values: Sequence[int]) -> int:
    """Return n times the mean of n values: uniform attention, then a weight of n.

    >>> attend([3, 5, 7]) == attend([7, 3, 5]) == 15
    True
    """
    weight = Fraction(1, len(values))  # softmax of equal scores
    return int(len(values) * (weight * sum(values)))


def context_ids(
    sequences: Sequences, *, placed: bool, generator: torch.Generator, injective: bool = True
) -> tuple[list[int], int]:
    """Return an id a sequence, and how many random maps it took until all differed.

    Args:
        sequences: tokens.
        placed: whether a token's value depends on its place too.
        generator: where random maps come from.
        injective: try again while two ids are equal; else take the first map.
    """
    length = len(sequences[0])
    size = max(max(x) for x in sequences) + 1
    for tries in range(1, MAX_TRIES + 1):
        shape = (length if placed else 1, size)
        table = torch.randint(4 * len(sequences) ** 2, shape, generator=generator).tolist()
        ids = [
            attend([table[place if placed else 0][t] for place, t in enumerate(x)])
            for x in sequences
        ]
        if not injective or len(set(ids)) == len(ids):
            return ids, tries
    raise InputError(
        f"{MAX_TRIES} random maps left sequences with equal ids. Expected sequences that differ as "
        "multisets; give different ones, or let values depend on places."
    )


def _sequences(case: Case, generator: torch.Generator) -> Sequences:
    if case.kind in (Kind.PLACED, Kind.PERMUTED):
        return permuted_sequences(case.n_sequences, case.length, generator)
    distinct = case.kind in (Kind.TOKEN, Kind.UNNAMED)
    return multisets(case.n_sequences, case.length, distinct=distinct, generator=generator)


def multisets(
    n_sequences: int, length: int, *, distinct: bool, generator: torch.Generator
) -> Sequences:
    """Return sequences no two of which are permutations of each other.

    With `distinct` the tokens of a sequence differ, so that each can have a label of its own:
    equal tokens in equal contexts must have equal labels.
    """
    vocabulary = LARGE_VOCABULARY if distinct else VOCABULARY
    unique: dict[tuple[int, ...], tuple[int, ...]] = {}
    for _ in range(MAX_TRIES * n_sequences):
        if len(unique) == n_sequences:
            return list(unique.values())
        if distinct:
            draw = torch.randperm(vocabulary, generator=generator)[:length]
        else:
            draw = torch.randint(vocabulary, (length,), generator=generator)
        x = tuple(draw.tolist())
        unique.setdefault(tuple(sorted(x)), x)
    raise InputError(
        f"there are too few multisets of {length} tokens for {n_sequences} of them; expected "
        "longer sequences or fewer."
    )


def permuted_sequences(n_sequences: int, length: int, generator: torch.Generator) -> Sequences:
    """Return sequences in families of up to four, each family one multiset in several orders."""
    unique: dict[tuple[int, ...], None] = {}
    for _ in range(MAX_TRIES * n_sequences):
        if len(unique) >= n_sequences:
            return list(unique)[:n_sequences]
        first = torch.randperm(VOCABULARY, generator=generator)[:length]
        for _ in range(4):
            order = torch.randperm(length, generator=generator)
            unique.setdefault(tuple(first[order].tolist()))
    raise InputError(
        f"there are too few orders of {length} tokens for {n_sequences} sequences; expected longer "
        "sequences or fewer."
    )
