"""How untrained stacks of the lab's definite heads move tokens, forward and back.

Enters: a `Blueprint` with a definite refinement. Leaves: a `Walk`, as `grams.py` has it for plain
attention. A definite head starts near a multiple of the identity, so that what it adds is in the
direction of tokens themselves: its mean does not vanish as that of plain maps does. With free
matrices of deviation σ, L D Lᵀ + S − Sᵀ (heads/refined.py; D = ±δ) has

    mean       m_i = δ (s_i + σ² Σ_{k<i} s_k) on its diagonal, s_k the signs,
    variance   δ²σ² + δ²σ⁴ min(i, j) + σ² off it,

and V = A⁻¹ W, of two such maps, has the mean m₁m₂ and the variance m₁²v₂ + v₁m₂² + v₁v₂. A layer
takes the Gram matrix of each coordinate, G_i, to

    (1 + Σ_h c_i P_h) G_i (1 + Σ_h c_i P_h)ᵀ + Σ_h Σ_j var_ij P_h G_j P_hᵀ.

Coordinates are taken together in blocks. Gradients go back by the transposed maps; those through
the scores, which start small, are left out.
"""

import math
from dataclasses import dataclass

import numpy as np

from orbitlens.errors import InputError
from orbitlens.forecasting.blueprint import Blueprint
from orbitlens.forecasting.grams import (
    Array,
    Walk,
    alibi_bias,
    bounded,
    log_share,
    mlp,
    mlp_slope,
    normed,
    pattern_of,
    root_of,
    start,
)
from orbitlens.heads.refined import FLOOR, n_negative
from orbitlens.orbit.arms import SMALL_SCORE, UNIT

MOST_BLOCKS = 16


@dataclass(frozen=True, kw_only=True)
class _Maps:
    """Means and variances of maps, by block of coordinates."""

    score_mean: Array  # (block,)
    score_variance: float
    value_mean: Array  # (block,)
    value_variance: Array  # (block, block): of an entry, times the coordinates of the first block


@dataclass(frozen=True, kw_only=True)
class _DefiniteLayer:
    """What gradients need of one layer."""

    carried: Array  # (block, token, token): 1 + Σ c P / sizes
    patterns: Array  # (head, token, token), divided by the sizes of tokens that are read
    attention_sizes: Array | None  # of the norm behind it
    branch_gram: Array  # in front of the MLP
    mlp_sizes: Array | None
    log_kept: float  # of the stream in front of the layer, beside it with both branches added


def definite_walk(plan: Blueprint, rng: np.random.Generator) -> Walk:
    """Return Gram matrices of tokens and gradients by depth.

    Raises:
        InputError: norms or positions that this form is not for.
    """
    if plan.norm == "peri" or plan.position == "rotary":
        raise InputError(
            "definite heads are forecast with pre-, post- or no norms and without rotary "
            f"positions; this stack has {plan.norm}-norm and {plan.position} positions."
        )
    maps, grams, deviations, layers, kept = _maps(plan), [start(plan, rng)], [], [], [0.0]
    blocks = np.repeat(grams[0][None] / len(maps.value_mean), len(maps.value_mean), axis=0)
    for _ in range(plan.layers):
        blocks, deviation, layer = _layer(plan, maps, blocks, rng)
        grams.append(blocks.sum(axis=0))
        deviations.append(deviation)
        layers.append(layer)
        kept.append(kept[-1] + layer.log_kept)
    back = _back(plan, maps, grams[-1], layers)
    return Walk(grams=grams, back=back, deviations=deviations, log_kept=kept)


def _moments(sigma: float, delta: float, signs: Array) -> tuple[Array, Array]:
    """Return the mean of the diagonal and the variance of entries of L D Lᵀ + S − Sᵀ."""
    before = np.concatenate([[0.0], np.cumsum(signs)[:-1]])
    order = np.arange(len(signs))
    variance = sigma**2 * (1 + delta**2) + delta**2 * sigma**4 * np.minimum.outer(order, order)
    return delta * (signs + sigma**2 * before), variance


def _maps(plan: Blueprint) -> _Maps:
    d, n_blocks = plan.width, min(plan.width, MOST_BLOCKS)
    small, unit = (math.log1p(math.exp(start)) + FLOOR for start in (SMALL_SCORE, UNIT))
    signs = np.ones(d)
    w_mean, w_variance = _moments(plan.init, small, signs)
    signs = np.where(np.arange(d) < n_negative(plan.refinement, d), -1.0, 1.0)
    a_mean, a_variance = _moments(plan.init, unit, signs)
    variance = (
        a_mean[:, None] ** 2 * w_variance
        + a_variance * w_mean[None, :] ** 2
        + a_variance @ w_variance
    )
    parts = np.array_split(np.arange(d), n_blocks)
    return _Maps(
        score_mean=np.array([w_mean[part].mean() for part in parts]),
        score_variance=float(w_variance.mean()),
        value_mean=np.array([(a_mean * w_mean)[part].mean() for part in parts]),
        value_variance=np.array(
            [[variance[np.ix_(a, b)].sum(axis=0).mean() for b in parts] for a in parts]
        ),
    )


def _patterns(
    plan: Blueprint, maps: _Maps, blocks: Array, rng: np.random.Generator
) -> tuple[Array, float]:
    """Return attention of every head, and the deviation of scores."""
    n, d = plan.context, plan.width
    root = root_of(blocks.sum(axis=0))
    mean = math.sqrt(d) * np.einsum("g,gij->ij", maps.score_mean, blocks)
    noise = root @ rng.standard_normal((plan.heads, n, n)) @ root.T
    scores = mean + math.sqrt(d * maps.score_variance) * noise
    deviation = float(scores.std(axis=-1).mean())
    if plan.position == "alibi":
        scores = scores + alibi_bias(plan, plan.heads)
    return pattern_of(plan, scores), deviation


def _layer(
    plan: Blueprint, maps: _Maps, blocks: Array, rng: np.random.Generator
) -> tuple[Array, float, _DefiniteLayer]:
    n, sizes = plan.context, np.ones(plan.context)
    if plan.norm == "pre":
        sizes = normed(blocks.sum(axis=0), plan.epsilon)[1]
    patterns, deviation = _patterns(plan, maps, blocks / np.outer(sizes, sizes), rng)
    patterns, before = patterns / sizes, blocks.sum(axis=0)
    carried = np.eye(n) + maps.value_mean[:, None, None] * patterns.sum(axis=0)
    spread = sum(p @ blocks @ p.T for p in patterns)
    blocks = carried @ blocks @ carried.transpose(0, 2, 1)
    blocks = blocks + np.einsum("gk,kij->gij", maps.value_variance, spread)
    kept = log_share(before, blocks.sum(axis=0))
    blocks, attention_sizes = _behind(plan, blocks)
    seen, mlp_sizes = blocks.sum(axis=0), None
    if plan.n_branches == 2:
        blocks = blocks + mlp(plan, seen, rng).written / len(blocks)
        kept += log_share(seen, blocks.sum(axis=0))
        blocks, mlp_sizes = _behind(plan, blocks)
    layer = _DefiniteLayer(
        carried=carried,
        patterns=patterns,
        attention_sizes=attention_sizes,
        branch_gram=seen,
        mlp_sizes=mlp_sizes,
        log_kept=kept,
    )
    return bounded(blocks), deviation, layer


def _behind(plan: Blueprint, blocks: Array) -> tuple[Array, Array | None]:
    """Return blocks behind a post-norm, and the sizes that it divided by."""
    if plan.norm != "post":
        return blocks, None
    sizes = normed(blocks.sum(axis=0), plan.epsilon)[1]
    return blocks / np.outer(sizes, sizes), sizes


def _back(plan: Blueprint, maps: _Maps, last: Array, layers: list[_DefiniteLayer]) -> list[Array]:
    n_blocks = len(maps.value_mean)
    back = np.repeat(np.eye(plan.context)[None] / n_blocks, n_blocks, axis=0)
    if plan.norm == "pre":
        sizes = normed(last, plan.epsilon)[1]
        back = back / np.outer(sizes, sizes)
    found = [back.sum(axis=0)]
    for layer in reversed(layers):
        back = _divided(back, layer.mlp_sizes)
        if plan.n_branches == 2:
            branch = mlp(plan, layer.branch_gram, np.random.default_rng(0))
            through = back.sum(axis=0) * mlp_slope(plan, branch)
            back = back + through / np.outer(branch.sizes, branch.sizes) / n_blocks
        back = _divided(back, layer.attention_sizes)
        spread = sum(p.T @ back @ p for p in layer.patterns)
        kept = layer.carried.transpose(0, 2, 1) @ back @ layer.carried
        back = bounded(kept + np.einsum("kg,kij->gij", maps.value_variance, spread))
        found.append(back.sum(axis=0))
    return found[::-1]


def _divided(back: Array, sizes: Array | None) -> Array:
    return back if sizes is None else back / np.outer(sizes, sizes)
