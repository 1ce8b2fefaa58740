"""The leading eigenvalue of a value map: is it real, alone, and ahead of the others by how much?

Enters: a matrix M that acts on columns. Leaves: a `Leading` with the left eigenvector w, the right
one on the section w . z = 1, and what is left of M on w's complement; and metrics in which that
remainder falls behind (certificates N1c and N2, docs/certificates.md).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from orbitlens.theory.eigenpairs import (
    Eigenpair,
    Matrix,
    Metric,
    Vector,
    certain_eigenpairs,
    complete_basis,
    decay_metric,
    rounding,
    shrink_metric,
)


@dataclass(frozen=True, kw_only=True)
class Lag:
    """How the remainder falls behind: at `rate` (of time) or by `factor` (of size), in a metric."""

    rate: float
    factor: float
    metric: Metric


@dataclass(frozen=True, kw_only=True)
class Leading:
    """The largest real eigenvalue, simple, and M on the complement of its left eigenvector w."""

    pair: Eigenpair
    across: Matrix  # d x (d - 1): an orthonormal basis of w's complement, which M maps into itself
    rest: Matrix  # M in that basis
    section: Vector  # z with M z = value z and w . z = 1
    error: float  # of `rest` and of the value, as the exact w may differ from the computed one

    @classmethod
    def of(cls, matrix: Matrix, scale: float) -> "Leading | None":
        """Return it, or None where there is none that can be told from its neighbours.

        That it leads is for `in_time` and `in_size` to say.
        """
        pair = next(certain_eigenpairs(matrix, scale, real=True), None)
        if pair is None or not pair.is_simple:
            return None
        w = pair.vector.real
        across = complete_basis(w)[:, 1:]
        rest = across.T @ matrix @ across
        gap = pair.value.real * np.eye(len(rest)) - rest
        section = w + across @ np.linalg.solve(gap, across.T @ (matrix @ w))
        size = float(np.linalg.norm(matrix, 2))
        error = 4 * pair.radius * size + pair.error + rounding(matrix, scale)
        return cls(pair=pair, across=across, rest=rest, section=section, error=error)

    @property
    def value(self) -> float:
        """The eigenvalue."""
        return self.pair.value.real

    @property
    def left(self) -> Vector:
        """w, of length 1."""
        return self.pair.vector.real

    @cached_property
    def others(self) -> NDArray[np.complex128]:
        """The other eigenvalues, as computed."""
        return np.linalg.eigvals(self.rest).astype(np.complex128)

    @cached_property
    def in_time(self) -> Lag | None:
        """Half the gap in real parts, with a metric in which e^(Nt) falls behind e^(value t) by it.

        None unless every other eigenvalue has a smaller real part, whatever rounding did.
        """
        real = self.others.real
        rate = (self.value - float(real.max())) / 2 if len(real) else 1.0
        if rate <= 0:
            return None
        shifted = self.rest - (self.value - rate) * np.eye(len(self.rest))
        metric = decay_metric(shifted, 2 * self.error)
        return None if metric is None else Lag(rate=rate, factor=1.0, metric=metric)

    @cached_property
    def in_size(self) -> Lag | None:
        """A factor below 1 by which N shrinks, against the value, whatever it acts on, in a metric.

        None unless the value is positive and every other eigenvalue smaller in modulus.
        """
        sizes = np.abs(self.others)
        largest = float(sizes.max()) if len(sizes) else 0.0
        if self.value <= 2 * self.error or largest >= self.value:
            return None
        factor = (1 + largest / self.value) / 2
        bound = factor * self.value
        metric = shrink_metric(self.rest / bound, 2 * self.error / bound)
        rate = self.value * (1 - factor)
        return None if metric is None else Lag(rate=rate, factor=factor, metric=metric)


def compressed(w_v: Matrix, w_o: Matrix) -> tuple[Matrix, Matrix]:
    """Return the map V = (w_v w_o)^T on the span of what it reads and writes, and a basis of that.

    Where the span is not all, a last coordinate stands for the rest, which V maps to 0.
    """
    d, width = w_v.shape
    if 2 * width >= d:
        return (w_v @ w_o).T, np.eye(d)
    basis = np.linalg.qr(np.concatenate([w_v, w_o.T], axis=1))[0]
    small = ((basis.T @ w_v) @ (w_o @ basis)).T
    return np.pad(small, (0, 1)), basis


def in_basis(tokens: Matrix, basis: Matrix) -> Matrix:
    """Return tokens in a basis of `compressed`; what lies outside counts by its length."""
    inside = tokens @ basis
    if basis.shape[0] == basis.shape[1]:
        return inside
    outside = np.linalg.norm(tokens - inside @ basis.T, axis=1, keepdims=True)
    return np.concatenate([inside, outside], axis=1)
