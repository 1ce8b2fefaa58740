"""How far a head's value map is aligned with its score map, and weights held on one side of 0.

Enters: the weights of a layer's heads, from any model. Leaves: <V, W> = tr(V S W^T) of each head,
S the covariance of what the heads see (the identity for the weights-only reading); or an output map
changed as little as possible so that it is >= 0 ("guard") or <= 0 ("anti").

The theory's guard is V - min(0, <V, W>/|W|^2) W, whose rank is twice the head's width. <V, W> is
linear in the output map alone, so the nearest output map on the right side of 0 does the same with
no wider head, no other parameters and nothing to compute in the forward pass:

    w_o - min(0, <V, W>/|G|^2) G,    G = d<V, W>/d w_o = scale (w_v^T S w_k) w_q^T
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.orbit.attention import Frame

# Of |w_o| |G|: so far on its side a head is put, that rounding to float32 cannot bring it back.
MARGIN = 1e-6


@dataclass(frozen=True, kw_only=True)
class HeadWeights:
    """The heads of one layer, tokens as rows: x @ w."""

    w_q: Float[Tensor, "head d_model d_head"]
    w_k: Float[Tensor, "head d_model d_head"]
    w_v: Float[Tensor, "head d_model d_head"]
    w_o: Float[Tensor, "head d_head d_model"]
    scale: float


def weights_of(
    qkv: Float[Tensor, "fused d_model"], out: Float[Tensor, "d_model heads_width"], n_heads: int
) -> HeadWeights:
    """Return the heads in a fused projection (queries, keys, values) and an output map."""
    d_head = out.shape[1] // n_heads
    q, k, v = qkv.unflatten(0, (3, n_heads, d_head)).transpose(-1, -2).unbind(0)
    w_o = out.T.unflatten(0, (n_heads, d_head))
    return HeadWeights(w_q=q, w_k=k, w_v=v, w_o=w_o, scale=d_head**-0.5)


def alignment(
    heads: HeadWeights,
    *,
    frame: Frame | None = None,
    covariance: Float[Tensor, "d_model d_model"] | None = None,
) -> Float[Tensor, " head"]:
    """Return <V, W> of each head, through the norms around it; `covariance` is of its input."""
    return (heads.w_o * _slope(heads, frame or Frame(), covariance)).sum(dim=(-1, -2))


def held(
    heads: HeadWeights,
    *,
    sign: int,
    frame: Frame | None = None,
    covariance: Float[Tensor, "d_model d_model"] | None = None,
) -> Float[Tensor, "head d_head d_model"]:
    """Return the output maps nearest to w_o with sign * <V, W> >= 0 for every head."""
    slope = sign * _slope(heads, frame or Frame(), covariance)
    value = (heads.w_o * slope).sum(dim=(-1, -2), keepdim=True)
    length = slope.norm(dim=(-1, -2), keepdim=True)
    least = MARGIN * length * heads.w_o.norm(dim=(-1, -2), keepdim=True)
    tiny = torch.finfo(slope.dtype).tiny
    missing = torch.where(value < least, least - value, 0) / length.square().clamp(min=tiny)
    return heads.w_o + missing * slope


def _slope(
    heads: HeadWeights, frame: Frame, covariance: Float[Tensor, "d_model d_model"] | None
) -> Float[Tensor, "head d_head d_model"]:
    """Return G, what <V, W> changes by with each entry of w_o."""
    if covariance is None:
        inner = _seen(heads.w_v, frame).mT @ _seen(heads.w_k, frame)
    else:
        inner = heads.w_v.mT @ covariance.to(heads.w_v) @ heads.w_k
    slope = inner @ _seen(heads.w_q, frame).mT * heads.scale
    return slope if frame.out_gain is None else slope * frame.out_gain


def _seen(weight: Float[Tensor, "head d_model d_head"], frame: Frame) -> Tensor:
    """Return a weight with the gain of the norm in front folded in."""
    if frame.gain is not None:
        weight = frame.gain[:, None] * weight
    return weight - weight.mean(dim=1, keepdim=True) if frame.centred else weight
