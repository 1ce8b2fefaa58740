"""All heads of a layer at once: their factors in one batch, in float32, for readings in passing.

Enters: an `AttentionLayer`. Leaves: `LayerFactors`, the same numbers as `Head` has, with the axis
of heads in front, so that one product serves a layer. Memory is that of the layer's attention.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.families.architecture import NormKind, QKNormScope
from orbitlens.heads.head import Head, normalised
from orbitlens.heads.latent import SHORTEST
from orbitlens.heads.layers import AttentionLayer
from orbitlens.heads.rotary import resolve_rotary, rotation_matrix

InWeights = Float[Tensor, "head d_model d_head"]
OutWeights = Float[Tensor, "head d_head d_model"]
HeadRows = Float[Tensor, "head d_head"]
Sample = Float[Tensor, "sample d_model"]
SampleRows = Float[Tensor, "head sample d_head"]


@dataclass(frozen=True, kw_only=True)
class LayerFactors:
    """The factors of every head of a layer, gains folded in; keys and values once a query head."""

    layer: AttentionLayer
    w_q: InWeights
    w_k: InWeights
    w_v: InWeights
    w_o: OutWeights  # the gain of a norm on the output included
    b_q: HeadRows
    b_k: HeadRows
    left: InWeights  # W = left right^T, at typical lengths where queries and keys are normalised
    right: InWeights
    shift: HeadRows  # c = right shift, the part of a score that depends on the key alone

    def queries(self, tokens: Sample) -> SampleRows:
        """Return queries of tokens as heads see them, without positions, the scale included."""
        return self._through_norm(tokens @ self.w_q + self.b_q[:, None], "q") * self.scale

    def keys(self, tokens: Sample) -> SampleRows:
        """Return keys of tokens as heads see them, without positions."""
        return self._through_norm(tokens @ self.w_k + self.b_k[:, None], "k")

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return self.layer.spec.scale

    def gains(self, role: str) -> HeadRows | None:
        """Return the gains of the norm of queries ("q") or keys ("k"), a row a query head."""
        rows = getattr(self.layer, f"{role}_gains")
        return None if rows is None else _rows(self.layer, rows)

    def shifts(self, role: str) -> HeadRows | None:
        """Return the shifts of that norm."""
        rows = getattr(self.layer, f"{role}_shifts")
        return None if rows is None else _rows(self.layer, rows)

    def _through_norm(self, x: SampleRows, role: str) -> SampleRows:
        stack, gain = self.layer.stack, self.gains(role)
        if stack.qk_clip is not None:
            x = x.clamp(-stack.qk_clip, stack.qk_clip)
        if stack.qk_norm is None or gain is None:
            return x
        if stack.qk_norm_scope is QKNormScope.ALL:
            square = x.square().mean(dim=(0, 2), keepdim=True)
            x = x * torch.rsqrt(square + stack.qk_norm_epsilon)
        else:
            x = normalised(x, NormKind(stack.qk_norm), stack.qk_norm_epsilon)
        shift = self.shifts(role)
        x = x * gain[:, None]
        return x if shift is None else x + shift[:, None]


def factors_of(layer: AttentionLayer) -> LayerFactors:
    """Return the factors of all heads of a layer."""
    if layer.stack.latent is not None or layer.k_shared is not None:
        return _from_heads(layer)
    (w_q, b_q), (w_k, b_k), (w_v, _) = (_unfolded(layer, role) for role in "qkv")
    w_o = layer.w_o.float().unflatten(0, (layer.n_heads, -1)).to(layer.device)
    if layer.output_gain is not None:
        w_o = w_o * layer.output_gain.float()
    left, right, shift = _score_factors(layer, (w_q, b_q), (w_k, b_k))
    return LayerFactors(
        layer=layer,
        w_q=w_q,
        w_k=w_k,
        w_v=w_v,
        w_o=w_o,
        b_q=b_q,
        b_k=b_k,
        left=_turned(layer, left),
        right=right,
        shift=shift,
    )


def _unfolded(layer: AttentionLayer, role: str) -> tuple[InWeights, HeadRows]:
    """Return weights and biases of queries, keys or values, the norm in front folded in."""
    w = getattr(layer, f"w_{role}").to(layer.device, torch.float32)
    b = getattr(layer, f"b_{role}").to(layer.device, torch.float32)
    if layer.norm_shift is not None:
        b = b + layer.norm_shift.float() @ w
    if layer.norm_gain is not None:
        w = layer.norm_gain.float()[:, None] * w
    if layer.stack.norm is NormKind.LAYER:
        w = w - w.mean(dim=0, keepdim=True)
    n = layer.spec.n_heads if role == "q" else layer.spec.n_kv_heads
    w, b = w.unflatten(1, (n, -1)).transpose(0, 1), b.unflatten(0, (n, -1))
    copies = layer.spec.n_heads // n
    return (w, b) if copies == 1 else (w.repeat_interleave(copies, 0), _rows(layer, b))


def _rows(layer: AttentionLayer, rows: Tensor) -> HeadRows:
    """Return a row a query head, from a row a query head or a head of keys."""
    copies = layer.spec.n_heads // rows.shape[0]
    return rows.to(layer.device, torch.float32).repeat_interleave(copies, 0)


def _score_factors(
    layer: AttentionLayer, queries: tuple[Tensor, Tensor], keys: tuple[Tensor, Tensor]
) -> tuple[InWeights, InWeights, HeadRows]:
    (w_q, b_q), (w_k, b_k) = queries, keys
    kind, scale = layer.stack.qk_norm, layer.spec.scale
    if kind is None or layer.q_gains is None or layer.k_gains is None:
        return w_q * scale, w_k, b_q * scale
    whole = layer.stack.qk_norm_scope is QKNormScope.ALL
    left = _at_typical_length(w_q, b_q, kind, whole) * _rows(layer, layer.q_gains)[:, None]
    right = _at_typical_length(w_k, b_k, kind, whole) * _rows(layer, layer.k_gains)[:, None]
    shifts = layer.q_shifts
    shift = torch.zeros_like(b_q) if shifts is None else _rows(layer, shifts)
    return left * scale, right, shift * scale


def _at_typical_length(w: InWeights, b: HeadRows, kind: NormKind, whole: bool) -> InWeights:
    """Return weights over the root mean square of what they make of isotropic tokens."""
    if kind is NormKind.LAYER:
        w, b = w - w.mean(dim=2, keepdim=True), b - b.mean(dim=1, keepdim=True)
    square = (w.square().sum(dim=(1, 2)) + b.square().sum(dim=1)) / w.shape[2]
    if whole:
        square = square.mean().expand_as(square)
    return w / square.sqrt().clamp(min=SHORTEST)[:, None, None]


def _turned(layer: AttentionLayer, left: InWeights) -> InWeights:
    """Apply what YaRN and LongRoPE put on scores; a rotation by nothing is the identity."""
    if layer.spec.rotary is None:
        return left
    rotation = resolve_rotary(layer.spec.rotary, 1)
    return left if rotation.factor == 1.0 else left @ rotation_matrix(rotation, 0.0).to(left)


def _from_heads(layer: AttentionLayer) -> LayerFactors:
    """Return the factors of heads that come through bottlenecks, one head after another."""
    heads = list(layer)

    def stacked(*parts: Tensor) -> Tensor:
        return torch.stack(parts).float()

    factors = [head.score_factors for head in heads]
    return LayerFactors(
        layer=layer,
        w_q=stacked(*(h.w_q for h in heads)),
        w_k=stacked(*(h.w_k for h in heads)),
        w_v=stacked(*(h.value_factors[0] for h in heads)),
        w_o=stacked(*(h.value_factors[1] for h in heads)),
        b_q=stacked(*(h.b_q for h in heads)),
        b_k=stacked(*(h.b_k for h in heads)),
        left=_turned(layer, stacked(*(left for left, _ in factors))),
        right=stacked(*(right for _, right in factors)),
        shift=stacked(*(_score_bias(h) for h in heads)),
    )


def _score_bias(head: Head) -> Tensor:
    return (head.b_q if head.qk_norm is None else head.qk_norm.q_shift) * head.scale
