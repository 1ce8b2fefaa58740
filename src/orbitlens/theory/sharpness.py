"""How sharp attention can be, whatever the tokens: bounds from weights and token lengths alone.

Enters: a `Head` and the largest length of the tokens it sees. Leaves: the largest difference of two
scores of one query, the smallest weight a token can get, and a floor of attention's entropy
(certificate N4, docs/certificates.md; compare arXiv 2303.06296).
"""

import math

import numpy as np
import torch

from orbitlens._types import HeadMatrix
from orbitlens.families.architecture import Position, QKNormScope
from orbitlens.heads.head import Head
from orbitlens.heads.rotary import resolve_rotary
from orbitlens.theory.eigenpairs import EPS
from orbitlens.theory.maps import HeadMaps, matrix_root
from orbitlens.theory.spectrum import symmetric_eigenvalues

UNBOUNDED = {Position.T5_BIAS, Position.DISENTANGLED}  # a head does not know these biases
SAFE = 1 + 1e-12  # norms are rounded
USUAL_SCALES = (1e-4, 1e4)  # of scores


def score_spread(head: Head, maps: HeadMaps, *, length: float, n_tokens: int) -> float | None:
    """Return a bound on the difference of two scores of one query; None where there is none.

    For tokens no longer than `length`: |q| |k - k'| with |q| <= length |W_Q| + |b_Q| and the
    difference of two keys at most 2 length |W_K|, or with a rotary encoding, which turns the two by
    different angles, 2 (length |W_K| + |b_K|).
    """
    if head.position in UNBOUNDED or head.q_latent is not None or head.kv_latent is not None:
        return None
    if head.qk_norm is not None and head.qk_norm.scope is not QKNormScope.HEAD:
        return None
    ends = _query_length(head, maps, length) * _key_difference(head, maps, length)
    spread = ends * _stretch(head, n_tokens)
    if head.has_bilinear_scores and head.rotary is None:
        spread = min(spread, 2 * length * (length * _norm(maps) + _size(head.score_shift)))
    if head.softcap is not None:
        spread = min(spread, 2 * head.softcap)
    return SAFE * (spread + abs(head.alibi_slope) * (n_tokens - 1))


def smallest_weight(spread: float, n_tokens: int) -> float:
    """Return the least weight of n whose scores differ by at most `spread`.

    >>> smallest_weight(0.0, 4)
    0.25
    """
    return 1 / (1 + (n_tokens - 1) * math.exp(min(spread, 700.0)))


def entropy_floor(spread: float, n_tokens: int) -> float:
    """Return the least entropy (nats) of n weights whose scores differ by at most `spread`.

    Along one score the entropy rises, then falls, so that it is least where every score is at an
    end: k of them high and the others low, for some k.

    >>> round(entropy_floor(0.0, 4) / math.log(4), 6)
    1.0
    """
    if n_tokens == 1:
        return 0.0
    high = np.arange(1, n_tokens, dtype=np.float64)
    low = (n_tokens - high) * math.exp(-min(spread, 700.0))
    total = high + low
    return float((np.log(total) + low * min(spread, 700.0) / total).min())


def _query_length(head: Head, maps: HeadMaps, length: float) -> float:
    # The Gram matrix that is there already holds the square of the scale, and of a rotary factor;
    # an extreme scale has pushed it out of the range of numbers, where no bound follows from it.
    low, high = USUAL_SCALES
    is_scaled = low < head.scale < high and (
        head.rotary is None or resolve_rotary(head.rotary, 1).factor == 1
    )
    gram = maps.left_left / head.scale**2 if is_scaled else head.w_q.T @ head.w_q
    return head.scale * _bounded(head, gram, "q", length, with_bias=True)


def _key_difference(head: Head, maps: HeadMaps, length: float) -> float:
    has_bias = head.rotary is not None
    return 2 * _bounded(head, maps.right_right, "k", length, with_bias=has_bias)


def _bounded(head: Head, gram: HeadMatrix, role: str, length: float, *, with_bias: bool) -> float:
    """Return a bound on the length of a query or key (without its scale), by its map's Gram."""
    norm, bias, root = head.qk_norm, getattr(head, f"b_{role}"), head.d_head**0.5
    if norm is not None:
        gain, shift = getattr(norm, f"{role}_gain"), getattr(norm, f"{role}_shift")
        return root * gain.abs().max().item() + (_size(shift) if with_bias else 0.0)
    bound = length * _largest_singular(gram, max(head.w_q.shape))
    bound += _size(bias) if with_bias else 0.0
    return bound if head.clip is None else min(bound, head.clip * root)


def _stretch(head: Head, n_tokens: int) -> float:
    if head.rotary is None:
        return 1.0
    return max(1.0, resolve_rotary(head.rotary, n_tokens).factor ** 2)


def _largest_singular(gram: HeadMatrix, n_terms: int) -> float:
    """Return |w|_2 from w^T w, rounded up by what sums of so many terms may have lost."""
    lost = 10 * n_terms * EPS * gram.trace().item()
    return math.sqrt(max(symmetric_eigenvalues(gram)[-1].item(), 0.0) + lost)


def _norm(maps: HeadMaps) -> float:
    """Return |W|_2 by way of the Gram matrices of its factors, rounded up likewise."""
    half = matrix_root(maps.right_right)
    largest = symmetric_eigenvalues(half.T @ maps.left_left @ half)[-1].item()
    square = maps.left_left.trace().item() * maps.right_right.trace().item()
    return math.sqrt(max(largest, 0.0) + 10 * max(maps.left.shape) * EPS * square)


def _size(vector: torch.Tensor) -> float:
    return vector.norm().item()
