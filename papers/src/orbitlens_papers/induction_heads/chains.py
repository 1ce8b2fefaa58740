"""Markov chains that differ from sequence to sequence, and what a context says of the next token.

Enters: which lags are parents, a vocabulary, a length. Leaves: sequences, and their contexts as
counts: how often each window of earlier tokens was followed by anything, and by the right token.
Attention over a context depends on windows alone, so that counts are all a model needs to see.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens.errors import InputError

SMOOTHING = 0.1  # added to every count of an estimator


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A family of chains: x_t is drawn from a law of its parents x_{t-lag}, drawn per sequence."""

    parents: tuple[int, ...]  # lags
    window: int  # lags a model looks back
    vocabulary: int = 3
    length: int = 100  # tokens of context
    alpha: float = 0.1  # of the Dirichlet that laws are drawn from: small means nearly fixed

    def __post_init__(self) -> None:
        """Refuse parents that no window holds."""
        if not self.parents or min(self.parents) < 1 or max(self.parents) > self.window:
            raise InputError(f"parents {self.parents}: expected lags from 1 to {self.window}.")
        if self.length <= self.window:
            raise InputError(f"length {self.length}: expected more than {self.window} tokens.")

    @property
    def n_windows(self) -> int:
        """How many windows there are."""
        return self.vocabulary**self.window


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Sequences, and the laws they were drawn from."""

    tokens: Int[Tensor, "batch steps"]  # the context, and then the token to predict
    laws: Float[Tensor, "batch cases vocabulary"]  # one row for each value of the parents


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Contexts as counts over windows; the window of the place to predict is the query."""

    query: Int[Tensor, " batch"]
    total: Float[Tensor, "batch windows"]  # places with that window
    right: Float[Tensor, "batch windows"]  # those of them that hold the token to predict


def draw(chain: Chain, n: int, generator: torch.Generator) -> Draw:
    """Return n sequences, each of a law of its own; the first tokens are uniform."""
    cases = chain.vocabulary ** len(chain.parents)
    numbers = np.random.default_rng(
        int(torch.randint(2**62, (), generator=generator, dtype=torch.int64))
    )
    laws = torch.from_numpy(
        numbers.dirichlet([chain.alpha] * chain.vocabulary, size=(n, cases))
    ).double()
    ends = laws.cumsum(dim=-1)[..., :-1]
    tokens = torch.empty(n, chain.length + 1, dtype=torch.int64)
    tokens[:, : chain.window] = torch.randint(
        chain.vocabulary, (n, chain.window), generator=generator
    )
    uniform = torch.rand(n, chain.length + 1, generator=generator, dtype=torch.float64)
    rows = torch.arange(n)
    for t in range(chain.window, chain.length + 1):
        case = _code([tokens[:, t - lag] for lag in chain.parents], chain.vocabulary)
        tokens[:, t] = (uniform[:, t, None] > ends[rows, case]).sum(dim=-1)
    return Draw(tokens=tokens, laws=laws)


def shuffled(
    tokens: Int[Tensor, "batch steps"], generator: torch.Generator
) -> Int[Tensor, "batch steps"]:
    """Return the same sequences with their contexts in random order; the target stays."""
    noise = torch.rand(tokens[:, :-1].shape, generator=generator)
    return torch.cat([tokens[:, :-1].gather(1, noise.argsort(dim=1)), tokens[:, -1:]], dim=1)


def window_ids(chain: Chain, tokens: Int[Tensor, "batch steps"]) -> Int[Tensor, "batch places"]:
    """Return the number of the window before every place that has one, and before the target."""
    places = range(chain.window, tokens.shape[1])
    lags = range(1, chain.window + 1)
    columns = [tokens[:, [place - lag for place in places]] for lag in lags]
    return _code(columns, chain.vocabulary)


def counts_of(
    chain: Chain,
    tokens: Int[Tensor, "batch steps"],
    asked: Int[Tensor, "batch steps"] | None = None,
) -> Counts:
    """Return contexts as counts; the query is read off `asked` where that is given."""
    ids = window_ids(chain, tokens)
    keys, query = ids[:, :-1], (ids if asked is None else window_ids(chain, asked))[:, -1]
    is_right = (tokens[:, chain.window : -1] == tokens[:, -1:]).double()
    empty = torch.zeros(len(tokens), chain.n_windows, dtype=torch.float64)
    return Counts(
        query=query,
        total=empty.scatter_add(1, keys, torch.ones_like(is_right)),
        right=empty.scatter_add(1, keys, is_right),
    )


def windows(chain: Chain) -> Int[Tensor, "windows lags"]:
    """Return the tokens of every window; column i is lag i + 1."""
    ids = torch.arange(chain.n_windows)
    return torch.stack(
        [ids // chain.vocabulary**i % chain.vocabulary for i in range(chain.window)], 1
    )


def counting_loss(chain: Chain, counts: Counts, lags: Sequence[int]) -> Float[Tensor, " batch"]:
    """Return -log of the share, among places whose tokens at `lags` are the query's, of the right.

    With the parents' lags this is the n-gram estimator within a context, with none the unigram;
    every count has `SMOOTHING` added.
    """
    table = windows(chain)[:, [lag - 1 for lag in lags]]
    same = (table[:, None] == table[None]).all(dim=-1).double()[counts.query]
    right, all_ = ((same * part).sum(dim=1) for part in (counts.right, counts.total))
    return -torch.log((right + SMOOTHING) / (all_ + SMOOTHING * chain.vocabulary))


def true_loss(chain: Chain, sample: Draw) -> Float[Tensor, " batch"]:
    """Return -log of the law's own probability of the target: nothing can do better on average."""
    parents = [sample.tokens[:, chain.length - lag] for lag in chain.parents]
    case = _code(parents, chain.vocabulary)
    return -torch.log(sample.laws[torch.arange(len(case)), case, sample.tokens[:, -1]])


def _code(columns: Sequence[Tensor], base: int) -> Tensor:
    """Return numbers whose digits are the columns, the first one the lowest."""
    return sum(
        (column * base**place for place, column in enumerate(columns)),
        start=torch.zeros_like(columns[0]),
    )


CHAINS = {  # parents side by side, as in the released code; and with a gap, which is harder
    "{1, 2}": Chain(parents=(1, 2), window=3),
    "{1, 3}": Chain(parents=(1, 3), window=4),
}
