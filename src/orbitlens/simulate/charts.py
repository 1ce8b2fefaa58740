"""Charts: how a cloud of tokens is written as one vector that an integrator can carry.

Enters: a `System`. Leaves: charts with a right-hand side each. Raw tokens serve while they stay in
reach. Tokens that run away are written x_i = exp(s_i) u_i with |u_i| = 1, where

    u_i' = a_i - <u_i, a_i> u_i,     s_i' = <u_i, a_i>,     a_i = A_i / e^(s_i),

so that nothing overflows, and each token's errors are measured against its own size: tokens that
grow more slowly than the others stay exact (LOG.md has the comparison with one scale for all).
"""

import math
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from orbitlens._types import Tokens
from orbitlens.simulate import kernel
from orbitlens.simulate.fields import AttentionField, lengths, make_field
from orbitlens.simulate.system import System

Vector = NDArray[np.float64]
Tolerance = float | Vector
LEAST_RTOL = 1e-13  # none at all would be refused


@runtime_checkable
class Chart(Protocol):
    """One way to write tokens as a vector."""

    def encode(self, tokens: Tokens, log_scale: float) -> Vector:
        """Return the vector of exp(log_scale) tokens."""
        ...

    def decode(self, y: Vector) -> tuple[Tokens, float]:
        """Return tokens and the logarithm of their scale."""
        ...

    def rate(self, t: float, y: Vector) -> Vector:
        """Return dy/dt."""
        ...

    def tidy(self, y: Vector) -> Vector:
        """Return `y` put back on the chart's constraint after a step."""
        ...

    def tolerances(self, rtol: float, y: Vector) -> tuple[Tolerance, Tolerance]:
        """Return the relative and the absolute tolerance of an integrator."""
        ...


class RawChart:
    """Tokens as they are; on the sphere they are brought back to length 1 after each step."""

    def __init__(self, system: System, n_tokens: int, dtype: torch.dtype = torch.float64) -> None:
        """Prepare the field for `n_tokens` tokens, with attention computed in `dtype`."""
        self.shape = (n_tokens, system.d_model)
        self.on_sphere = system.geometry.on_sphere
        self.field = make_field(system, n_tokens, compiled=True, dtype=dtype)

    def encode(self, tokens: Tokens, log_scale: float) -> Vector:
        """Return the tokens as a vector."""
        return (tokens * math.exp(log_scale)).numpy().ravel().copy()

    def decode(self, y: Vector) -> tuple[Tokens, float]:
        """Return the tokens; their scale is 1."""
        return torch.from_numpy(y.reshape(self.shape).copy()), 0.0

    def rate(self, t: float, y: Vector) -> Vector:
        """Return the flow."""
        x = torch.from_numpy(y.reshape(self.shape))
        return self.field(x).numpy().ravel()

    def tidy(self, y: Vector) -> Vector:
        """Bring tokens back to the sphere, where that is where they live."""
        if not self.on_sphere:
            return y
        x = torch.from_numpy(y.reshape(self.shape))
        return (x / lengths(x)).numpy().ravel()

    def tolerances(self, rtol: float, y: Vector) -> tuple[Tolerance, Tolerance]:
        """Measure errors against each coordinate, and against the cloud where that is small."""
        size = float(np.linalg.norm(y)) / math.sqrt(y.size)
        if size == 0:  # all at the origin: against how far a bias carries them in unit time
            size = float(np.linalg.norm(self.rate(0.0, y))) / math.sqrt(y.size)
        return rtol, rtol * max(size, 1e-300)


class ScaledChart:
    """Tokens as exp(s_i) u_i, for free flows that run away."""

    def __init__(self, system: System, n_tokens: int, dtype: torch.dtype = torch.float64) -> None:
        """Prepare the field for `n_tokens` tokens, with attention computed in `dtype`."""
        self.shape = (n_tokens, system.d_model)
        self.attention = AttentionField(system, n_tokens, compiled=True, dtype=dtype)

    def encode(self, tokens: Tokens, log_scale: float) -> Vector:
        """Return u and s of the tokens."""
        return to_scaled(tokens.numpy().ravel(), log_scale, self.shape[0])

    def decode(self, y: Vector) -> tuple[Tokens, float]:
        """Return the tokens divided by the size of their cloud, and its logarithm."""
        return unscaled(y, self.shape[0])

    def rate(self, t: float, y: Vector) -> Vector:
        """Return the flow of u and s."""
        u, logs = _split(y, self.shape[0])
        top = logs.max()
        sizes = np.exp(np.maximum(logs - top, kernel.FAINTEST))[:, None]
        a = self.attention(torch.from_numpy(sizes * u), float(top)).numpy() / sizes
        speed = (u * a).sum(axis=1)
        return np.append(a - speed[:, None] * u, speed)

    def tidy(self, y: Vector) -> Vector:
        """Move the lengths of u into s."""
        u, logs = _split(y, self.shape[0])
        return _joined(u, logs)

    def tolerances(self, rtol: float, y: Vector) -> tuple[Tolerance, Tolerance]:
        """Measure errors against each token: u_i has length 1, and s_i is a logarithm."""
        n, d = self.shape
        relative = np.repeat([rtol, LEAST_RTOL], [n * d, n])
        absolute = np.repeat([rtol / math.sqrt(d), rtol], [n * d, n])
        return relative, absolute


def _split(y: Vector, n_tokens: int) -> tuple[Vector, Vector]:
    return y[:-n_tokens].reshape(n_tokens, -1), y[-n_tokens:]


def _joined(tokens: Vector, logs: Vector) -> Vector:
    """Return u and s of exp(logs) tokens, with the lengths of all tokens in s."""
    largest = np.abs(tokens).max(axis=1)
    moves = largest > 0
    # Divided by its largest coordinate first, since squares of faint tokens would be 0.
    lengths = largest * np.linalg.norm(tokens / np.where(moves, largest, 1.0)[:, None], axis=1)
    logs = np.where(moves, logs + np.log(np.where(moves, lengths, 1.0)), -np.inf)
    top = logs.max()
    # A token at the origin has no size of its own: it takes the largest.
    floored = np.where(moves, np.maximum(logs, top + kernel.FAINTEST), top)
    shrink = np.where(moves, np.exp(np.maximum(logs, -1e300) - floored), 0.0)
    units = tokens / np.where(moves, lengths, 1.0)[:, None]
    return np.append(units * shrink[:, None], floored)


def to_scaled(y: Vector, log_scale: float, n_tokens: int) -> Vector:
    """Return the scaled chart's vector of exp(log_scale) times the tokens in `y`."""
    return _joined(y.reshape(n_tokens, -1), np.full(n_tokens, log_scale))


def unscaled(y: Vector, n_tokens: int) -> tuple[Tokens, float]:
    """Return tokens whose cloud has size 1, and the logarithm of the size it has."""
    u, logs = _split(y, n_tokens)
    top = logs.max()
    tokens = np.exp(logs - top)[:, None] * u
    size = float(np.linalg.norm(tokens))
    return torch.from_numpy(tokens / size), float(top) + math.log(size)


def logit_spread(system: System, tokens: Tokens, log_scale: float) -> float:
    """Return the logarithm of a bound on how far scores spread: beta max|q| max|k|."""
    q = (tokens @ system.w_q).norm(dim=-1).max()
    k = (tokens @ system.w_k).norm(dim=-1).max()
    size = (system.beta * q * k).item()
    return 2 * log_scale + math.log(size) if size > 0 else -math.inf
