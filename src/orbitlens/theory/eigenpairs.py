"""Eigenvalues that are certain: each with a radius that neither rounding nor conditioning leaves.

Enters: a matrix and the size of what it was computed from. Leaves: an `Eigenpair` of its transpose
(Stewart and Sun, Matrix Perturbation Theory, theorem V.2.8), or a metric in which what is left of
the matrix contracts (Lyapunov's and Stein's equations); None where neither can be told. An
eigenvalue of a Jordan block has no radius, and so no certificate hangs on it.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_continuous_lyapunov, solve_discrete_lyapunov

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
EPS = float(np.finfo(np.float64).eps)
CONTRACTS = 0.5  # of the -I that the equations put on the right: what must be left of it


@dataclass(frozen=True, kw_only=True)
class Eigenpair:
    """An eigenvalue z of M with its left eigenvector w, M^T w = z w, |w| = 1.

    An exact one lies within: |z' - z| <= error, |w' - w| <= radius with (w' - w) orthogonal to w.
    """

    value: complex
    vector: NDArray[np.complex128]
    error: float
    radius: float
    is_simple: bool = True

    @property
    def is_real(self) -> bool:
        """Whether the exact eigenvalue is real: a real pair's radius holds a real solution."""
        return self.value.imag == 0


def rounding(matrix: Matrix, scale: float) -> float:
    """Return what computing with a matrix may have cost, `scale` being what it was summed from."""
    return 10 * len(matrix) * EPS * max(scale, float(np.linalg.norm(matrix)))


def exact_product(first: Matrix, second: Matrix) -> Matrix | None:
    """Return a product that no rounding touches, one factor being I; None for any other.

    >>> exact_product(np.eye(1), np.ones((1, 1)) / 3), exact_product(2 * np.eye(1), np.eye(1))
    (array([[0.33333333]]), array([[2.]]))
    """
    if scalar_of(first) == 1.0:
        return second
    return first if scalar_of(second) == 1.0 else None


def scalar_of(matrix: Matrix | None) -> float | None:
    """Return v where a matrix is v I to the last bit.

    >>> scalar_of(3 * np.eye(2)), scalar_of(np.ones((2, 2)))
    (3.0, None)
    """
    if matrix is None or matrix.shape[0] != matrix.shape[1]:
        return None
    v = float(matrix[0, 0])
    return v if bool((matrix == v * np.eye(len(matrix))).all()) else None


def certain_eigenpairs(matrix: Matrix, scale: float, *, real: bool = False) -> Iterator[Eigenpair]:
    """Yield the eigenpairs of M^T that are certain, by falling real part; `real`: only real ones.

    With w of length 1 completed to an orthonormal basis, M^T is [[z, h], [g, B]] in it. If
    4 |g| |h| < s^2, where s = smallest singular value of B - z, an exact eigenvector lies within
    2 |g| / s of w, and it is the only one there. `scale` is the size of what M was summed from, 0
    where rounding had no part in it: then a vector with M^T w = z w to the last bit is one too.
    """
    if not np.isfinite(matrix).all() or not np.isfinite(scale):
        return
    values, vectors = (array.astype(np.complex128) for array in np.linalg.eig(matrix.T))
    for k in np.argsort(-values.real, kind="stable"):
        if real and values[k].imag != 0:
            continue
        pair = _certain(matrix.T, values[k], vectors[:, k], rounding(matrix, scale))
        if pair is None and scale == 0 and values[k].imag == 0:
            pair = _exact(matrix.T, values[k].real, vectors[:, k].real)
        if pair is not None:
            yield pair


def _exact(transpose: Matrix, value: float, vector: Vector) -> Eigenpair | None:
    image = transpose.astype(np.longdouble) @ vector.astype(np.longdouble)
    if not bool((image == value * vector.astype(np.longdouble)).all()):
        return None
    unit = vector / np.linalg.norm(vector)
    return Eigenpair(
        value=complex(value),
        vector=unit.astype(np.complex128),
        error=0.0,
        radius=4 * EPS,
        is_simple=False,
    )


def _certain(
    transpose: Matrix, value: np.complex128, vector: NDArray[np.complex128], lost: float
) -> Eigenpair | None:
    real = value.imag == 0
    w = vector.real if real else vector
    basis = complete_basis(w)
    turned = basis.conj().T @ transpose @ basis
    z, h, g, rest = turned[0, 0], turned[0, 1:], turned[1:, 0], turned[1:, 1:]
    off, coupling = float(np.linalg.norm(g)) + lost, float(np.linalg.norm(h)) + lost
    apart = _smallest_singular(rest - z * np.eye(len(rest))) - lost
    if apart <= 0 or 4 * off * coupling >= apart**2:
        return None
    radius = 2 * off / apart
    return Eigenpair(
        value=complex(z.real if real else z),
        vector=basis[:, 0].astype(np.complex128),
        error=coupling * radius + lost,
        radius=radius + 10 * len(w) * EPS,
    )


def complete_basis(vector: NDArray[Any]) -> NDArray[Any]:
    """Return a unitary matrix whose first column is along `vector`."""
    return np.linalg.qr(vector[:, None], mode="complete")[0]


def _smallest_singular(matrix: NDArray[np.complex128] | Matrix) -> float:
    """Return a lower bound of the smallest singular value: 1 / |inverse|_F; 0 if singular."""
    if len(matrix) == 0:
        return float("inf")
    try:
        with np.errstate(over="ignore"):  # an infinite inverse is that of a singular matrix
            size = float(np.linalg.norm(np.linalg.inv(matrix)))
    except np.linalg.LinAlgError:
        return 0.0
    return 1 / size if 0 < size < float("inf") else 0.0


@dataclass(frozen=True, kw_only=True)
class Growth:
    """What is certain of the spectral abscissa of a value map, or of a sum of value maps."""

    abscissa: float | None  # as computed; None where only a bound is known
    at_least: float  # the abscissa is no smaller, whatever rounding did; positive or 0
    decays: bool  # whether it is negative, whatever rounding did

    @classmethod
    def of(cls, matrix: Matrix, scale: float, *, kernel: bool = False) -> "Growth":
        """Read it off a matrix; a `kernel` adds eigenvalues 0 to those of the matrix."""
        lost = rounding(matrix, scale)
        if not np.isfinite(lost):
            return cls(abscissa=None, at_least=0.0, decays=False)
        largest = float(np.linalg.eigvals(matrix).real.max())
        bounds = [0.0, float(np.trace(matrix)) / len(matrix) - lost]
        if largest > lost:
            leading = next(certain_eigenpairs(matrix, scale), None)
            bounds += [] if leading is None else [leading.value.real - leading.error]
        decays = not kernel and largest < 0 and decay_metric(matrix, lost) is not None
        abscissa = max(largest, 0.0) if kernel else largest
        return cls(abscissa=abscissa, at_least=max(bounds), decays=decays)


# --- contraction -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A positive definite P, its smallest and its largest eigenvalue."""

    matrix: Matrix
    smallest: float
    largest: float

    def norms(self, rows: Matrix) -> Vector:
        """Return the length of each row in this metric."""
        squares = np.einsum("ia,ab,ib->i", rows, self.matrix, rows)
        return np.sqrt(np.maximum(squares, 0.0))


def decay_metric(matrix: Matrix, error: float) -> Metric | None:
    """Return P with N^T P + P N < 0 for every N within `error` of the matrix, or None."""
    if len(matrix) == 0:
        return Metric(matrix=np.zeros((0, 0)), smallest=1.0, largest=1.0)
    if np.linalg.eigvals(matrix).real.max() >= 0:
        return None
    p = _solution(solve_continuous_lyapunov, matrix, -1.0)
    return _checked(p, lambda q: matrix.T @ q + q @ matrix, 2 * error, float(_two_norm(matrix)))


def shrink_metric(matrix: Matrix, error: float) -> Metric | None:
    """Return P with N^T P N < P for every N within `error` of the matrix, or None."""
    if len(matrix) == 0:
        return Metric(matrix=np.zeros((0, 0)), smallest=1.0, largest=1.0)
    size = float(_two_norm(matrix))
    if max(abs(np.linalg.eigvals(matrix))) >= 1:
        return None
    p = _solution(solve_discrete_lyapunov, matrix, 1.0)
    return _checked(p, lambda q: matrix.T @ q @ matrix - q, error * (2 * size + error), size**2 + 1)


def _solution(
    solve: Callable[[Matrix, Matrix], Matrix], matrix: Matrix, sign: float
) -> Matrix | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # near singular: the residual will tell
            return np.asarray(solve(matrix.T, sign * np.eye(len(matrix))))
    except np.linalg.LinAlgError:
        return None


def _checked(
    p: Matrix | None, image: Callable[[Matrix], Matrix], error: float, size: float
) -> Metric | None:
    """Check a solution of image(P) = -I: its own residual decides, not the solver."""
    if p is None or not np.isfinite(p).all():
        return None
    p = (p + p.T) / 2
    eigenvalues = np.linalg.eigvalsh(p)
    largest = float(np.abs(eigenvalues).max())
    lost = (error + 20 * len(p) * EPS * size) * largest
    if float(_two_norm(image(p) + np.eye(len(p)))) + lost > CONTRACTS:
        return None
    smallest = float(eigenvalues[0]) - 10 * len(p) * EPS * largest
    return Metric(matrix=p, smallest=smallest, largest=largest) if smallest > 0 else None


def _two_norm(matrix: Matrix) -> np.floating:
    return np.linalg.norm(matrix, 2)
