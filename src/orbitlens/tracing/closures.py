"""Predictions of what attention does to pair distances, in closed form: T6 and T7.

Enters: a layer's weights, and the statistics of its tokens on one text (`LayerTally`). Leaves: the
log-change of the mean squared pair distance by the layer and by each head alone, and each head's
sharpness. *Plain* (T6): tokens are a Gaussian cloud, attention sees infinitely many of them.
*Frozen* (T7): a context is finite, so softmax freezes on the best of n draws (theory section 3).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.heads.attention import position_bias, visible_tokens
from orbitlens.heads.head import Head
from orbitlens.heads.layers import AttentionLayer
from orbitlens.heads.rotary import Turning, mean_rotation, resolve_rotary
from orbitlens.theory.maps import HeadMaps
from orbitlens.theory.rates import core
from orbitlens.tracing.heads import seen_tokens
from orbitlens.tracing.tally import LayerTally

N_QUERIES = 96  # tokens a context whose updates the frozen closure works out
N_QUERIED = 3  # contexts they are taken from
BISECTIONS = 40


@dataclass(frozen=True, kw_only=True)
class ClosurePrediction:
    """What one closure says about one layer."""

    log_change: float
    heads: tuple[float, ...]
    sharpness: tuple[float, ...]


# --- T6 --------------------------------------------------------------------------------------


def plain_closure(tally: LayerTally) -> ClosurePrediction:
    """Return T6: ln(tr Cov(x + B u) / tr Cov(x)), B = sum_h V_h S W_h^T, S the covariance of u.

    u are the tokens as the heads see them, x the stream. A rotary encoding enters by its mean over
    the context (small scores); sharpness is e^(s^2) / n, s the spread of a query's scores.
    """
    layer, n = tally.layer, tally.kept[0].shape[0]
    seen = tally.what_heads_see
    s, cross = seen.covariance.value, tally.stream_to_seen
    total = tally.mean_squared_distance / 2
    outs, cores, lefts, changes, sharp = [], [], [], [], []
    for head in layer:
        maps = HeadMaps.of(head, _mean_turn(head, n))
        c = core(maps, s)
        changes.append(_linear_change(maps.out, c, maps.left, s, cross, total))
        sharp.append(_even_sharpness(maps, head, s, seen.mean, n))
        outs.append(maps.out)
        cores.append(c)
        lefts.append(maps.left)
    whole = torch.cat(outs, dim=1), torch.block_diag(*cores), torch.cat(lefts, dim=1)
    return ClosurePrediction(
        log_change=_linear_change(*whole, s, cross, total),
        heads=tuple(changes),
        sharpness=tuple(sharp),
    )


def _mean_turn(head: Head, n: int) -> Tensor | None:
    if head.rotary is None:
        return None
    return mean_rotation(resolve_rotary(head.rotary, n), n, causal=head.causal, window=head.window)


def _linear_change(
    out: Tensor, c: Tensor, left: Tensor, s: Tensor, cross: Tensor, total: float
) -> float:
    """Return ln(tr Cov(x + B u) / tr Cov(x)) for B = O C L^T."""
    moved = s @ left
    spread = ((c @ (left.T @ moved) @ c.T) * (out.T @ out)).sum()
    along = 2 * (c * (out.T @ (cross @ left))).sum()
    return math.log(max((total + along + spread).item() / total, 1e-12))


def _even_sharpness(maps: HeadMaps, head: Head, s: Tensor, mean: Tensor, n: int) -> float:
    keys = maps.right.T @ s @ maps.right
    queries = maps.left.T @ (s + torch.outer(mean, mean)) @ maps.left
    variance = (queries * keys).sum().item()
    return min(1.0, math.exp(min(variance, 50.0)) / n)


# --- T7 --------------------------------------------------------------------------------------


def frozen_closure(tally: LayerTally) -> ClosurePrediction:
    """Return T7: each token's mean update at its own beta, and independent fluctuations around it.

    Scores of a query are n draws with mean m_j and variance s_j^2 (offset by offset); with phi(b) =
    ln sum_j exp(b m_j + b^2 s_j^2 / 2) the softmax freezes at the root b_c of phi = b phi'. The
    updates are sum_j w_j (mean value + b Cov(v, k) q_j) at b = min(1, b_c), w the weights of phi;
    the covariance of their fluctuations is sharpness times that of the values.
    """
    layer = tally.layer
    alike = [c for c in tally.kept if c.shape == tally.kept[0].shape]
    x = torch.stack(alike[:N_QUERIED])
    chosen = torch.linspace(0, x.shape[1] - 1, min(N_QUERIES, x.shape[1])).long()
    queries = seen_tokens(layer, x)[:, chosen]
    base, moved = x[:, chosen], x[:, chosen].clone()
    noise_total, changes, sharp = 0.0, [], []
    for h, head in enumerate(layer):
        scores = _Scores.of(layer, head, h, tally, chosen, x.shape[1])
        update, focus = scores.answer(queries)
        noise = focus.mean().item() * scores.noise
        changes.append(_spread_change(base, base + update, noise))
        sharp.append(focus.mean().item())
        moved += update
        noise_total += noise
    return ClosurePrediction(
        log_change=_spread_change(base, moved, noise_total),
        heads=tuple(changes),
        sharpness=tuple(sharp),
    )


def _spread_change(before: Tensor, after: Tensor, noise: float) -> float:
    first = _variance(before)
    return math.log(max((_variance(after) + noise) / first, 1e-12)) if first > 0 else 0.0


def _variance(x: Float[Tensor, "batch tokens d_model"]) -> float:
    centred = x - x.mean(dim=1, keepdim=True)
    return (centred.square().sum() / (x.shape[0] * (x.shape[1] - 1))).item()


@dataclass(frozen=True, kw_only=True)
class _Scores:
    """The Gaussian scores and values of one head, in its own few dimensions."""

    left: Tensor
    left_bias: Tensor
    key_mean: Tensor
    key_covariance: Tensor
    value_mean: Tensor
    value_key: Tensor  # Cov(v, k)
    w_o: Tensor
    noise: float  # trace of the covariance of what the head writes for one attended token
    bias: Tensor  # query tokens x tokens
    visible: Tensor
    cosine: Tensor | None  # query tokens x tokens x d_head
    sine: Tensor | None
    partner: Tensor | None

    @classmethod
    def of(
        cls, layer: AttentionLayer, head: Head, h: int, tally: LayerTally, chosen: Tensor, n: int
    ) -> "_Scores":
        s, mean = tally.what_heads_see.covariance.value, tally.what_heads_see.mean
        left, right = head.score_factors
        norm = head.qk_norm
        w_v, w_o = head.value_factors
        biases = position_bias(layer, n)
        bias = biases[h if biases.shape[0] > 1 else 0]
        turns = _offset_turns(head, chosen, n)
        value_covariance = w_v.T @ s @ w_v
        return cls(
            left=left,
            left_bias=(head.b_q if norm is None else norm.q_shift) * head.scale,
            key_mean=mean @ right + (head.b_k if norm is None else norm.k_shift),
            key_covariance=right.T @ s @ right,
            value_mean=mean @ w_v + head.b_v,
            value_key=w_v.T @ s @ right,
            w_o=w_o,
            noise=(value_covariance * (w_o @ w_o.T)).sum().item(),
            bias=bias[chosen],
            visible=visible_tokens(layer, n)[chosen],
            cosine=turns[0] if turns else None,
            sine=turns[1] if turns else None,
            partner=turns[2] if turns else None,
        )

    def answer(self, tokens: Float[Tensor, "batch some d_model"]) -> tuple[Tensor, Tensor]:
        """Return each token's mean update and its sharpness."""
        updates, focus = [], []
        for context in tokens:
            q = self._turned(context @ self.left + self.left_bias)
            mean = q @ self.key_mean + self.bias
            variance = ((q @ self.key_covariance) * q).sum(dim=-1).expand_as(mean)
            hidden = ~self.visible
            energy = _Energy(mean.masked_fill(hidden, -math.inf), variance)
            beta, weights = energy.frozen()
            attended = torch.einsum("ij,ijr->ir", weights, q.expand(*weights.shape, -1))
            value = self.value_mean + beta[:, None] * (attended @ self.value_key.T)
            updates.append(value @ self.w_o)
            focus.append(energy.sharpness(beta))
        return torch.stack(updates), torch.stack(focus)

    def _turned(self, q: Float[Tensor, "some d_head"]) -> Float[Tensor, "some other d_head"]:
        """Return the query of every row as each key's own frame sees it."""
        if self.cosine is None or self.sine is None or self.partner is None:
            return q[:, None, :]
        return q[:, None, :] * self.cosine + q[:, self.partner][:, None, :] * self.sine


def _offset_turns(head: Head, chosen: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor] | None:
    if head.rotary is None:
        return None
    rotation = resolve_rotary(head.rotary, n)
    table = Turning.of(rotation, n, head.d_head)
    offsets = chosen[:, None] - torch.arange(n)[None, :]
    # Scores carry the factor of YaRN twice, once for the query and once for the key.
    factor = rotation.factor
    turned = torch.ones(head.d_head, dtype=torch.float64)
    turned[table.partner != torch.arange(head.d_head)] = factor
    cosine = table.cosine[offsets.abs()] * turned
    sine = table.sine[offsets.abs()] * offsets.sign()[..., None] * turned
    return cosine, sine, table.partner


class _Energy:
    """The random-energy model of one row of scores each: phi(b) = ln sum exp(b m + b^2 s^2 / 2)."""

    def __init__(self, mean: Tensor, variance: Tensor) -> None:
        self.mean, self.variance = mean, variance
        self.seen = torch.isfinite(mean)
        self.critical = self._root()

    def _terms(self, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        b = beta[:, None]
        mean = torch.where(self.seen, self.mean, 0.0)
        exponents = b * mean + b.square() * self.variance / 2
        exponents = exponents.masked_fill(~self.seen, -math.inf)
        weights = exponents.softmax(dim=-1)
        slope = (weights * (mean + b * self.variance)).sum(dim=-1)
        return exponents.logsumexp(dim=-1), slope, weights

    def _root(self) -> Tensor:
        """Return b_c of every row, at most 4: beyond 2 nothing depends on it."""
        low, high = (
            torch.zeros(len(self.mean)).double(),
            torch.full((len(self.mean),), 4.0).double(),
        )
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            phi, slope, _ = self._terms(middle)
            above = phi > middle * slope
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        return (low + high) / 2

    def frozen(self) -> tuple[Tensor, Tensor]:
        """Return beta = min(1, b_c) and the weights at it."""
        beta = self.critical.clamp(max=1.0)
        return beta, self._terms(beta)[2]

    def sharpness(self, beta: Tensor) -> Tensor:
        """Return sum_j p_j^2: 1 - b_c where frozen, else Z(2) / Z(1)^2 with Z frozen beyond b_c."""
        one = torch.ones_like(beta)
        ratio = torch.exp((self._free(2 * one) - 2 * self._free(one)).clamp(max=0.0))
        return torch.where(self.critical < 1, 1 - self.critical, ratio)

    def _free(self, beta: Tensor) -> Tensor:
        at = torch.minimum(beta, self.critical)
        return self._terms(at)[0] * beta / at.clamp(min=1e-12)
