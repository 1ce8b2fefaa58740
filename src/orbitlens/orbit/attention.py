"""The lab's plain attention layer: one fused projection, one fused softmax, one output map.

Enters: tokens and a `Given`: what all layers of a run share (angles, bias, mask). Leaves: what
attention adds to each token, and its pattern where it is asked for. Refined layers are in
`refinements.py`.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from transformers import Cache

from orbitlens.orbit.config import OrbitConfig
from orbitlens.orbit.position import Angles, turn

BatchTokens = Float[Tensor, "batch tokens d_model"]
PerHead = Float[Tensor, "batch head tokens width"]


@dataclass(frozen=True)
class Given:
    """What every layer of one run is given beside its tokens."""

    angles: Angles | None = None  # of the tokens that are run now
    bias: Tensor | None = None  # added to scores: positions and mask in one
    causal: bool = False  # a causal mask that is not part of `bias`
    patterns: bool = False  # keep attention weights


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The norms around an attention layer, which its maps act through."""

    gain: Float[Tensor, " d_model"] | None = None  # of the norm in front
    centred: bool = False  # that norm takes the mean away
    out_gain: Float[Tensor, " d_model"] | None = None  # of a norm on the output


class OrbitAttention(nn.Module):
    """What every attention layer of the lab has: a forward, and two things a trainer asks for."""

    def forward(
        self, x: BatchTokens, given: Given, cache: Cache | None = None, layer: int = 0
    ) -> tuple[BatchTokens, Tensor | None]:
        """Return what attention adds to each token, and the pattern or None."""
        raise NotImplementedError

    def extra_loss(self, frame: Frame) -> Tensor | None:
        """Return what the layer adds to the loss, or None."""
        return None

    def after_step(self, frame: Frame) -> None:
        """Put weights back where they must be, after a step of an optimizer."""


class PlainAttention(OrbitAttention):
    """Multi-head attention as everyone has it."""

    def __init__(self, config: OrbitConfig) -> None:
        """Make the projections of queries, keys and values, and the output map."""
        super().__init__()
        width = config.hidden_size
        self.n_heads, self.d_head = config.num_attention_heads, config.d_head
        self.qkv_proj = nn.Linear(width, 3 * width, bias=config.bias)
        self.o_proj = nn.Linear(width, width, bias=config.bias)
        self.has_qk_norm = config.qk_norm
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(self.d_head, eps=config.layer_norm_eps)
            self.k_norm = nn.RMSNorm(self.d_head, eps=config.layer_norm_eps)

    def forward(
        self, x: BatchTokens, given: Given, cache: Cache | None = None, layer: int = 0
    ) -> tuple[BatchTokens, Tensor | None]:
        """Return what attention adds to each token, and the pattern or None."""
        q, k, v = split_heads(self.qkv_proj(x), self.n_heads)
        if self.has_qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if given.angles is not None:
            q, k = turn(q, given.angles), turn(k, given.angles)
        if cache is not None:
            k, v = cache.update(k, v, layer)
        mixed, pattern = attend(q, k, v, given)
        return self.o_proj(side_by_side(mixed)), pattern


def split_heads(
    fused: Float[Tensor, "batch tokens fused"], n_heads: int
) -> tuple[PerHead, PerHead, PerHead]:
    """Return queries, keys and values of each head."""
    batch, n_tokens, width = fused.shape
    split = fused.view(batch, n_tokens, 3, n_heads, width // (3 * n_heads))
    q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v


def side_by_side(mixed: PerHead) -> Float[Tensor, "batch tokens heads_width"]:
    """Return the heads of each token next to each other."""
    return mixed.transpose(1, 2).flatten(2)


def attend(
    q: PerHead,
    k: Float[Tensor, "batch head keys width"],
    v: Float[Tensor, "batch head keys value_width"],
    given: Given,
    scale: float | None = None,
) -> tuple[Float[Tensor, "batch head tokens value_width"], Tensor | None]:
    """Return softmax(q k^T scale + bias) v; `scale` defaults to 1/sqrt(width of q)."""
    if not given.patterns:
        mixed = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=given.bias, is_causal=given.causal, scale=scale
        )
        return mixed, None
    scores = q @ k.transpose(-1, -2) * (scale if scale is not None else q.shape[-1] ** -0.5)
    if given.bias is not None:
        scores = scores + given.bias
    if given.causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    pattern = scores.softmax(dim=-1)
    return pattern @ v, pattern
