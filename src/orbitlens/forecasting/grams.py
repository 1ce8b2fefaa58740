"""How untrained layers move tokens: a recursion for the expected inner products of all pairs.

Enters: a `Blueprint`. Leaves: `Depth`s: for each layer the expected Gram matrix of a context. With
random weights of many coordinates, what a map does to tokens is told by their inner products
G_ij = x_i·x_j / d alone (as for wide networks, arXiv 2006.10540 for attention):

    norm        G_ij / √((G_ii + ε)(G_jj + ε))
    attention   (d σ²)(d σ_o²) E[P G Pᵀ],  P the softmax of scores q_i·k_j / √r, where queries
                and keys are normal with covariance d σ² G: drawn, so that sharp scores, masks,
                rotations and biases are as they are; nothing as large as a weight is made
    MLP         d_mlp σ_o² E[φ(a) φ(b)] with (a, b) normal of covariance d σ² G: `activations.py`
    residual    sums, since branches have weights of their own

Gradients go back by the same maps, transposed: what a branch adds to them is divided by the size of
the token that its norm divided. Those through the scores are drawn as the scores were.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from orbitlens.forecasting.activations import kernel
from orbitlens.forecasting.blueprint import Blueprint
from orbitlens.heads.head import alibi_slopes

Array = np.ndarray
MOST_DRAWS = 8  # heads drawn a layer
LARGEST_SIZE = 1e20  # of a coordinate, or of a gradient


@dataclass(frozen=True, kw_only=True)
class StackBranch:
    """What one branch of a layer is given, what it writes, and how gradients come back."""

    seen: Array  # the Gram matrix that it reads, normalised
    root: Array | None  # for attention: `seen` is this times its transpose
    written: Array
    drawn: "DrawnHeads | None"  # for attention
    sizes: Array  # of tokens, that the norm in front divided by
    out_sizes: Array | None  # of what a norm on its output divided by


@dataclass(frozen=True, kw_only=True)
class DrawnHeads:
    """Some heads of a layer: queries and keys as scores use them, and attention."""

    q: Array  # (head, token, coordinate)
    k: Array
    q_sizes: Array  # before a norm on queries and keys, beside √d_head; 1 without
    k_sizes: Array
    pattern: Array  # (head, token, token)


def start(plan: Blueprint, rng: np.random.Generator) -> Array:
    """Return the Gram matrix of embeddings: equal tokens are equal, others independent."""
    ids = rng.integers(plan.vocabulary, size=plan.context)
    gram = plan.init**2 * (ids[:, None] == ids[None, :]).astype(float)
    if plan.position == "learned":
        gram = gram + plan.init**2 * np.eye(plan.context)
    if plan.position == "sinusoidal":
        gram = gram + _sinusoidal(plan)
    if plan.shares_embedding:
        gram = gram + plan.init**2
    return normed(gram, plan.epsilon)[0] if plan.embedding_norm else gram


def _sinusoidal(plan: Blueprint) -> Array:
    """Return inner products of sines and cosines, which depend on the offset alone."""
    planes = np.arange(plan.width // 2)
    frequencies = 10000.0 ** (-2 * planes / plan.width)
    offsets = np.arange(plan.context)
    kernel_of = np.cos(np.outer(offsets, frequencies)).sum(axis=1) / plan.width
    distances: Array = np.abs(offsets[:, None] - offsets[None, :])
    return kernel_of[distances]


def normed(gram: Array, epsilon: float) -> tuple[Array, Array]:
    """Return the Gram matrix behind a norm, and the size that each token was divided by."""
    sizes = np.sqrt(np.diag(gram) + epsilon)
    return gram / np.outer(sizes, sizes), sizes


def drawn_heads(plan: Blueprint, root: Array, rng: np.random.Generator) -> DrawnHeads:
    """Return some heads of a layer that reads tokens whose Gram matrix has this root."""
    n, r, n_drawn = plan.context, plan.d_head, min(plan.heads, MOST_DRAWS)
    size = math.sqrt(plan.width) * plan.init
    q, k = (size * root @ rng.standard_normal((n_drawn, n, r)) for _ in range(2))
    q_sizes, k_sizes = (np.ones((n_drawn, n, 1)) for _ in range(2))
    if plan.qk_norm:
        lengths = (np.linalg.norm(x, axis=-1, keepdims=True) / math.sqrt(r) for x in (q, k))
        q_sizes, k_sizes = lengths
        q, k = q / q_sizes, k / k_sizes
    if plan.position == "rotary":
        q, k = (_rotated(x, plan) for x in (q, k))
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(r)
    if plan.position == "alibi":
        scores = scores + alibi_bias(plan, n_drawn)
    return DrawnHeads(q=q, k=k, q_sizes=q_sizes, k_sizes=k_sizes, pattern=pattern_of(plan, scores))


def pattern_of(plan: Blueprint, scores: Array) -> Array:
    """Return the softmax of scores, behind the mask."""
    if plan.mask == "causal":
        scores = np.where(np.tri(plan.context, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    pattern: Array = weights / weights.sum(axis=-1, keepdims=True)
    return pattern


def root_of(gram: Array) -> Array:
    """Return a triangular matrix that is the Gram matrix times its transpose.

    Equal tokens make it singular, so a billionth of its mean is added to the diagonal.
    """
    slight = 1e-9 * float(np.diag(gram).mean()) + 1e-300
    root: Array = np.linalg.cholesky(gram + slight * np.eye(len(gram)))
    return root


@cache
def _angles(context: int, half: int, base: float) -> tuple[Array, Array]:
    angles = np.outer(np.arange(context), base ** (-np.arange(half) / half))
    return np.cos(angles), np.sin(angles)


def _rotated(x: Array, plan: Blueprint, *, back: bool = False) -> Array:
    half = plan.d_head // 2
    cos, sin = _angles(plan.context, half, plan.rotary_base)
    sin = -sin if back else sin
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def alibi_bias(plan: Blueprint, n_drawn: int) -> Array:
    """Return what ALiBi adds to the scores of some heads."""
    slopes = np.array(alibi_slopes(plan.heads))
    chosen = slopes[np.linspace(0, plan.heads - 1, n_drawn).round().astype(int)]
    offsets = np.abs(np.arange(plan.context)[:, None] - np.arange(plan.context)[None, :])
    return -chosen[:, None, None] * offsets


def attention(plan: Blueprint, gram: Array, rng: np.random.Generator) -> StackBranch:
    """Return what attention reads and writes."""
    seen, sizes = _read(plan, gram)
    root = root_of(seen)
    drawn = drawn_heads(plan, root, rng)
    mixed = (drawn.pattern @ seen @ drawn.pattern.transpose(0, 2, 1)).mean(axis=0)
    written, out_sizes = _out_norm(plan, _attention_gain(plan) * mixed)
    return StackBranch(
        seen=seen, root=root, written=written, drawn=drawn, sizes=sizes, out_sizes=out_sizes
    )


def mlp(plan: Blueprint, gram: Array, rng: np.random.Generator) -> StackBranch:
    """Return what an MLP reads and writes."""
    seen, sizes = _read(plan, gram)
    correlations, deviation = _correlations(plan, seen)
    inside = kernel(plan.activation, deviation).of(correlations)
    if plan.is_gated:
        inside = inside * deviation**2 * correlations
    written, out_sizes = _out_norm(plan, plan.d_inner * plan.out_std**2 * inside)
    return StackBranch(
        seen=seen, root=None, written=written, drawn=None, sizes=sizes, out_sizes=out_sizes
    )


def _attention_gain(plan: Blueprint) -> float:
    return (plan.width * plan.init**2) * (plan.width * plan.out_std**2)


def _read(plan: Blueprint, gram: Array) -> tuple[Array, Array]:
    """Return what a branch reads: behind a norm, or the stream itself where there is none."""
    if plan.norm in {"post", "none"}:
        return gram, np.ones(len(gram))
    return normed(gram, plan.epsilon)


def _correlations(plan: Blueprint, seen: Array) -> tuple[Array, float]:
    lengths = np.sqrt(np.clip(np.diag(seen), 1e-300, None))
    correlations = np.clip(seen / np.outer(lengths, lengths), -1, 1)
    deviation = math.sqrt(plan.width) * plan.init * float(lengths.mean())
    return correlations, float(f"{deviation:.3g}")  # three digits: kernels are kept by it


def _out_norm(plan: Blueprint, written: Array) -> tuple[Array, Array | None]:
    if plan.norm != "peri":
        return written, None
    normalised, sizes = normed(written, plan.epsilon)
    return plan.residual_scale**2 * normalised, sizes / plan.residual_scale


@dataclass(frozen=True, kw_only=True)
class Step:
    """A branch, and in post-norm models the sizes that the norm behind it divided by."""

    branch: StackBranch
    post_sizes: Array | None
    gram: Array  # of the stream after it


@dataclass(frozen=True, kw_only=True)
class Walk:
    """Gram matrices by depth: in front of each layer and behind the last."""

    grams: list[Array]  # of tokens
    back: list[Array]  # of gradients
    deviations: list[float]  # of the scores of each layer
    log_kept: list[float]  # of the share of the first stream, by the path past all branches


def plain_walk(plan: Blueprint, rng: np.random.Generator) -> Walk:
    """Return how plain attention and MLPs move tokens, and gradients back."""
    first, n = start(plan, rng), plan.n_branches
    walked = list(steps(plan, first, rng))
    streams = [first, *(step.gram for step in walked)]
    kept = [
        log_share(stream, stream + step.branch.written)
        for stream, step in zip(streams[:-1], walked, strict=True)
    ]
    return Walk(
        grams=streams[::n],
        back=gradient(plan, walked, rng)[::n],
        deviations=[_score_deviation(step) for step in walked[::n]],
        log_kept=list(np.cumsum([0.0, *kept]))[::n],
    )


def log_share(before: Array, after: Array) -> float:
    """Return the logarithm of how large the stream was beside what it is with a branch added."""
    return 0.5 * math.log(np.trace(before) / np.trace(after))


def _score_deviation(step: Step) -> float:
    heads = step.branch.drawn
    assert heads is not None
    scores = heads.q @ heads.k.transpose(0, 2, 1) / math.sqrt(heads.q.shape[-1])
    return float(scores.std(axis=-1).mean())


def steps(plan: Blueprint, gram: Array, rng: np.random.Generator) -> Iterator[Step]:
    """Yield attention and MLP of every layer, in order."""
    for _ in range(plan.layers):
        for branch_of in (attention, mlp)[: plan.n_branches]:
            branch = branch_of(plan, gram, rng)
            gram, post = gram + branch.written, None
            if plan.norm == "post":
                gram, post = normed(gram, plan.epsilon)
            gram = bounded(gram)
            yield Step(branch=branch, post_sizes=post, gram=gram)


def bounded(gram: Array) -> Array:
    """Return inner products scaled down to what numbers can hold: without norms they may explode.

    Where that happens sizes stop at `LARGEST_SIZE`.
    """
    largest = float(np.diagonal(gram, axis1=-2, axis2=-1).max())
    return gram * (LARGEST_SIZE**2 / largest) if largest > LARGEST_SIZE**2 else gram


def gradient(plan: Blueprint, walked: list[Step], rng: np.random.Generator) -> list[Array]:
    """Return the Gram matrix of gradients at the stream before each step, and at the end."""
    back = np.eye(plan.context)
    if plan.norm in {"pre", "peri"}:
        sizes = np.sqrt(np.diag(walked[-1].gram) + plan.epsilon)
        back = back / np.outer(sizes, sizes)
    found = [back]
    for step in reversed(walked):
        if step.post_sizes is not None:
            back = back / np.outer(step.post_sizes, step.post_sizes)
        back = bounded(back + _through(plan, step.branch, back, rng))
        found.append(back)
    return found[::-1]


def _through(plan: Blueprint, branch: StackBranch, back: Array, rng: np.random.Generator) -> Array:
    """Return what comes back through a branch."""
    if branch.out_sizes is not None:
        back = back / np.outer(branch.out_sizes, branch.out_sizes)
    if branch.drawn is not None:
        pattern = branch.drawn.pattern
        values = (pattern.transpose(0, 2, 1) @ back @ pattern).mean(axis=0)
        inner = _attention_gain(plan) * values + _through_scores(plan, branch, back, rng)
    else:
        inner = back * mlp_slope(plan, branch)
    return inner / np.outer(branch.sizes, branch.sizes)


def _through_scores(
    plan: Blueprint, branch: StackBranch, back: Array, rng: np.random.Generator
) -> Array:
    """Return what comes back through queries and keys.

    A score's gradient is p_ij (g_i·v_j − Σ_l p_il g_i·v_l), with g and v drawn as they are spread:
    g of covariance d σ_o² times that of gradients, v of d σ² G.
    """
    heads = branch.drawn
    assert heads is not None and branch.root is not None
    shape, r = heads.q.shape, plan.d_head
    g = math.sqrt(plan.width) * plan.out_std * root_of(back) @ rng.standard_normal(shape)
    v = math.sqrt(plan.width) * plan.init * branch.root @ rng.standard_normal(shape)
    products = g @ v.transpose(0, 2, 1)
    mean = (heads.pattern * products).sum(axis=-1, keepdims=True)
    scores = heads.pattern * (products - mean) / math.sqrt(r)
    sides = (
        (scores @ heads.k, heads.q, heads.q_sizes),
        (scores.transpose(0, 2, 1) @ heads.q, heads.k, heads.k_sizes),
    )
    total = np.zeros_like(back)
    for side, read, sizes in sides:
        if plan.qk_norm:
            side = (side - (side * read).sum(axis=-1, keepdims=True) * read / r) / sizes
        if plan.position == "rotary":
            side = _rotated(side, plan, back=True)
        total += (side @ side.transpose(0, 2, 1)).sum(axis=0)
    return plan.init**2 * plan.heads / shape[0] * total


def mlp_slope(plan: Blueprint, branch: StackBranch) -> Array:
    """Return what inner products of gradients are multiplied by on their way through an MLP."""
    correlations, deviation = _correlations(plan, branch.seen)
    found = kernel(plan.activation, deviation)
    slope = found.slope_of(correlations)
    if plan.is_gated:
        slope = slope * deviation**2 * correlations + found.of(correlations)
    gain = plan.d_inner * plan.out_std**2 * plan.width * plan.init**2
    return gain * slope
