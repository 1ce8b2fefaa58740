"""The paper's setting: tokens are separated vectors, and one transformer recalls their sequences.

Enters: sizes and a generator. Leaves: a `Memory`, whose every number is a whole number or a
fraction. Tokens are vectors of length at most r, no two nearer than d. A ReLU network maps each to
a whole number, token by token: a projection to a line on which all are two apart, then the network
of `network.py`. One attention layer takes the mean of those, and a second network maps n times the
mean to the label. Few tokens tell all sequences apart, at most N - 1 of them; the others are mapped
to zero, so that the first network does not grow with the vocabulary.
"""

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

import torch
from jaxtyping import Int
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens_papers.memorization.network import (
    ROOT,
    Exact,
    Form,
    Network,
    bumps,
    extractor,
    lookup,
    run_exact,
    whole,
)
from orbitlens_papers.memorization.sequences import LABEL_BITS, MAX_TRIES, N_LABELS, Sequences

WIDTH = 16  # of a token
RADIUS = 1
SEPARATION = Fraction(1, 4)
UNIT = 2**24  # coordinates are whole multiples of 1 / UNIT: products of two are exact in float64
CHUNK = 1024


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Sequences of separated vectors with random labels, by sizes and a seed."""

    n_sequences: int
    length: int
    number: int  # of the generator
    twins: bool = False  # half of the sequences differ from others by a vector much too near
    form: Form = ROOT  # of both networks
    every_token: bool = False  # the map knows every vector, not only those that tell apart
    plain: bool = False  # one block each instead: as shallow and wide as it gets

    @property
    def vocabulary(self) -> int:
        """Return how many vectors there are: as many as the sequences have places."""
        return self.n_sequences * self.length


Vectors = Int[Tensor, "token d_model"]


def separated_vectors(n: int, generator: torch.Generator) -> Vectors:
    """Return vectors within the radius, no two nearer than the separation, times UNIT."""
    kept = torch.zeros(0, WIDTH, dtype=torch.int64)
    for _ in range(MAX_TRIES):
        if len(kept) >= n:
            return kept[:n]
        raw = torch.randn(n, WIDTH, generator=generator, dtype=torch.float64)
        length = torch.rand(n, 1, generator=generator, dtype=torch.float64) ** (1 / WIDTH)
        scaled = RADIUS * UNIT * length * raw / raw.norm(dim=1, keepdim=True)
        drawn = torch.cat([kept, scaled.trunc().long()])
        kept = drawn[~_too_near(drawn)]
    raise InputError(
        f"{n} vectors of {WIDTH} numbers do not keep a distance of {SEPARATION} within a radius of "
        f"{RADIUS}. Expected fewer."
    )


def _too_near(vectors: Vectors) -> Tensor:
    """Return which vectors are nearer to an earlier one than the separation."""
    x = vectors.double()  # squares and their sums stay below 2^53
    squares, near = (x * x).sum(dim=1), []
    for start in range(0, len(x), CHUNK):
        rows = slice(start, start + CHUNK)
        distances = squares[rows, None] + squares - 2 * x[rows] @ x.T
        earlier = torch.arange(len(x)) < torch.arange(start, start + len(x[rows]))[:, None]
        near.append(((distances < float((SEPARATION * UNIT) ** 2)) & earlier).any(dim=1))
    return torch.cat(near)


# --- the token-wise map ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Projection:
    """A map of vectors to a line, y = w x + b, on which no two tokens are nearer than two."""

    weights: tuple[int, ...]
    bias: int
    tries: int

    def __call__(self, vectors: Vectors) -> list[Fraction]:
        """Return where vectors come to lie."""
        rows: list[list[int]] = vectors.tolist()
        sums = (sum(w * k for w, k in zip(self.weights, row, strict=True)) for row in rows)
        return [Fraction(total, UNIT) + self.bias for total in sums]

    @property
    def id_bits(self) -> int:
        """Bits of the largest whole number on the line."""
        return (2 * self.bias).bit_length()


def project(vectors: Vectors, generator: torch.Generator) -> Projection:
    """Return a random projection that keeps vectors apart which are separated.

    A random direction brings two of V vectors nearer than √(8/πd) / V² of their distance with a
    chance of less than a half (a union bound). What it is multiplied by follows from that alone,
    and so from r, the separation, d and V, not from where the vectors lie.
    """
    least = math.sqrt(8 / (math.pi * WIDTH)) / len(vectors) ** 2 * float(SEPARATION)
    for tries in range(1, MAX_TRIES + 1):
        u = (torch.randn(WIDTH, generator=generator) * 1024).round().long()
        norm = float(u.double().norm())
        scale = math.ceil(2 / (least * norm))
        bias = math.ceil(scale * norm * RADIUS) + 1
        line = Projection(weights=tuple((scale * u).tolist()), bias=bias, tries=tries)
        if _least_gap(line(vectors)) >= 2:
            return line
    raise InputError(
        f"{MAX_TRIES} directions left some of {len(vectors)} vectors too near. Expected vectors "
        f"with a distance of {SEPARATION} or more."
    )


def _least_gap(values: Sequence[Fraction]) -> Fraction:
    ordered = sorted(values)
    return min(b - a for a, b in pairwise(ordered))


def telling_tokens(sequences: Sequences) -> list[int]:
    """Return tokens whose counts tell all sequences apart: at most one less than there are.

    Each sequence that looks like an earlier one adds a token that the two have unlike counts of.

    >>> telling_tokens([(1, 2), (1, 3), (2, 3)])
    [2, 1]
    """
    chosen: dict[int, None] = {}
    seen: dict[tuple[int, ...], int] = {}  # which sequence has these chosen tokens
    holding: dict[int, list[int]] = {}  # sequences by token
    for k, x in enumerate(sequences):
        if (other := seen.get(_among(x, chosen))) is not None:
            token = _difference(sequences[other], x)
            touched = [j for j in holding.get(token, []) if j < k]
            for j in touched:
                del seen[_among(sequences[j], chosen)]
            chosen[token] = None
            seen |= {_among(sequences[j], chosen): j for j in touched}
        seen[_among(x, chosen)] = k
        for t in set(x):
            holding.setdefault(t, []).append(k)
    return list(chosen)


def _among(x: Sequence[int], chosen: Container[int]) -> tuple[int, ...]:
    """Return the tokens of a sequence that are among the chosen, as often as they occur."""
    return tuple(sorted(t for t in x if t in chosen))


def _difference(first: Sequence[int], second: Sequence[int]) -> int:
    """Return a token of the first of two sequences, or of the second, that the other has less of.

    Raises:
        InputError: they are permutations of each other.
    """
    for one, other in ((first, second), (second, first)):
        for token in one:
            if one.count(token) > other.count(token):
                return token
    raise InputError(
        "two sequences are permutations of each other, which attention without positions cannot "
        "tell apart. Expected different multisets."
    )


# --- the transformer -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Memory:
    """A projection, a network for tokens, uniform attention, and a network for sequences."""

    projection: Projection
    token_map: Network
    reader: Network
    n_telling: int

    @property
    def n_parameters(self) -> int:
        """Weights and biases of all parts."""
        return WIDTH + 1 + self.token_map.n_parameters + self.reader.n_parameters

    def __call__(self, vectors: Vectors, sequences: Sequences) -> list[Exact]:
        """Return the label of each sequence, exactly."""
        values = run_exact(self.token_map, self.projection(vectors))
        return run_exact(self.reader, [_attend([values[t] for t in x]) for x in sequences])


def _attend(values: Sequence[Exact]) -> Exact:
    """Return n times the mean of n values: uniform attention, then a weight of n."""
    weight = Fraction(1, len(values))  # softmax of equal scores
    return whole(len(values) * (weight * sum(values)))


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """Vectors, sequences of them, and labels."""

    vectors: Vectors
    sequences: Sequences
    labels: list[int]
    n_apart: int  # the first so many vectors are separated, the others are twins


def lesson(setting: Setting, generator: torch.Generator) -> Lesson:
    """Return what is to be memorized."""
    n, n_vectors = setting.n_sequences, setting.vocabulary
    vectors = separated_vectors(n_vectors, generator)
    unique: dict[tuple[int, ...], None] = {}
    while len(unique) < n:
        drawn = torch.randint(n_vectors, (n, setting.length), generator=generator)
        unique |= {tuple(sorted(row)): None for row in drawn.tolist()}
    sequences = list(unique)[:n]
    if setting.twins:
        half = sequences[: n // 2]
        nudged = vectors[[x[0] for x in half]].clone()
        nudged[:, 0] += 1  # of 2^24: far below the separation
        vectors = torch.cat([vectors, nudged])
        sequences = half + [(n_vectors + k, *x[1:]) for k, x in enumerate(half)]
    labels = torch.randint(N_LABELS, (len(sequences),), generator=generator).tolist()
    return Lesson(vectors=vectors, sequences=sequences, labels=labels, n_apart=n_vectors)


def memory(given: Lesson, setting: Setting, generator: torch.Generator) -> Memory:
    """Return a transformer that is built to give every sequence its label."""
    projection = project(given.vectors[: given.n_apart], generator)
    every = list(range(len(given.vectors)))
    telling = every if setting.every_token else telling_tokens(given.sequences)
    places = [math.floor(y) for y in projection(given.vectors[telling])]
    span = 4 * len(given.sequences) ** 2
    values, ids = _values(given.sequences, telling, span, generator)
    table: dict[int, int] = {}
    for place, token in zip(places, telling, strict=True):
        table.setdefault(place, values[token])
    wanted = dict(zip(ids, given.labels, strict=True))
    return Memory(
        projection=projection,
        token_map=_network(
            table, setting, (projection.id_bits, (span - 1).bit_length()), real=True
        ),
        reader=_network(
            wanted, setting, ((setting.length * span - 1).bit_length(), LABEL_BITS), real=False
        ),
        n_telling=len(telling),
    )


def _network(
    labels: dict[int, int], setting: Setting, bits: tuple[int, int], *, real: bool
) -> Network:
    if setting.plain:
        return bumps(labels) if real else lookup(labels)
    return extractor(
        labels, id_bits=bits[0], label_bits=bits[1], form=replace(setting.form, real=real)
    )


def _values(
    sequences: Sequences, telling: Sequence[int], span: int, generator: torch.Generator
) -> tuple[dict[int, int], list[int]]:
    """Return random values of telling tokens, and sums over sequences, no two of which agree."""
    for _ in range(MAX_TRIES):
        drawn = torch.randint(span, (len(telling),), generator=generator).tolist()
        values = dict(zip(telling, drawn, strict=True))
        sums = [sum(values.get(t, 0) for t in x) for x in sequences]
        if len(set(sums)) == len(sums):
            return values, sums
    raise InputError(f"{MAX_TRIES} maps of tokens left two sequences with equal sums.")
