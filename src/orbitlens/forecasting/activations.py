"""Kernels of activations: E[φ(a) φ(b)] for a, b normal with variance s² and correlation ρ.

Enters: an activation and s. Leaves: the kernel and that of its derivative as functions of ρ, by
Hermite coefficients: with a_k = E[φ(s z) He_k(z)] / √k!,

    E[φ(a) φ(b)] = Σ_k a_k² ρ^k,      s² E[φ'(a) φ'(b)] = Σ_k k a_k² ρ^(k-1).

(Poole et al., arXiv 1606.05340, use such maps of correlations for deep networks.) What the series
leaves out beyond its last term is known at ρ = 1, and put at the next power.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import erf

N_TERMS, N_NODES = 48, 160
NEGLIGIBLE = 1e-7  # of a mean square: what terms of a series may leave out
Array = np.ndarray


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + erf(x / np.sqrt(2)))


def _silu(x: Array) -> Array:
    return x / (1 + np.exp(-np.clip(x, -60, 60)))


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": _gelu,
    "swiglu": _silu,
    "geglu": _gelu,
}


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """The two kernels of an activation at one size of its input."""

    squares: tuple[float, ...]  # a_k²
    variance: float  # s²
    mean_square: float  # E[φ²]
    mean_square_slope: float  # E[φ'²]

    def of(self, correlation: Array) -> Array:
        """Return E[φ(a) φ(b)]."""
        powers = np.polynomial.polynomial.polyval(correlation, self.squares)
        left = max(0.0, self.mean_square - sum(self.squares))
        return powers + left * correlation ** len(self.squares)

    def slope_of(self, correlation: Array) -> Array:
        """Return E[φ'(a) φ'(b)]."""
        terms = [k * square / self.variance for k, square in enumerate(self.squares)][1:]
        left = max(0.0, self.mean_square_slope - sum(terms))
        powers = np.polynomial.polynomial.polyval(correlation, terms)
        return powers + left * correlation ** len(terms)


@cache
def kernel(activation: str, deviation: float) -> Kernel:
    """Return the kernels of an activation whose input has this standard deviation."""
    function = FUNCTIONS[activation]
    nodes, weights = np.polynomial.hermite_e.hermegauss(N_NODES)
    weights = weights / weights.sum()
    values = function(deviation * nodes)
    step = 1e-4 * max(deviation, 1e-3)
    slopes = (function(deviation * nodes + step) - function(deviation * nodes - step)) / (2 * step)
    mean_square = float((weights * values**2).sum())
    squares, before, now = [], np.zeros_like(nodes), np.ones_like(nodes)
    for k in range(N_TERMS):  # He_k / √k!, by its recursion
        squares.append(float((weights * values * now).sum() ** 2))
        if sum(squares) > (1 - NEGLIGIBLE) * mean_square:
            break
        before, now = now, (nodes * now - np.sqrt(k) * before) / np.sqrt(k + 1)
    return Kernel(
        squares=tuple(squares),
        variance=deviation**2,
        mean_square=mean_square,
        mean_square_slope=float((weights * slopes**2).sum()),
    )
