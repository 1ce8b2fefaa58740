"""Contexts drawn from a model of directions, and exact attention on them.

Enters: the tally of a layer on the text to fit on. Leaves: contexts whose directions are Gaussian
before they are brought to length one, with lengths drawn from those of the text; and what every
head adds to the tokens of given contexts. Directions and lengths are drawn apart, so that a massive
token makes no direction of its own.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.heads.attention import head_outputs
from orbitlens.heads.layers import AttentionLayer
from orbitlens.theory.maps import matrix_root
from orbitlens.tracing.attention_shares import Steps, kept_contexts
from orbitlens.tracing.directions import unit_directions
from orbitlens.tracing.position_points import Contexts, PositionPoints, relative_size
from orbitlens.tracing.tally import LayerTally

NOTHING = 1e-6  # variance, over the mean one, at a position that always holds one token


def drawn_directions(tally: LayerTally, generator: torch.Generator, *, points: bool) -> Contexts:
    """Return as many contexts as were kept, drawn from mean and covariance of directions.

    Covariances within and between contexts are told apart: 1 - C is the spread within. With
    `points` every position has its own mean, size and lengths: sinks are positions.
    """
    x = tally.directions.as_seen(kept_contexts(tally))
    lengths, y = torch.linalg.vector_norm(x, dim=-1), unit_directions(x)
    mean = y.mean(dim=(0, 1)).expand_as(y[0])
    content = y - mean
    if points:
        placed = PositionPoints.of(y)
        mean, content = placed.mean, placed.content
    shift = content.mean(dim=1)
    within = content - shift[:, None]
    size = relative_size(within) if points else torch.ones(y.shape[1], dtype=torch.float64)
    drawn = _drawn_content(within, size, generator) + _drawn_shifts(shift, size, generator)
    by_position = _drawn_lengths(lengths if points else lengths.flatten()[:, None], y, generator)
    return unit_directions(mean + drawn) * by_position[..., None]


def _drawn_content(
    within: Contexts, size: Float[Tensor, " tokens"], generator: torch.Generator
) -> Contexts:
    """Return independent Gaussian content with one covariance, sized by position."""
    shrink = torch.where(size > NOTHING, size.clamp(min=NOTHING).rsqrt(), 0.0)
    flat = (within * shrink[:, None]).flatten(0, 1)
    root = matrix_root(flat.T @ flat / (flat.shape[0] - len(within)))
    draws = torch.randn(within.shape, generator=generator, dtype=torch.float64)
    return draws @ root.T * size.sqrt()[:, None]


def _drawn_shifts(
    shift: Float[Tensor, "batch width"], size: Float[Tensor, " tokens"], generator: torch.Generator
) -> Contexts:
    """Return what all tokens of a context have in common, Gaussian with its covariance."""
    count = len(shift)
    weights = torch.randn(count, count, generator=generator, dtype=torch.float64)
    common = weights @ shift / count**0.5
    return common[:, None] * size.clamp(max=1).sqrt()[:, None]


def _drawn_lengths(
    pool: Float[Tensor, "some places"], like: Contexts, generator: torch.Generator
) -> Float[Tensor, "batch tokens"]:
    """Return lengths drawn from each place's own, or from all where there is one place."""
    rows = torch.randint(pool.shape[0], like.shape[:2], generator=generator)
    return pool.expand(-1, like.shape[1]).gather(0, rows)


def exact_steps(layer: AttentionLayer, contexts: Contexts) -> Steps:
    """Return what every head adds to tokens; a norm on the output is at its typical length."""
    steps = torch.stack([head_outputs(layer, layer.normalise(x)) for x in contexts], dim=1)
    return steps if layer.output_gain is None else steps * layer.output_gain
