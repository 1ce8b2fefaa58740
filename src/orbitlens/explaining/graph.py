"""Attention as a causal graph over the tokens of one sequence (arXiv 2310.20307).

Enters: attention rows, how many samples they are taken to stand for, a level. Leaves: a
`CausalGraph` whose edges have marks. Read as X = A U with independent unit U, attention A gives the
covariance A Aᵀ. Only its correlations are used, so that scaling a row, as softmax does, changes
nothing; and only who attends *alike* matters: permuting columns changes nothing either.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens.errors import InputError, MissingPackageError
from orbitlens.explaining.icd import discovered as icd
from orbitlens.explaining.testing import FisherZ

ALIKE = 1e-12  # least eigenvalue of correlations below which tests cannot tell tokens apart


class AlikeError(InputError):
    """Tokens attend in the same way, so that their correlations have no inverse."""


class Mark(StrEnum):
    """An end of an edge: what is known about the token there."""

    TAIL = "-"  # it is a cause of the other
    ARROW = ">"  # it is no cause of the other
    CIRCLE = "o"  # either


class Learner(StrEnum):
    """What looks for the graph."""

    FCI = "fci"  # allows for common causes that are not among the tokens; causal-learn's
    ICD = "icd"  # the same, by iterations: the learner of arXiv 2310.20307, written here
    PC = "pc"  # no such causes; causal-learn's


CODES: Mapping[int, Mark] = {-1: Mark.TAIL, 1: Mark.ARROW, 2: Mark.CIRCLE}


@dataclass(frozen=True, kw_only=True)
class Edge:
    """Two tokens that no set of the others makes independent."""

    first: int
    second: int
    at_first: Mark
    at_second: Mark

    def __str__(self) -> str:
        """Return the edge as it is written: 0 o-> 3."""
        left = "<" if self.at_first is Mark.ARROW else self.at_first.value
        return f"{self.first} {left}-{self.at_second.value} {self.second}"


@dataclass(frozen=True)
class CausalGraph:
    """Tokens and the edges between them, of a partial ancestral graph."""

    nodes: tuple[int, ...]
    edges: tuple[Edge, ...]

    @cached_property
    def marks(self) -> dict[tuple[int, int], Mark]:
        """The mark at the first token of each adjacent pair; both orders are there."""
        marks = {(edge.first, edge.second): edge.at_first for edge in self.edges}
        return marks | {(edge.second, edge.first): edge.at_second for edge in self.edges}

    @property
    def pairs(self) -> frozenset[frozenset[int]]:
        """Adjacent tokens, without marks: the skeleton."""
        return frozenset(frozenset((edge.first, edge.second)) for edge in self.edges)

    def neighbours(self, node: int) -> tuple[int, ...]:
        """Return the tokens that are adjacent to one."""
        return tuple(b for a, b in sorted(self.marks) if a == node)

    def relabelled(self, names: Mapping[int, int]) -> "CausalGraph":
        """Return the same graph over other names of its tokens."""
        marks = {(names[a], names[b]): mark for (a, b), mark in self.marks.items()}
        return _graph(sorted(names[node] for node in self.nodes), marks)


def _graph(nodes: Sequence[int], marks: Mapping[tuple[int, int], Mark]) -> CausalGraph:
    edges = tuple(
        Edge(first=a, second=b, at_first=marks[a, b], at_second=marks[b, a])
        for a, b in sorted(marks)
        if a < b
    )
    return CausalGraph(nodes=tuple(nodes), edges=edges)


def correlation_of(
    attention: Float[Tensor, "nodes tokens"],
) -> Float[Tensor, "nodes nodes"]:
    """Return the correlations of A U, U independent with unit variance: A Aᵀ, scaled.

    >>> correlation_of(torch.tensor([[1.0, 0.0], [3.0, 4.0]]))[0, 1].item()
    0.6
    """
    rows = attention.double()
    if not bool(torch.isfinite(rows).all()):
        raise InputError("attention has entries that are not finite numbers; expected weights.")
    lengths = rows.norm(dim=1, keepdim=True)
    if not bool((lengths > 0).all()):
        empty = int((lengths[:, 0] == 0).nonzero()[0])
        raise InputError(f"row {empty} of attention is all zeros; expected weights that sum to 1.")
    rows = rows / lengths
    return rows @ rows.T


def graph_of_attention(
    attention: Float[Tensor, "nodes tokens"],
    samples: int,
    alpha: float = 0.01,
    *,
    nodes: Sequence[int] | None = None,
    learner: Learner = Learner.FCI,
) -> CausalGraph:
    """Return the graph that tests of partial correlations find in attention rows.

    Args:
        attention: one row a token, of one head; or any A of X = A U.
        samples: how many observations the correlations are taken to come from; the paper takes the
            model's width, which is a convention.
        alpha: level of Fisher's z tests; a pair is apart as soon as one test exceeds it.
        nodes: rows to look at; the others are left out, as latent variables would be.
        learner: what looks for the graph, from the same tests.

    Raises:
        InputError: too few samples, a level outside 0 to 1.
        AlikeError: tokens attend exactly alike.
        MissingPackageError: the learner is causal-learn's, which is not installed.

    The result does not depend on how tokens are numbered, beyond their names: before the search
    they are sorted by a quantity of the correlations alone.
    """
    kept = tuple(range(len(attention))) if nodes is None else tuple(nodes)
    _check(len(kept), samples, alpha)
    matrix = correlation_of(attention[list(kept)]).numpy()
    _check_alike(matrix, kept)
    order = np.argsort((matrix**2).sum(axis=1), kind="stable")
    sorted_matrix = matrix[np.ix_(order, order)]
    codes = _searched(sorted_matrix, samples, float(alpha), learner)
    names = [kept[place] for place in order]
    marks = {
        (names[a], names[b]): CODES[int(codes[a, b])]
        for a, b in zip(*np.nonzero(codes), strict=True)
    }
    return _graph(sorted(kept), marks)


def _check(n_nodes: int, samples: int, alpha: float) -> None:
    if n_nodes < 2:
        raise InputError(f"a graph of {n_nodes} tokens has no edges; expected 2 or more.")
    if samples < n_nodes + 2:
        raise InputError(
            f"{samples} samples are too few for tests among {n_nodes} tokens: expected at least "
            f"{n_nodes + 2}. Take more, or fewer tokens."
        )
    if not 0 < alpha < 1:
        raise InputError(f"alpha is {alpha}; expected a level between 0 and 1, such as 0.01.")


def _check_alike(matrix: Float[np.ndarray, "nodes nodes"], kept: Sequence[int]) -> None:
    values, vectors = np.linalg.eigh(matrix)
    if values[0] > ALIKE:
        return
    alike = sorted(np.argsort(-np.abs(vectors[:, 0]))[:2])
    raise AlikeError(
        f"attention of the tokens {kept[alike[0]]} and {kept[alike[1]]} (or of these and others) "
        "is the same up to a factor: no test can tell them apart. Leave one of them out of `nodes`."
    )


@contextmanager
def _environment_kept() -> Iterator[None]:
    """Undo what an import sets in the environment: causal-learn's sets variables of OpenMP."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)


def _searched(
    correlation: Float[np.ndarray, "nodes nodes"], samples: int, alpha: float, learner: Learner
) -> Int[np.ndarray, "nodes nodes"]:
    if learner is Learner.ICD:
        tests = FisherZ(correlation, samples)
        return icd(len(correlation), lambda a, b, given: tests.p_value(a, b, given) > alpha)
    try:
        with _environment_kept():
            from orbitlens.explaining.independence import discovered
    except ImportError as error:
        raise MissingPackageError(
            "graphs of attention need causal-learn: pip install 'orbitlens[explain]'"
        ) from error
    return discovered(correlation, samples, alpha, latents=learner is Learner.FCI)
