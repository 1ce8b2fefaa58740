"""What each head's scores do over distance, from its weights and the statistics of short text.

Enters: a model and short contexts. Leaves: a `HeadReach` each. The model is run once on the short
contexts for mean and covariance of what heads see; all else is computed from weights (theory T7).
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from orbitlens.encodings.reach_result import HeadReach
from orbitlens.encodings.stand_in import Ids
from orbitlens.families.architecture import Stack
from orbitlens.heads.head import Head
from orbitlens.heads.layers import AttentionLayer
from orbitlens.heads.rotary import resolve_rotary
from orbitlens.running.capture import LayerStates, capturing
from orbitlens.running.model import Model
from orbitlens.theory.reach import (
    ScoreMoments,
    mean_kernel,
    plane_shares,
    query_kernel,
    score_factors_and_shifts,
    score_moments,
)
from orbitlens.tracing.gaussian_scores import RandomEnergy
from orbitlens.tracing.heads import seen_tokens

N_QUERIES = 8  # tokens that stand for all queries
N_OFFSETS = 32  # at which kernels are kept


def kept_offsets(longest: int) -> list[int]:
    """Return up to `N_OFFSETS` offsets, close together near the token and far apart far back.

    >>> kept_offsets(8)
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    spread = torch.logspace(0, torch.tensor(float(longest)).log10().item(), N_OFFSETS)
    return sorted({round(float(x)) - 1 for x in spread})


def seen_by_layer(model: Model, contexts: Ids) -> list[Tensor]:
    """Return what the heads of each layer of the decoder see, all tokens of short contexts."""
    running = model.running
    stack = running.architecture.stacks[0]
    kept: dict[int, Tensor] = {}

    def sink(of: Stack, layer: int, states: LayerStates) -> None:
        if of.name == stack.name:
            kept[layer] = _seen(running.layer(layer), states)

    with capturing(running.module, running.checkpoint, sink):
        running.module(input_ids=contexts, use_cache=False)
    return [kept[layer] for layer in range(stack.n_layers)]


def _seen(layer: AttentionLayer, states: LayerStates) -> Tensor:
    return seen_tokens(layer, states.before.detach().double()).flatten(0, 1)


def heads_reach(
    model: Model, contexts: Ids, trained: int, lengths: Sequence[int]
) -> Iterator[HeadReach]:
    """Yield what every head does over distance, in contexts of several lengths."""
    for index, tokens in enumerate(seen_by_layer(model, contexts)):
        layer = model.running.layer(index)
        for h in range(layer.n_heads):
            yield reach_of_head(layer, h, tokens, trained=trained, lengths=lengths)


def reach_of_head(
    layer: AttentionLayer, h: int, tokens: Tensor, *, trained: int, lengths: Sequence[int]
) -> HeadReach:
    """Return what one head does over distance, for tokens such as these."""
    head = layer.head(h)
    moments = score_moments(head, tokens.mean(dim=0), torch.cov(tokens.T))
    chosen = torch.linspace(0, len(tokens) - 1, N_QUERIES).round().long()
    left, shift, _, _ = score_factors_and_shifts(head)
    queries = tokens[chosen] @ left + shift
    offsets = torch.tensor(kept_offsets(max(lengths)))
    sharpness, weights = [], {}
    for length in dict.fromkeys((trained, *lengths)):
        kernel = query_kernel(head, moments, queries, torch.arange(length))
        energy = RandomEnergy(kernel.mean, kernel.variance)
        beta, each = energy.frozen()
        weights[length] = each.mean(dim=0)
        if length in lengths:
            sharpness.append(float(energy.sharpness(beta).mean()))
    mean, deviation = mean_kernel(head, moments, offsets)
    longest = weights[max(lengths)]
    periods, shares, unfinished = _planes(head, moments, trained)
    return HeadReach(
        layer=head.layer,
        head=head.index,
        periods=periods,
        shares=shares,
        unfinished=unfinished,
        kernel_mean=tuple(mean.clamp(min=-1e9).tolist()),
        kernel_deviation=tuple(deviation.tolist()),
        attention=tuple(longest[offsets].tolist()),
        sharpness=tuple(sharpness),
        half=int((weights[trained].cumsum(dim=0) < 0.5).sum()) + 1,
        beyond=float(longest[trained:].sum()),
    )


def _planes(
    head: Head,
    moments: ScoreMoments,
    trained: int,
) -> tuple[tuple[float, ...], tuple[float, ...], float | None]:
    if head.rotary is None:
        return (), (), None
    found = plane_shares(moments, resolve_rotary(head.rotary, trained))
    turns = found.periods.isfinite()
    return (
        tuple(found.periods[turns].tolist()),
        tuple(found.shares[turns].tolist()),
        found.unfinished_share(trained),
    )
