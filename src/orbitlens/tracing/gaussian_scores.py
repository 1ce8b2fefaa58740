"""The Gaussian scores of a head's queries, frozen where a context is too short for them (T7).

Enters: a head's weights, and mean and covariance of the tokens it sees. Leaves: for each query its
mean update, its sharpness, and how much its update fluctuates (theory section 3). Tokens may have a
mean and a size at each position (positions as points), and the query itself may be one of the
points: of itself a token knows score and value exactly.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens._types import Tokens
from orbitlens.heads.attention import position_bias, visible_tokens
from orbitlens.heads.head import Head
from orbitlens.heads.layers import AttentionLayer
from orbitlens.heads.rotary import Turning, resolve_rotary

MOST_STEPS = 60  # of Newton's method; a bracket is halved where it would leave it
PRECISION = 1e-12  # of critical inverse temperatures
HOTTEST = 4.0  # largest of them that is looked for: beyond 2 nothing depends on it


@dataclass(frozen=True, kw_only=True)
class TokenStatistics:
    """Mean and covariance of what heads see; with positions as points, at each of them."""

    mean: Float[Tensor, "#tokens d_model"]  # one row, or one a position
    covariance: Float[Tensor, "d_model d_model"]  # of content
    size: Float[Tensor, "#tokens"]  # variance of content at a position, over the mean one


@dataclass(frozen=True, kw_only=True)
class GaussianAnswers:
    """What queries take up from Gaussian tokens."""

    update: Float[Tensor, "some d_model"]  # the mean of what the head writes
    sharpness: Float[Tensor, " some"]  # sum_j p_j^2
    loose: Float[Tensor, " some"]  # the part of it that falls on tokens of unknown content


@dataclass(frozen=True, kw_only=True)
class GaussianScores:
    """The Gaussian scores and values of one head, in its own few dimensions."""

    left: Tensor
    left_bias: Tensor
    right: Tensor
    right_bias: Tensor
    w_v: Tensor
    b_v: Tensor
    w_o: Tensor
    statistics: TokenStatistics
    bias: Tensor  # query tokens x tokens
    visible: Tensor
    chosen: Tensor  # positions of the queries
    turns: tuple[Tensor, Tensor, Tensor] | None  # cosine, sine, partner of a rotary encoding
    with_itself: bool

    @classmethod
    def of(
        cls,
        layer: AttentionLayer,
        h: int,
        statistics: TokenStatistics,
        chosen: Tensor,
        n: int,
        *,
        with_itself: bool = False,
    ) -> "GaussianScores":
        """Return the scores of head `h` for queries at `chosen` positions of n."""
        head = layer.head(h)
        left, right = head.score_factors
        norm = head.qk_norm
        w_v, w_o = head.value_factors
        biases = position_bias(layer, n)
        return cls(
            left=left,
            left_bias=(head.b_q if norm is None else norm.q_shift) * head.scale,
            right=right,
            right_bias=head.b_k if norm is None else norm.k_shift,
            w_v=w_v,
            b_v=head.b_v,
            w_o=w_o,
            statistics=statistics,
            bias=biases[h if biases.shape[0] > 1 else 0][chosen],
            visible=visible_tokens(layer, n)[chosen],
            chosen=chosen,
            turns=_offset_turns(head, chosen, n),
            with_itself=with_itself,
        )

    @property
    def value_covariance(self) -> Float[Tensor, "d_head d_head"]:
        """The covariance of the values of content."""
        return self.w_v.T @ self.statistics.covariance @ self.w_v

    @property
    def noise(self) -> float:
        """The trace of the covariance of what the head writes for one attended token."""
        return (self.value_covariance * (self.w_o @ self.w_o.T)).sum().item()

    def answer(self, tokens: Tokens, *, freezes: bool = True) -> GaussianAnswers:
        """Return what the tokens at the chosen positions take up; T6 where nothing freezes."""
        known, size = self.statistics, self.statistics.size
        q = self._turned(tokens @ self.left + self.left_bias)
        covariance = self.right.T @ known.covariance @ self.right
        mean = (q * (known.mean @ self.right + self.right_bias)).sum(dim=-1) + self.bias
        variance = (((q @ covariance) * q).sum(dim=-1) * size).expand_as(mean).clone()
        if self.with_itself:
            mean, variance = self._knowing_itself(tokens, q, mean, variance)
        energy = RandomEnergy(mean.masked_fill(~self.visible, -math.inf), variance)
        beta, weights = energy.frozen() if freezes else energy.plain()
        own, others = self._own_share(weights)
        attended = torch.einsum("ij,ijr->ir", others * size, q.expand(*weights.shape, -1))
        tilt = self.right.T @ known.covariance @ self.w_v
        value = self._mean_values(others) + beta[:, None] * (attended @ tilt)
        value = value + own[:, None] * (tokens @ self.w_v + self.b_v)
        sharpness = energy.sharpness(beta)
        pointed = (others.square() * (1 - size).clamp(min=0)).sum(dim=-1) + own.square()
        return GaussianAnswers(
            update=value @ self.w_o,
            sharpness=sharpness,
            loose=(sharpness - pointed).clamp(min=0),
        )

    def _mean_values(self, weights: Tensor) -> Tensor:
        """Return sum_j w_ij times the mean value at j; one row of means stands for all."""
        values = self.statistics.mean @ self.w_v + self.b_v
        return weights @ values.expand(weights.shape[1], -1)

    def _knowing_itself(
        self, tokens: Tokens, q: Tensor, mean: Tensor, variance: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the scores where that of a token with itself is no draw."""
        rows = torch.arange(len(self.chosen))
        queries = q[rows, self.chosen] if q.shape[1] > 1 else q[:, 0]
        score = (queries * (tokens @ self.right + self.right_bias)).sum(dim=-1)
        mean, variance = mean.clone(), variance.clone()
        mean[rows, self.chosen] = score + self.bias[rows, self.chosen]
        variance[rows, self.chosen] = 0
        return mean, variance

    def _own_share(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weight of each query on itself, and the weights without it."""
        if not self.with_itself:
            return weights.new_zeros(len(weights)), weights
        rows = torch.arange(len(self.chosen))
        others = weights.clone()
        others[rows, self.chosen] = 0
        return weights[rows, self.chosen], others

    def _turned(self, q: Float[Tensor, "some d_head"]) -> Float[Tensor, "some other d_head"]:
        """Return the query of every row as each key's own frame sees it."""
        if self.turns is None:
            return q[:, None, :]
        cosine, sine, partner = self.turns
        return q[:, None, :] * cosine + q[:, partner][:, None, :] * sine


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


class RandomEnergy:
    """The random-energy model of one row of scores each: phi(b) = ln sum exp(b m + b^2 s^2 / 2)."""

    def __init__(self, mean: Tensor, variance: Tensor) -> None:
        """Take mean and variance of every score; minus infinity where a token is hidden."""
        self.mean, self.variance = mean, variance
        self.seen = torch.isfinite(mean)
        self.critical = self._root()

    def _terms(self, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        b = beta[:, None]
        mean = torch.where(self.seen, self.mean, 0.0)
        exponents = b * mean + b.square() * self.variance / 2
        exponents = exponents.masked_fill(~self.seen, -math.inf)
        phi = exponents.logsumexp(dim=-1)
        weights = torch.exp(exponents - phi[:, None])
        slope = (weights * (mean + b * self.variance)).sum(dim=-1)
        return phi, slope, weights

    def _root(self) -> Tensor:
        """Return b_c of every row, at most `HOTTEST`: the root of phi(b) - b phi'(b), which falls.

        Newton's method in b^2, of which it is a line where all scores have one mean; from 1, and
        within a bracket.
        """
        low = torch.zeros(len(self.mean), dtype=torch.float64)
        high, b = torch.full_like(low, HOTTEST), torch.ones_like(low)
        is_beyond = self._excess(high)[0] > 0
        is_alone = self.seen.sum(dim=-1) == 1  # phi is a parabola: 0 is its root, a double one
        known = is_beyond | is_alone
        for _ in range(MOST_STEPS):
            value, curvature = self._excess(b)
            above = value > 0
            low, high = torch.where(above, b, low), torch.where(above, high, b)
            step = (b.square() + 2 * value / curvature).clamp(min=0).sqrt()
            inside = (step >= low) & (step <= high) & (step > 0)  # an end: it has converged
            last, b = b, torch.where(inside, step, (low + high) / 2)
            if bool((known | ((b - last).abs() <= PRECISION)).all()):
                break
        return torch.where(is_alone, 0.0, torch.where(is_beyond, HOTTEST, b))

    def _excess(self, beta: Tensor) -> tuple[Tensor, Tensor]:
        """Return phi - b phi' at b = `beta`, and phi''."""
        phi, slope, weights = self._terms(beta)
        centred = torch.where(self.seen, self.mean, 0.0) + beta[:, None] * self.variance
        centred = centred - slope[:, None]
        curvature = (weights * (centred.square() + self.variance)).sum(dim=-1)
        return phi - beta * slope, curvature

    def frozen(self) -> tuple[Tensor, Tensor]:
        """Return beta = min(1, b_c) and the weights at it."""
        beta = self.critical.clamp(max=1.0)
        return beta, self._terms(beta)[2]

    def plain(self) -> tuple[Tensor, Tensor]:
        """Return beta = 1 and the weights at it: infinitely many tokens, as in T6."""
        beta = torch.ones_like(self.critical)
        return beta, self._terms(beta)[2]

    def sharpness(self, beta: Tensor) -> Tensor:
        """Return sum_j p_j^2: 1 - b_c where frozen, else Z(2) / Z(1)^2 with Z frozen beyond b_c."""
        one = torch.ones_like(beta)
        ratio = torch.exp((self._free(2 * one) - 2 * self._free(one)).clamp(max=0.0))
        return torch.where(self.critical < 1, 1 - self.critical, ratio)

    def _free(self, beta: Tensor) -> Tensor:
        at = torch.minimum(beta, self.critical)
        return self._terms(at)[0] * beta / at.clamp(min=1e-12)
