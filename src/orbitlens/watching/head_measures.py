"""What weights alone say of every head of a layer: sizes, bounds, and how near attention freezes.

Enters: an `AttentionLayer` and what is known of its tokens. Leaves: the numbers of `QUANTITIES`, by
way of a few r x r matrices a head. Nothing of size d x d or tokens x tokens is formed, so that
fused attention is no obstacle. Products are in float32, spectra in float64.

    norm_q ... norm_o       |W_Q|_F, ..., |W_O|_F, the gain of the norm in front folded in
    top_q ... top_o         their largest singular values
    stable_rank_qk, _ov     |W|_F^2 / |W|_2^2 of score map and value map
    score_norm, score_top   |W|_F and |W|_2
    alignment               <V, W> / (|V| |W|)
    score_bound             by how much two scores of one query can differ (N4)
    entropy_floor           the least entropy attention can have by it, over ln n
    score_spread            standard deviation of the scores of a query (T7)
    freezing                score_spread / sqrt(2 ln n): beyond 1 attention sits on single tokens
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.families.architecture import QKNormScope
from orbitlens.heads.layers import AttentionLayer
from orbitlens.heads.rotary import resolve_rotary
from orbitlens.heads.side_by_side import LayerFactors, Sample, factors_of
from orbitlens.theory.sharpness import UNBOUNDED

Matrices = Float[Tensor, "head d_head d_head"]
PerHead = Float[Tensor, " head"]
FACTORS = ("q", "k", "v", "o")
QUANTITIES = (
    *(f"norm_{role}" for role in FACTORS),
    *(f"top_{role}" for role in FACTORS),
    "stable_rank_qk",
    "stable_rank_ov",
    "score_norm",
    "score_top",
    "alignment",
    "score_bound",
    "entropy_floor",
    "score_spread",
    "freezing",
)
GRAMS = ("q", "k", "v", "o", "left", "right")


@dataclass(frozen=True, kw_only=True)
class Context:
    """What is known of the tokens that a layer's heads see."""

    n_tokens: int  # of a context
    tokens: Sample | None = None  # newest ones that were measured, normalised as heads see them
    longest: float | None = None  # length of the longest one measured; asked for without a norm


@dataclass(frozen=True, kw_only=True)
class LayerGrams:
    """What is kept of a layer: Gram matrices of factors, and numbers that need no spectrum."""

    layer: AttentionLayer
    context: Context
    grams: Mapping[str, Matrices]  # by GRAMS; float64
    inner: PerHead  # <V, W>
    shift: PerHead  # |c|
    bias_q: PerHead
    bias_k: PerHead
    spread: PerHead | None  # standard deviation of scores on measured tokens


def _layer_grams(layer: AttentionLayer, context: Context) -> LayerGrams:
    """Return what readings need of a layer; copies of its weights are dropped here."""
    factors = factors_of(layer)
    tall = {
        "q": factors.w_q,
        "k": factors.w_k,
        "v": factors.w_v,
        "o": factors.w_o.mT,
        "left": factors.left,
        "right": factors.right,
    }
    grams = {name: (w.mT @ w).double() for name, w in tall.items()}
    out_left, value_right = factors.w_o @ factors.left, factors.w_v.mT @ factors.right
    shifted = torch.einsum("hr,hrs,hs->h", *_around(factors.shift, grams["right"]))
    return LayerGrams(
        layer=layer,
        context=context,
        grams=grams,
        inner=(out_left.double() * value_right.double()).sum(dim=(1, 2)),
        shift=shifted.clamp(min=0).sqrt(),
        bias_q=factors.b_q.double().norm(dim=1),
        bias_k=factors.b_k.double().norm(dim=1),
        spread=None if context.tokens is None else _measured_spread(factors, context.tokens),
    )


def _around(rows: Tensor, matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return rows.double(), matrices, rows.double()


def _measured_spread(factors: LayerFactors, tokens: Sample) -> PerHead:
    """Return the root mean square over queries of the standard deviation of their scores."""
    queries, keys = factors.queries(tokens), factors.keys(tokens)
    centred = keys - keys.mean(dim=1, keepdim=True)
    covariance = (centred.mT @ centred / max(tokens.shape[0] - 1, 1)).double()
    moment = (queries.mT @ queries / tokens.shape[0]).double()
    variance = (moment * covariance).sum(dim=(1, 2)).clamp(min=0)
    return variance.sqrt() * _stretch(factors.layer, tokens.shape[0])


def head_numbers(layer: AttentionLayer, context: Context) -> dict[str, PerHead]:
    """Return the numbers of `QUANTITIES` of every head of a layer, on the CPU."""
    grams = _layer_grams(layer, context)
    return {name: value.cpu() for name, value in _numbers(grams, _largest_values(grams)).items()}


def _largest_values(layer: "LayerGrams") -> dict[str, PerHead]:
    """Return the largest singular values of the factors and of W and V."""
    grams = layer.grams
    found = {name: _largest(grams[name]) for name in FACTORS}
    right, value = _root(grams["right"]), _root(grams["v"])
    found["score"] = _largest(right.mT @ grams["left"] @ right)
    found["value"] = _largest(value.mT @ grams["o"] @ value)
    return found


def _largest(squares: Matrices) -> PerHead:
    return torch.linalg.eigvalsh(squares)[:, -1].clamp(min=0).sqrt()


def _root(grams: Matrices) -> Matrices:
    """Return F with F F^T = gram, of every head."""
    values, vectors = torch.linalg.eigh(grams)
    return vectors * values.clamp(min=0).sqrt()[:, None, :]


def _numbers(layer: LayerGrams, top: Mapping[str, PerHead]) -> dict[str, PerHead]:
    grams = layer.grams
    score = (grams["left"] * grams["right"]).sum(dim=(1, 2)).clamp(min=0).sqrt()
    value = (grams["v"] * grams["o"]).sum(dim=(1, 2)).clamp(min=0).sqrt()
    traces = {name: grams[name].diagonal(dim1=1, dim2=2).sum(dim=1) for name in FACTORS}
    n = layer.context.n_tokens
    bound = _score_bound(layer, top)
    spread = layer.spread
    if spread is None:  # isotropic tokens
        spread = (score.square() + layer.shift.square()).sqrt()
    return {
        **{f"norm_{name}": traces[name].clamp(min=0).sqrt() for name in FACTORS},
        **{f"top_{name}": top[name] for name in FACTORS},
        "stable_rank_qk": _ratio(score, top["score"]).square(),
        "stable_rank_ov": _ratio(value, top["value"]).square(),
        "score_norm": score,
        "score_top": top["score"],
        "alignment": _ratio(layer.inner, score * value),
        "score_bound": bound,
        "entropy_floor": entropy_floors(bound, n),
        "score_spread": spread,
        "freezing": spread / math.sqrt(2 * math.log(max(n, 2))),
    }


def _ratio(above: PerHead, below: PerHead) -> PerHead:
    return torch.where(below > 0, above / below.clamp(min=1e-300), 0.0)


def _score_bound(layer: LayerGrams, top: Mapping[str, PerHead]) -> PerHead:
    """Return a bound on the difference of two scores of one query, as `theory.sharpness` has it.

    Infinite where a layer has none. Without a norm in front it is one for tokens as long as the
    longest that was measured, or of the usual length, the root of d_model, before any was.
    """
    attention, stack = layer.layer, layer.layer.stack
    unbounded = stack.position in UNBOUNDED or stack.latent is not None
    if unbounded or (stack.qk_norm is not None and stack.qk_norm_scope is not QKNormScope.HEAD):
        return torch.full_like(layer.inner, math.inf)
    length = _length(layer)
    rotary = attention.spec.rotary is not None
    query = attention.spec.scale * _bounded(layer, "q", top["q"], with_bias=True)
    spread = 2 * query * _bounded(layer, "k", top["k"], with_bias=rotary)
    spread = spread * _stretch(attention, layer.context.n_tokens)
    if not rotary and stack.qk_norm is None and stack.qk_clip is None and stack.softcap is None:
        spread = torch.minimum(spread, 2 * length * (length * top["score"] + layer.shift))
    if stack.softcap is not None:
        spread = spread.clamp(max=2 * stack.softcap)
    slopes = [abs(attention.alibi_slope(h)) for h in range(attention.n_heads)]
    return spread + torch.tensor(slopes).to(spread) * (layer.context.n_tokens - 1)


def _length(layer: LayerGrams) -> float:
    usual = math.sqrt(layer.layer.stack.d_model)
    if layer.layer.stack.norm is not None or layer.context.longest is None:
        return usual
    return layer.context.longest


def _bounded(layer: LayerGrams, role: str, top: PerHead, *, with_bias: bool) -> PerHead:
    """Return a bound on the length of a query or key, without its scale."""
    attention, stack = layer.layer, layer.layer.stack
    root = math.sqrt(stack.d_head)
    gains = getattr(attention, f"{role}_gains")
    if stack.qk_norm is not None and gains is not None:
        copies = attention.n_heads // gains.shape[0]
        bound = root * gains.abs().amax(dim=1)
        shifts = getattr(attention, f"{role}_shifts")
        bound = bound if shifts is None or not with_bias else bound + shifts.norm(dim=1)
        return bound.to(top).repeat_interleave(copies, 0)
    bias = layer.bias_q if role == "q" else layer.bias_k
    bound = _length(layer) * top + (bias if with_bias else 0.0)
    return bound if stack.qk_clip is None else bound.clamp(max=stack.qk_clip * root)


def _stretch(layer: AttentionLayer, n_tokens: int) -> float:
    if layer.spec.rotary is None:
        return 1.0
    return max(1.0, resolve_rotary(layer.spec.rotary, n_tokens).factor ** 2)


def entropy_floors(spreads: PerHead, n_tokens: int) -> PerHead:
    """Return `theory.sharpness.entropy_floor` over ln n, of every head at once."""
    if n_tokens < 2:
        return torch.zeros_like(spreads)
    s = spreads.clamp(max=700.0)[:, None]
    high = torch.arange(1, n_tokens, dtype=torch.float64, device=spreads.device)
    low = (n_tokens - high) * torch.exp(-s)
    total = high + low
    return (torch.log(total) + low * s / total).amin(dim=1) / math.log(n_tokens)
