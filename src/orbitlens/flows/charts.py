"""Charts: how a cloud of tokens is written as one vector that an integrator can carry.

Enters: a `System`. Leaves: charts with a right-hand side each. Raw tokens serve while they stay in
reach. Tokens that run away are written x = exp(s) u with |u| = 1 (all tokens together), where

    u' = a - <u, a> u,     s' = <u, a>,     a = A(e^s u) / e^s,

so that nothing overflows and errors are measured against the cloud's own size.
"""

import math
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from orbitlens._types import Tokens
from orbitlens.flows.fields import AttentionField, lengths, make_field
from orbitlens.flows.steps import Vector, root_mean_square
from orbitlens.flows.system import Geometry, System

RUNAWAY = math.log(1e6)  # growth of the largest token at which tokens have run away
LARGEST = math.log(1e100)  # of a raw token: products of larger ones overflow
BACK = math.log(1e2)  # that much below, the raw chart takes over again


@runtime_checkable
class Chart(Protocol):
    """One way to write tokens as a vector."""

    constrained: bool  # whether `tidy` changes anything

    def encode(self, tokens: Tokens, log_scale: float) -> Vector:
        """Return the vector of exp(log_scale) tokens."""
        ...

    def decode(self, y: Vector) -> tuple[Tokens, float]:
        """Return tokens and the logarithm of their scale."""
        ...

    def rate(self, y: Vector) -> Vector:
        """Return dy/dt."""
        ...

    def tidy(self, y: Vector) -> Vector:
        """Return `y` put back on the chart's constraint after a step."""
        ...

    def absolute(self, rtol: float, y: Vector, f: Vector) -> float:
        """Return an integrator's absolute tolerance at `y`, whose rate is `f`."""
        ...

    def log_size(self, y: Vector) -> float:
        """Return the logarithm of the largest token's length."""
        ...


class RawChart:
    """Tokens as they are; on the sphere they are brought back to length 1 after each step."""

    def __init__(self, system: System, n_tokens: int, dtype: torch.dtype = torch.float64) -> None:
        """Prepare the field for `n_tokens` tokens, with attention computed in `dtype`."""
        self.shape = (n_tokens, system.d_model)
        self.constrained = system.geometry.on_sphere
        self.field = make_field(system, n_tokens, compiled=True, dtype=dtype)

    def encode(self, tokens: Tokens, log_scale: float) -> Vector:
        """Return the tokens as a vector."""
        return to_vector(tokens, log_scale, scaled=False)

    def decode(self, y: Vector) -> tuple[Tokens, float]:
        """Return the tokens; their scale is 1."""
        return to_tokens(y, self.shape[0], scaled=False)

    def rate(self, y: Vector) -> Vector:
        """Return the flow."""
        x = torch.from_numpy(y.reshape(self.shape))
        return self.field(x).numpy().ravel()

    def tidy(self, y: Vector) -> Vector:
        """Bring tokens back to the sphere, where that is where they live."""
        if not self.constrained:
            return y
        x = torch.from_numpy(y.reshape(self.shape))
        return (x / lengths(x)).numpy().ravel()

    def absolute(self, rtol: float, y: Vector, f: Vector) -> float:
        """Measure errors against the cloud; at the origin, against how far a drift carries it."""
        return rtol * max(root_mean_square(y) or root_mean_square(f), 1e-300)

    def log_size(self, y: Vector) -> float:
        """Return the logarithm of the largest token's length."""
        return log_size(torch.from_numpy(y.reshape(self.shape)), 0.0)


class ScaledChart:
    """Tokens as exp(s) u, for free flows that run away."""

    constrained = True

    def __init__(self, system: System, n_tokens: int, dtype: torch.dtype = torch.float64) -> None:
        """Prepare the field for `n_tokens` tokens, with attention computed in `dtype`."""
        self.shape = (n_tokens, system.d_model)
        self.attention = AttentionField(system, n_tokens, compiled=True, dtype=dtype)

    def encode(self, tokens: Tokens, log_scale: float) -> Vector:
        """Return u and s of the tokens."""
        return to_vector(tokens, log_scale, scaled=True)

    def decode(self, y: Vector) -> tuple[Tokens, float]:
        """Return unit-size tokens and s."""
        return to_tokens(y, self.shape[0], scaled=True)

    def rate(self, y: Vector) -> Vector:
        """Return the flow of u and s."""
        u = torch.from_numpy(y[:-1].reshape(self.shape))
        a = self.attention(u, float(y[-1]))
        speed = (u * a).sum()
        return np.append((a - speed * u).numpy().ravel(), speed.item())

    def tidy(self, y: Vector) -> Vector:
        """Move the length of u into s."""
        return _unit(y)

    def absolute(self, rtol: float, y: Vector, f: Vector) -> float:
        """Measure errors against the cloud: u has length 1."""
        return rtol / math.sqrt(y.size)

    def log_size(self, y: Vector) -> float:
        """Return the logarithm of the largest token's length."""
        return log_size(*self.decode(y))


def to_vector(tokens: Tokens, log_scale: float, *, scaled: bool) -> Vector:
    """Return exp(log_scale) tokens as a vector of one of the charts."""
    if scaled:
        return _unit(np.append(tokens.numpy().ravel(), log_scale))
    return (tokens * math.exp(log_scale)).numpy().ravel().copy()


def to_tokens(y: Vector, n_tokens: int, *, scaled: bool) -> tuple[Tokens, float]:
    """Return the tokens of a vector, and the logarithm of their scale."""
    x, log_scale = (y[:-1], float(y[-1])) if scaled else (y, 0.0)
    return torch.from_numpy(x.reshape(n_tokens, -1).copy()), log_scale


def _unit(y: Vector) -> Vector:
    size = root_mean_square(y[:-1]) * math.sqrt(y.size - 1)
    return np.append(y[:-1] / size, y[-1] + math.log(size))


def log_size(tokens: Tokens, log_scale: float) -> float:
    """Return the logarithm of the length of the largest of exp(log_scale) tokens."""
    x = tokens.numpy()  # on few tokens NumPy is done before torch has begun
    top = float(np.abs(x).max())
    if 1e-300 < top < math.inf:
        top *= math.sqrt(float(np.square(x / top).sum(axis=-1).max()))
    return math.log(max(top, 1e-300)) + log_scale


def has_scaled_chart(system: System) -> bool:
    """Say whether a flow can be written in the scaled chart.

    Other geometries stay bounded or grow slowly; weights that are not normalised are exponentials
    of scores, which no scale divides.
    """
    return system.geometry is Geometry.FREE and not system.unnormalised


def largest_raw(start: Tokens) -> float:
    """Return the logarithm of the size beyond which tokens that began at `start` have run away."""
    return min(max(log_size(start, 0.0), 0.0) + RUNAWAY, LARGEST)
