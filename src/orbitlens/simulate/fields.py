"""Vector fields: the right-hand side of the flow, for every mask, encoding and geometry.

Enters: a `System` and the number of tokens. Leaves: a function x -> dx/dt on (tokens, d_model).
Attention goes through `scaled_dot_product_attention` on low-rank queries, keys and values: no d x d
map and, but for windows, nothing of size tokens x tokens is formed.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from orbitlens._types import Tokens
from orbitlens.errors import InputError
from orbitlens.rotary import Rotation, resolve_rotary, rotate
from orbitlens.simulate.system import Geometry, Mask, System

Field = Callable[[Tokens], Tokens]
LARGEST_LOGIT = 1e280  # beyond, attention is a choice of the largest score, and floats overflow


class AttentionField:
    """The attention part of the flow, A(x), with everything that is constant worked out once."""

    def __init__(self, system: System, n_tokens: int) -> None:
        """Prepare the field for `n_tokens` tokens."""
        self.system = system
        self.n_tokens = n_tokens
        h, d, r = system.w_q.shape
        self._in = torch.cat(
            [w.permute(1, 0, 2).reshape(d, h * r) for w in (system.w_q, system.w_k, system.w_v)],
            dim=1,
        )
        self._out = system.w_o.reshape(h * r, d)
        self._rotation: Rotation | None = None
        if system.rotary is not None:
            self._rotation = resolve_rotary(system.rotary, n_tokens)
        self._bias_keys = self._alibi_keys()
        self._window = self._window_mask()
        self._positions = checked_positions(system, n_tokens) if system.reinjected else None

    def __call__(self, x: Tokens, log_scale: float = 0.0) -> Tokens:
        """Return A at exp(log_scale) x, divided by exp(log_scale): what a scaled chart needs.

        Without biases A(e^s u) / e^s is attention of u at scores e^(2s) times larger.
        """
        system = self.system
        if self._positions is not None:
            x = x + self._positions * math.exp(-log_scale)
        if system.geometry.normalises_input:  # re-injected positions included, as in a network
            x = x / lengths(x)
        q, k, v = self._projected(x, log_scale)
        scale = min(system.beta * math.exp(min(2 * log_scale, 640.0)), LARGEST_LOGIT)
        mixed = self._attend(q, k, v, scale)
        out = mixed.transpose(0, 1).reshape(self.n_tokens, -1) @ self._out
        if system.drift is not None:
            out = out + system.drift * math.exp(-log_scale)
        return out

    def _projected(self, x: Tokens, log_scale: float) -> tuple[Tensor, Tensor, Tensor]:
        h, r = self.system.n_heads, self.system.d_head
        q, k, v = (x @ self._in).view(self.n_tokens, 3, h, r).permute(1, 2, 0, 3)
        shrink = math.exp(-log_scale)
        if self.system.b_q is not None:
            q = q + self.system.b_q[:, None, :] * shrink
        if self.system.b_k is not None:
            k = k + self.system.b_k[:, None, :] * shrink
        if self._rotation is not None:
            q, k = rotate(q, self._rotation), rotate(k, self._rotation)
        if self._bias_keys is not None:
            # slope * j as one more coordinate of the keys; what depends on i alone cancels.
            q = torch.cat([q, torch.full_like(q[..., :1], shrink)], dim=-1)
            k = torch.cat([k, self._bias_keys.to(k) * shrink], dim=-1)
        return q, k, v

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        if self.system.unnormalised:
            return self._unnormalised(q, k, v, scale)
        causal = self.system.mask is Mask.CAUSAL and self._window is None
        if v.shape[-1] < q.shape[-1]:  # ALiBi's extra coordinate; the kernel wants equal widths
            padded = F.pad(v, (0, q.shape[-1] - v.shape[-1]))
            mixed = F.scaled_dot_product_attention(
                q[None], k[None], padded[None], self._window, is_causal=causal, scale=scale
            )
            return mixed[0, ..., : v.shape[-1]]
        return F.scaled_dot_product_attention(
            q[None], k[None], v[None], self._window, is_causal=causal, scale=scale
        )[0]

    def _unnormalised(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Return sum_j exp(score_ij) v_j / n, in blocks of rows so that memory stays linear."""
        visible = visible_tokens(self.n_tokens, self.system.mask, self.system.window)
        blocks = []
        for rows in torch.arange(self.n_tokens).split(256):
            weights = torch.exp(scale * (q[:, rows] @ k.transpose(-1, -2)) - self._row_bias(rows))
            blocks.append((weights * visible[rows]) @ v / self.n_tokens)
        return torch.cat(blocks, dim=1)

    def _row_bias(self, rows: Tensor) -> Tensor:
        """Return beta slope i, the part of ALiBi that only a softmax cancels."""
        slopes = self.system.alibi_slopes
        if slopes is None:
            return torch.zeros(1, 1, 1, dtype=torch.float64)
        return self.system.beta * slopes[:, None, None] * rows[:, None]

    def _alibi_keys(self) -> Tensor | None:
        slopes = self.system.alibi_slopes
        if slopes is None:
            return None
        places = torch.arange(self.n_tokens, dtype=torch.float64)
        return (slopes[:, None] * places)[..., None]

    def _window_mask(self) -> Tensor | None:
        if self.system.window is None:
            return None
        return visible_tokens(self.n_tokens, self.system.mask, self.system.window)


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


def visible_tokens(n_tokens: int, mask: Mask, window: int | None) -> Bool[Tensor, "tokens tokens"]:
    """Return which tokens j each token i sees."""
    offsets = torch.arange(n_tokens)[:, None] - torch.arange(n_tokens)[None, :]
    visible = offsets >= 0 if mask is Mask.CAUSAL else torch.ones_like(offsets, dtype=torch.bool)
    return visible if window is None else visible & (offsets.abs() < window)


def make_field(system: System, n_tokens: int) -> Field:
    """Return the flow's right-hand side in its own geometry."""
    attention = AttentionField(system, n_tokens)
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
