"""Vector fields: the right-hand side of the flow, for every mask, encoding and geometry.

Enters: a `System` and the number of tokens. Leaves: a function x -> dx/dt on (tokens, d_model).
Queries, keys and values are low-rank, and mixed by torch or, where that pays, by compiled code: no
d x d map and nothing of size tokens x tokens is formed.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens._types import Tokens
from orbitlens.errors import InputError
from orbitlens.flows._fast import fast_path
from orbitlens.flows.mixing import Mixing
from orbitlens.flows.system import Geometry, System
from orbitlens.heads.rotary import Turning, resolve_rotary
from orbitlens.running.products import product
from orbitlens.running.threads import torch_threads

# Of a score: beyond, attention is a choice of the largest, and floats overflow.
LARGEST_LOGIT = {torch.float64: 1e280, torch.float32: 1e30}

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
        self.w_in = torch.cat(
            [w.permute(1, 0, 2).reshape(d, h * r) for w in (system.w_q, system.w_k, system.w_v)],
            dim=1,
        ).to(dtype)
        self.w_out = system.w_o.reshape(h * r, d).to(dtype)
        self.turn: Turning | None = None
        if system.rotary is not None:
            rotation = resolve_rotary(system.rotary, n_tokens)
            self.turn = Turning.of(rotation, n_tokens, r).to(self.w_in)
        fast = fast_path(system, n_tokens).mix if compiled else None
        self._mix = fast or Mixing.of(system, n_tokens)
        by_rows = fast is not None and fast.takes_rows(r, dtype)
        self._by_rows = fast.mix_rows if fast is not None and by_rows else None
        # Torch's threads spin on after a product, on the cores that compiled code is to run on;
        # of few wide tokens, products with weights are most of the work and keep their threads.
        self._n_threads = None if fast is None or n_tokens < d else 1
        self._positions = checked_positions(system, n_tokens) if system.reinjected else None

    def __call__(self, x: Tokens, log_scale: float = 0.0) -> Tokens:
        """Return A at exp(log_scale) x, divided by exp(log_scale): what a scaled chart needs.

        Without biases A(e^s u) / e^s is attention of u at scores e^(2s) times larger.
        """
        with self.threads():
            return self._evaluate(x, log_scale)

    def threads(self) -> AbstractContextManager[None]:
        """Leave the cores to compiled code, where that is what takes time."""
        return nullcontext() if self._n_threads is None else torch_threads(self._n_threads)

    def _evaluate(self, x: Tokens, log_scale: float) -> Tokens:
        shrink = math.exp(min(-log_scale, 700.0))
        growth = math.exp(min(2 * log_scale, 640.0))
        scale = min(self.system.beta * growth, LARGEST_LOGIT[self._dtype])
        seen = self.seen(x, shrink)
        return self.output(self._mixed(seen.to(self._dtype), shrink, scale), shrink).to(x.dtype)

    def seen(self, x: Tokens, shrink: float = 1.0) -> Tokens:
        """Return what attention sees of the tokens; `shrink` is what a scaled chart needs."""
        if self._positions is not None:
            x = x + self._positions * shrink
        if self.system.geometry.normalises_input:  # re-injected positions included, as in a network
            x = x / lengths(x)
        return x

    def rows(self, seen: Tokens, shrink: float = 1.0) -> Float[Tensor, "tokens qkv"]:
        """Return queries of all heads, then keys, then values, side by side and not yet turned."""
        rows = product(seen, self.w_in)
        for m, bias in enumerate((self.system.b_q, self.system.b_k)):
            if bias is not None:
                flat = bias.reshape(-1).to(rows)
                rows[:, m * len(flat) : (m + 1) * len(flat)] += flat * shrink
        return rows

    def output(self, means: Float[Tensor, "tokens mixed"], shrink: float = 1.0) -> Tokens:
        """Return what attention adds to the tokens, from the means of all heads' values."""
        out = product(means, self.w_out)
        return out if self.system.drift is None else out + self.system.drift * shrink

    def _mixed(self, x: Tokens, shrink: float, scale: float) -> Float[Tensor, "tokens mixed"]:
        """Return the means of all heads' values, side by side."""
        if self._by_rows is None:
            q, k, v = self._projected(x, shrink)
            return self._mix(q, k, v, scale).transpose(0, 1).reshape(self.n_tokens, -1)
        return self._by_rows(self.rows(x, shrink), scale, self.turn)

    def _projected(self, x: Tokens, shrink: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, heads x tokens x d_head; their memory runs by tokens."""
        h, r = self.system.n_heads, self.system.d_head
        q, k, v = (self.w_in.mT @ x.mT).view(3, h, r, self.n_tokens).mT
        if self.system.b_q is not None:
            q = q + self.system.b_q[:, None, :].to(q) * shrink
        if self.system.b_k is not None:
            k = k + self.system.b_k[:, None, :].to(k) * shrink
        if self.turn is not None:
            q, k = self.turn(q), self.turn(k)
        return q, k, v


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
    """Return the length of each token, kept away from zero; its square may be out of range."""
    top = x.detach().abs().amax(dim=-1, keepdim=True).clamp(min=1e-300, max=1e300)
    return ((x / top).norm(dim=-1, keepdim=True) * top).clamp(min=1e-300)


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
