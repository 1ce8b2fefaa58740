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

from orbitlens.heads.head import Head
from orbitlens.heads.rotary import mean_rotation, resolve_rotary
from orbitlens.theory.maps import HeadMaps
from orbitlens.theory.rates import core
from orbitlens.tracing.gaussian_scores import GaussianScores, TokenStatistics
from orbitlens.tracing.heads import seen_tokens
from orbitlens.tracing.tally import LayerTally

N_QUERIES = 96  # tokens a context whose updates the frozen closure works out
N_QUERIED = 3  # contexts they are taken from


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
    moves, sharp = [], []
    for head in layer:
        maps = HeadMaps.of(head, _mean_turn(head, n))
        move = _HeadMove.of(maps, s, cross)
        moves.append(move)
        sharp.append(_even_sharpness(maps, move, s, seen.mean, n))
    along = torch.stack([move.along for move in moves]).sum()
    return ClosurePrediction(
        log_change=_log_change(total, along, _joint_spread(moves)),
        heads=tuple(_log_change(total, move.along, move.spread) for move in moves),
        sharpness=tuple(sharp),
    )


def _mean_turn(head: Head, n: int) -> Tensor | None:
    if head.rotary is None:
        return None
    return mean_rotation(resolve_rotary(head.rotary, n), n, causal=head.causal, window=head.window)


@dataclass(frozen=True, kw_only=True)
class _HeadMove:
    """One head's B = O C L^T, and what it adds to tr Cov(x + B u) by itself."""

    out: Tensor  # O
    core: Tensor  # C
    left: Tensor  # L
    moved: Tensor  # S L
    along: Tensor  # 2 tr Cov(x, B u)

    @classmethod
    def of(cls, maps: HeadMaps, s: Tensor, cross: Tensor) -> "_HeadMove":
        """Return the move of a head; `cross` is Cov(x, u)."""
        c = core(maps, s)
        along = 2 * (c * (maps.out.T @ (cross @ maps.left))).sum()
        return cls(out=maps.out, core=c, left=maps.left, moved=s @ maps.left, along=along)

    @property
    def queries(self) -> Tensor:
        """The covariance L^T S L of queries."""
        return self.left.T @ self.moved

    @property
    def spread(self) -> Tensor:
        """The trace of Cov(B u) of this head alone."""
        return ((self.core @ self.queries @ self.core.T) * (self.out.T @ self.out)).sum()


def _joint_spread(moves: list[_HeadMove]) -> Tensor:
    """Return tr Cov(sum_h B_h u); cores act block by block, so that two products are whole."""
    out, left, moved = (
        torch.cat([getattr(move, name) for move in moves], dim=1)
        for name in ("out", "left", "moved")
    )
    cores = torch.stack([move.core for move in moves])
    gram = _blockwise(cores, _blockwise(cores, left.T @ moved).T)  # C (C L^T S L)^T, symmetric
    return (gram * (out.T @ out)).sum()


def _blockwise(
    cores: Float[Tensor, "head d_head d_head"], x: Float[Tensor, "heads_width other"]
) -> Float[Tensor, "heads_width other"]:
    return (cores @ x.unflatten(0, cores.shape[:2])).flatten(0, 1)


def _log_change(total: float, along: Tensor, spread: Tensor) -> float:
    """Return ln(tr Cov(x + B u) / tr Cov(x))."""
    return math.log(max((total + along + spread).item() / total, 1e-12))


def _even_sharpness(maps: HeadMaps, move: _HeadMove, s: Tensor, mean: Tensor, n: int) -> float:
    keys = maps.right.T @ s @ maps.right
    shared = mean @ maps.left
    queries = move.queries + torch.outer(shared, shared)
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
    layer, seen = tally.layer, tally.what_heads_see
    alike = [c for c in tally.kept if c.shape == tally.kept[0].shape]
    x = torch.stack(alike[:N_QUERIED])
    chosen = torch.linspace(0, x.shape[1] - 1, min(N_QUERIES, x.shape[1])).long()
    queries = seen_tokens(layer, x)[:, chosen]
    base, moved = x[:, chosen], x[:, chosen].clone()
    statistics = TokenStatistics(
        mean=seen.mean[None], covariance=seen.covariance.value, size=torch.ones(1).double()
    )
    noise_total, changes, sharp = 0.0, [], []
    for h in range(layer.n_heads):
        scores = GaussianScores.of(layer, h, statistics, chosen, x.shape[1])
        answers = [scores.answer(context) for context in queries]
        focus = torch.stack([answer.sharpness for answer in answers]).mean().item()
        update = torch.stack([answer.update for answer in answers])
        changes.append(_spread_change(base, base + update, focus * scores.noise))
        sharp.append(focus)
        moved += update
        noise_total += focus * scores.noise
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
