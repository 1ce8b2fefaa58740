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
from numpy.typing import NDArray

from orbitlens._types import Tokens
from orbitlens.flows.fields import AttentionField, lengths, make_field
from orbitlens.flows.system import System

Vector = NDArray[np.float64]


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

    def tolerances(self, rtol: float, y: Vector) -> tuple[float, float]:
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

    def tolerances(self, rtol: float, y: Vector) -> tuple[float, float]:
        """Measure errors against each coordinate, and against the cloud where that is small."""
        size = float(np.linalg.norm(y)) / math.sqrt(y.size)
        if size == 0:  # all at the origin: against how far a bias carries them in unit time
            size = float(np.linalg.norm(self.rate(0.0, y))) / math.sqrt(y.size)
        return rtol, rtol * max(size, 1e-300)


class ScaledChart:
    """Tokens as exp(s) u, for free flows that run away."""

    def __init__(self, system: System, n_tokens: int, dtype: torch.dtype = torch.float64) -> None:
        """Prepare the field for `n_tokens` tokens, with attention computed in `dtype`."""
        self.shape = (n_tokens, system.d_model)
        self.attention = AttentionField(system, n_tokens, compiled=True, dtype=dtype)

    def encode(self, tokens: Tokens, log_scale: float) -> Vector:
        """Return u and s of the tokens."""
        return self.tidy(np.append(tokens.numpy().ravel(), log_scale))

    def decode(self, y: Vector) -> tuple[Tokens, float]:
        """Return unit-size tokens and s."""
        return torch.from_numpy(y[:-1].reshape(self.shape).copy()), float(y[-1])

    def rate(self, t: float, y: Vector) -> Vector:
        """Return the flow of u and s."""
        u = torch.from_numpy(y[:-1].reshape(self.shape))
        a = self.attention(u, float(y[-1]))
        speed = (u * a).sum()
        return np.append((a - speed * u).numpy().ravel(), speed.item())

    def tidy(self, y: Vector) -> Vector:
        """Move the length of u into s."""
        size = float(np.linalg.norm(y[:-1]))
        return np.append(y[:-1] / size, y[-1] + math.log(size))

    def tolerances(self, rtol: float, y: Vector) -> tuple[float, float]:
        """Measure errors against the cloud: u has length 1."""
        return rtol, rtol / math.sqrt(y.size)


def logit_spread(system: System, tokens: Tokens, log_scale: float) -> float:
    """Return the logarithm of a bound on how far scores spread: beta max|q| max|k|."""
    h, d, r = system.w_q.shape
    longest = 1.0
    for w in (system.w_q, system.w_k):  # all heads in one product
        projected = tokens @ w.transpose(0, 1).reshape(d, h * r)
        longest *= projected.view(-1, h, r).norm(dim=-1).max().item()
    size = system.beta * longest
    return 2 * log_scale + math.log(size) if size > 0 else -math.inf
