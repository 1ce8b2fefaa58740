"""Vector fields: the right-hand side of the flow, for every mask, encoding and geometry.

Enters: a `System` and the number of tokens. Leaves: a function x -> dx/dt on (tokens, d_model).
Queries, keys and values are low-rank and mixed by `mixing.py`: no d x d map and nothing of size
tokens x tokens is formed.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens._types import Tokens
from orbitlens.errors import InputError
from orbitlens.flows.blocks import Array, Projection, project_rows
from orbitlens.flows.kernel import LARGEST_LOGIT
from orbitlens.flows.mixing import Mixing, Way
from orbitlens.flows.system import Geometry, System
from orbitlens.heads.rotary import Turning, resolve_rotary

LARGEST_SINGLE = 1e30  # the same in float32: scores beyond only choose the largest

Field = Callable[[Tokens], Tokens]


class AttentionField:
    """The attention part of the flow, A(x), with everything that is constant worked out once."""

    def __init__(
        self,
        system: System,
        n_tokens: int,
        *,
        compiled: bool = False,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        """Prepare the field for `n_tokens` tokens.

        `compiled` lets heads go to compiled code, which has no gradients; `dtype` is that of
        attention itself, whatever the tokens are.
        """
        self.system = system
        self.n_tokens = n_tokens
        self._dtype = dtype
        h, d, r = system.w_q.shape
        self._in = torch.cat(
            [w.permute(1, 0, 2).reshape(d, h * r) for w in (system.w_q, system.w_k, system.w_v)],
            dim=1,
        ).to(dtype)
        self._out = system.w_o.reshape(h * r, d).to(dtype)
        self._turn: Turning | None = None
        if system.rotary is not None:
            rotation = resolve_rotary(system.rotary, n_tokens)
            self._turn = Turning.of(rotation, n_tokens, r).to(self._in)
        self._mix = Mixing.of(system, n_tokens, compiled=compiled)
        self._rows = self._in_rows() if self._mix.way is Way.BLOCKS else None
        self._positions = checked_positions(system, n_tokens) if system.reinjected else None

    def __call__(self, x: Tokens, log_scale: float = 0.0) -> Tokens:
        """Return A at exp(log_scale) x, divided by exp(log_scale): what a scaled chart needs.

        Without biases A(e^s u) / e^s is attention of u at scores e^(2s) times larger.
        """
        with self._mix.alone():
            return self._evaluate(x, log_scale)

    def _evaluate(self, x: Tokens, log_scale: float) -> Tokens:
        system = self.system
        if self._positions is not None:
            x = x + self._positions * math.exp(-log_scale)
        if system.geometry.normalises_input:  # re-injected positions included, as in a network
            x = x / lengths(x)
        q, k, v = self._projected(x.to(self._dtype), log_scale)
        largest = LARGEST_LOGIT if self._dtype == torch.float64 else LARGEST_SINGLE
        scale = min(system.beta * math.exp(min(2 * log_scale, 640.0)), largest)
        mixed = self._mix(q, k, v, scale).transpose(0, 1)
        out = (mixed.reshape(self.n_tokens, -1) @ self._out).to(x.dtype)
        if system.drift is not None:
            out = out + system.drift * math.exp(-log_scale)
        return out

    def _projected(self, x: Tokens, log_scale: float) -> tuple[Tensor, Tensor, Tensor]:
        h, r = self.system.n_heads, self.system.d_head
        if self._rows is not None:
            out = self._mix.buffer("projected", (3, h, self.n_tokens, r), self._dtype)
            given, found = x.contiguous().numpy(), out.flatten(0, 1).numpy()
            how, shrink = self._rows, math.exp(-log_scale)
            self._mix.share(
                lambda _, begin, end: project_rows(given, how, shrink, begin, end, found)
            )
            return out[0], out[1], out[2]
        if self._mix.way is Way.LOOPS:  # tokens as columns, as the loops take them
            q, k, v = (self._in.mT @ x.mT).view(3, h, r, self.n_tokens).mT
        else:
            q, k, v = (x @ self._in).view(self.n_tokens, 3, h, r).permute(1, 2, 0, 3)
        shrink = math.exp(-log_scale)
        if self.system.b_q is not None:
            q = q + self.system.b_q[:, None, :].to(q) * shrink
        if self.system.b_k is not None:
            k = k + self.system.b_k[:, None, :].to(k) * shrink
        if self._turn is not None:
            q, k = self._turn(q), self._turn(k)
        return q, k, v

    def _in_rows(self) -> Projection:
        """Return what projects tokens, as compiled code takes it."""
        system, turn = self.system, self._turn
        h, _, r = system.w_q.shape
        biases = torch.empty(0, r)
        if system.b_q is not None or system.b_k is not None:
            given = (system.b_q, system.b_k)
            biases = torch.cat([torch.zeros(h, r) if b is None else b for b in given])

        def array(x: Tensor) -> Array:
            return x.to(self._dtype).contiguous().numpy()

        return Projection(
            weights=array(torch.cat([system.w_q, system.w_k, system.w_v])),
            biases=array(biases),
            cosine=array(torch.empty(0, r) if turn is None else turn.cosine),
            sine=array(torch.empty(0, r) if turn is None else turn.sine),
            partner=np.empty(0, np.int64) if turn is None else turn.partner.numpy(),
        )


def checked_positions(system: System, n_tokens: int) -> Tokens:
    """Return the absolute encodings, one row a token."""
    positions = system.positions
    if positions is None or tuple(positions.shape) != (n_tokens, system.d_model):
        found = None if positions is None else list(positions.shape)
        raise InputError(
            f"there are positions of shape {found} for {n_tokens} tokens of width "
            f"{system.d_model}; expected one row a token."
        )
    return positions


def make_field(
    system: System, n_tokens: int, *, compiled: bool = False, dtype: torch.dtype = torch.float64
) -> Field:
    """Return the flow's right-hand side in its own geometry; see `AttentionField`."""
    attention = AttentionField(system, n_tokens, compiled=compiled, dtype=dtype)
    geometry = system.geometry

    def field(x: Tokens) -> Tokens:
        out = attention(x)
        if geometry.normalises_output:
            out = out / lengths(out)
        return tangent(x, out) if geometry.on_sphere else out

    return field


def lengths(x: Tokens) -> Float[Tensor, "tokens 1"]:
    """Return the length of each token, kept away from zero."""
    return x.norm(dim=-1, keepdim=True).clamp(min=1e-300)


def tangent(x: Tokens, out: Tokens) -> Tokens:
    """Return the part of `out` that is orthogonal to each (unit) token: P_x = I - x x^T."""
    return out - (x * out).sum(dim=-1, keepdim=True) * x


def discrete_layer(system: System, x: Tokens, step: float) -> Tokens:
    """Return the tokens after one layer of size `step`, as an architecture would compute it.

    The reference that the geometries are tested against: at a small step it is the flow.
    """
    attention = AttentionField(system, x.shape[0])
    geometry = system.geometry
    out = attention(x)
    if geometry.normalises_output:
        out = out / lengths(out)
    if geometry is Geometry.NGPT:
        out = out - x
    moved = x + step * out
    return moved / lengths(moved) if geometry.on_sphere else moved
