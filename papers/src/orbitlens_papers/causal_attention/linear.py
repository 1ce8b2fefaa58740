"""Linear structural equation models: random graphs, what attention would be, what is adjacent.

Enters: a generator. Leaves: A = (I − G)⁻¹ of X = G X + U, and the truths that graphs are held
against: edges, ancestors, and which pairs no set of observed variables separates.
"""

from dataclasses import dataclass
from itertools import combinations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

LEAST, MOST = 0.4, 1.0  # size of a coefficient
DENSITY = 0.3  # chance of an edge

Pair = frozenset[int]


@dataclass(frozen=True, kw_only=True)
class Linear:
    """X = G X + U with unit noise; the first `n_latent` variables cause others and are not seen."""

    weights: Float[Tensor, "child parent"]
    n_latent: int = 0

    @property
    def n_nodes(self) -> int:
        """Variables, seen or not."""
        return len(self.weights)

    @property
    def parents(self) -> Bool[Tensor, "child parent"]:
        """Who is a parent of whom."""
        return self.weights != 0

    def mixing(self) -> Float[Tensor, "seen noise"]:
        """Return A of X = A U, rows of the variables that are seen."""
        eye = torch.eye(self.n_nodes, dtype=self.weights.dtype)
        return torch.linalg.inv(eye - self.weights)[self.n_latent :]

    def edges(self) -> frozenset[Pair]:
        """Return the pairs of seen variables of which one causes the other directly."""
        seen = self.parents[self.n_latent :, self.n_latent :]
        return frozenset(frozenset((int(a), int(b))) for a, b in seen.nonzero())

    def inseparable(self) -> frozenset[Pair]:
        """Return the pairs of seen variables that an inducing path links.

        No set of seen variables separates them; it is enough to try the seen ancestors of both.
        """
        above, shift = ancestors(self.parents), self.n_latent
        pairs = []
        for a, b in combinations(range(shift, self.n_nodes), 2):
            given = [
                node
                for node in range(shift, self.n_nodes)
                if node not in (a, b) and (above[a, node] or above[b, node])
            ]
            if not separated(self.parents, a, b, given):
                pairs.append(frozenset((a - shift, b - shift)))
        return frozenset(pairs)


def f1(pairs: frozenset[Pair], true: frozenset[Pair]) -> float:
    """Return the harmonic mean of precision and recall; 1 where there is nothing to find."""
    total = len(pairs) + len(true)
    return 2 * len(pairs & true) / total if total else 1.0


def random_linear(
    n_seen: int, *, generator: torch.Generator, n_latent: int = 0, density: float = DENSITY
) -> Linear:
    """Draw a model: edges by chance along a random order; each latent has three children."""
    signs = torch.randint(0, 2, (n_seen, n_seen), generator=generator) * 2 - 1
    sizes = LEAST + (MOST - LEAST) * torch.rand(n_seen, n_seen, generator=generator)
    there = torch.rand(n_seen, n_seen, generator=generator) < density
    order = torch.randperm(n_seen, generator=generator)
    drawn = torch.tril(signs * sizes * there, diagonal=-1).double()[order][:, order]
    weights = torch.zeros(n_latent + n_seen, n_latent + n_seen, dtype=torch.float64)
    weights[n_latent:, n_latent:] = drawn
    for latent in range(n_latent):
        children = torch.randperm(n_seen, generator=generator)[:3]
        sizes = LEAST + (MOST - LEAST) * torch.rand(3, generator=generator)
        weights[n_latent + children, latent] = sizes.double()
    return Linear(weights=weights, n_latent=n_latent)


def ancestors(parents: Bool[Tensor, "n n"]) -> Bool[Tensor, "n n"]:
    """Return who is above whom: [a, b] says that b causes a, along any number of edges."""
    reached = parents
    for _ in range(len(parents)):
        reached = reached | ((reached.double() @ parents.double()) > 0)
    return reached


def separated(parents: Bool[Tensor, "n n"], a: int, b: int, given: list[int]) -> bool:
    """Say whether a set d-separates two variables.

    They are, if no path avoids the set once parents of a common child are married, among the
    ancestors of all of them (Lauritzen et al. 1990).
    """
    above = ancestors(parents)
    kept = torch.zeros(len(parents), dtype=torch.bool)
    for node in (a, b, *given):
        kept |= above[node]
        kept[node] = True
    inner = parents & kept[:, None] & kept[None]
    moral = inner | inner.T | ((inner.T.double() @ inner.double()) > 0)
    moral[given] = False
    moral[:, given] = False
    reached = torch.zeros(len(parents), dtype=torch.bool)
    reached[a] = True
    for _ in range(len(parents)):
        reached = reached | (moral & reached[None]).any(dim=1)
    return not bool(reached[b])
