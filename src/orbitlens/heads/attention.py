"""Attention recomputed from heads, exactly as the model does it: patterns and outputs.

Enters: an `AttentionLayer` and tokens (rows, float64, after `layer.normalise`). Leaves: attention
weights and outputs that equal the model's own. This is the reference everything else is held to.
"""

import math
from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from orbitlens._types import Tokens
from orbitlens.families.architecture import NormKind, Position, QKNormScope
from orbitlens.heads.head import Head, QKNorm, normalised
from orbitlens.heads.layers import AttentionLayer
from orbitlens.heads.rotary import resolve_rotary, rotate

PerHead = Float[Tensor, "head tokens d_head"]
PerHeadPattern = Float[Tensor, "head tokens tokens"]


def attention_pattern(layer: AttentionLayer, tokens: Tokens) -> PerHeadPattern:
    """Return p_ij of every head: the share of token j in what token i takes up; rows sum to 1.

    Where attention has no softmax they are signed weights, and sum to anything.
    """
    scores = attention_scores(layer, tokens)
    fading = layer.stack.fading
    if fading is None:
        return scores.softmax(dim=-1)
    places = torch.arange(tokens.shape[0], dtype=tokens.dtype, device=tokens.device)
    kept = fading ** (places[:, None] - places[None, :]).clamp(min=0)
    return kept * scores.masked_fill(scores == -math.inf, 0.0)


def attention_scores(layer: AttentionLayer, tokens: Tokens) -> PerHeadPattern:
    """Return what the softmax of every head is taken of; -inf where token i may not see j."""
    return next(context_scores(layer, [tokens]))


def context_scores(layer: AttentionLayer, contexts: Iterable[Tokens]) -> Iterator[PerHeadPattern]:
    """Yield the scores of one context after another; heads are unfolded once for all."""
    heads = list(layer)
    softcap = layer.stack.softcap
    for tokens in contexts:
        queries, keys = _queries_and_keys(heads, tokens, layer.n_sharing)
        scores = queries @ keys.transpose(-1, -2) * layer.spec.scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores + position_bias(layer, tokens.shape[0]).to(tokens.device)
        visible = visible_tokens(layer, tokens.shape[0]).to(tokens.device)
        yield scores.masked_fill(~visible, -math.inf)


def attention_output(layer: AttentionLayer, tokens: Tokens) -> Tokens:
    """Return what attention adds to each token, before any norm on the output."""
    return head_outputs(layer, tokens).sum(dim=0) + layer.b_o


def head_outputs(layer: AttentionLayer, tokens: Tokens) -> Float[Tensor, "head tokens d_model"]:
    """Return each head's own part of the output; with the output bias they sum to all of it."""
    with layer.unfolded():
        pattern = attention_pattern(layer, tokens)
        heads = list(layer)
    parts, values = [], tokens
    for head, weights in zip(heads, pattern, strict=True):
        if head.index % layer.n_sharing == 0:  # the heads behind it have the same values
            values = _clipped(tokens @ head.w_v + head.b_v, head.clip)
            if head.kv_latent is not None:
                values = values * head.kv_latent.relative_scale(tokens)
        parts.append(weights @ values @ head.w_o)
    return torch.stack(parts)


def _queries_and_keys(heads: list[Head], tokens: Tokens, n_sharing: int) -> tuple[PerHead, PerHead]:
    """Return queries and keys of every head; keys that heads share are worked out once."""
    queries = torch.stack([_clipped(tokens @ h.w_q + h.b_q, h.clip) for h in heads])
    own = torch.stack([_clipped(tokens @ h.w_k + h.b_k, h.clip) for h in heads[::n_sharing]])
    keys = own.repeat_interleave(n_sharing, dim=0)
    queries, keys = _at_true_length(heads[0], tokens, queries, keys)
    norms = [head.qk_norm for head in heads if head.qk_norm is not None]
    if norms:
        queries = _normalise_heads(queries, norms, "q")
        keys = _normalise_heads(keys, norms, "k")
    if heads[0].rotary is not None:
        rotation = resolve_rotary(heads[0].rotary, tokens.shape[0])
        queries, keys = rotate(queries, rotation), rotate(keys, rotation)
    return queries, keys


def _at_true_length(
    head: Head, tokens: Tokens, queries: PerHead, keys: PerHead
) -> tuple[PerHead, PerHead]:
    """Undo the typical length of latents; the rotated parts of keys do not come from them."""
    if head.q_latent is not None:
        queries = queries * head.q_latent.relative_scale(tokens)
    if head.kv_latent is not None and head.rotary is not None:
        shared, own = keys.split([head.rotary.d_rotary, head.d_head - head.rotary.d_rotary], dim=-1)
        keys = torch.cat([shared, own * head.kv_latent.relative_scale(tokens)], dim=-1)
    return queries, keys


def _clipped(x: Tensor, bound: float | None) -> Tensor:
    return x if bound is None else x.clamp(-bound, bound)


def _normalise_heads(x: PerHead, norms: list[QKNorm], which: str) -> PerHead:
    norm = norms[0]
    if norm.scope is QKNormScope.ALL:
        # Over all heads; grouped keys appear once a query head, which leaves the mean as it is.
        square = x.square().mean(dim=(0, 2), keepdim=True)
        x = x * torch.rsqrt(square + norm.epsilon)
    else:
        x = normalised(x, NormKind(norm.kind), norm.epsilon)
    gains = torch.stack([n.q_gain if which == "q" else n.k_gain for n in norms])
    shifts = torch.stack([n.q_shift if which == "q" else n.k_shift for n in norms])
    return x * gains[:, None, :] + shifts[:, None, :]


# --- masks and biases ------------------------------------------------------------------------


def visible_tokens(layer: AttentionLayer, n_tokens: int) -> Bool[Tensor, "tokens tokens"]:
    """Return which tokens j each token i may attend to."""
    i = torch.arange(n_tokens)[:, None]
    j = torch.arange(n_tokens)[None, :]
    visible = j <= i if layer.stack.causal else torch.ones(n_tokens, n_tokens, dtype=torch.bool)
    window = layer.spec.window
    return visible if window is None else visible & ((i - j).abs() < window)


def position_bias(layer: AttentionLayer, n_tokens: int) -> Float[Tensor, "#head tokens tokens"]:
    """Return what ALiBi or T5's table adds to the scores; zeros for every other encoding."""
    offsets = torch.arange(n_tokens)[None, :] - torch.arange(n_tokens)[:, None]  # j - i
    if layer.relative_bias is not None:
        n_buckets = layer.relative_bias.shape[0]
        buckets = t5_buckets(
            offsets,
            n_buckets=n_buckets,
            max_distance=layer.stack.t5_max_distance,
            causal=layer.stack.causal,
        )
        return layer.relative_bias[buckets].permute(2, 0, 1)
    if layer.stack.position is not Position.ALIBI:
        return torch.zeros(1, n_tokens, n_tokens, dtype=torch.float64)
    slopes = torch.tensor([layer.alibi_slope(h) for h in range(layer.n_heads)], dtype=torch.float64)
    # Behind a causal mask this is slope * j and a part of i alone, which cancels in the softmax.
    return -slopes[:, None, None] * offsets.double().abs()


def t5_buckets(
    offsets: Int[Tensor, "*any"], *, n_buckets: int, max_distance: int, causal: bool
) -> Int[Tensor, "*any"]:
    """Return T5's bucket of each offset j - i (arXiv 1910.10683): exact near, logarithmic far."""
    start = torch.zeros_like(offsets)
    if not causal:
        n_buckets //= 2
        start = torch.where(offsets > 0, n_buckets, 0)
    distance = -offsets.clamp(max=0) if causal else offsets.abs()
    exact = n_buckets // 2
    ratio = torch.log(distance.double().clamp(min=1) / exact) / math.log(max_distance / exact)
    far = (exact + (ratio * (n_buckets - exact)).long()).clamp(max=n_buckets - 1)
    return start + torch.where(distance < exact, distance, far)
