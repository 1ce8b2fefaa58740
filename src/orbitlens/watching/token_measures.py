"""What a small batch of tokens does in a model, layer by layer, while it runs.

Enters: the states of one layer, by hooks. Leaves: `LayerSums`, numbers and small matrices that are
made at once, so that no layer's states outlive it; and with the layer's weights what heads do.
"""

from dataclasses import dataclass
from math import nan
from statistics import fmean

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize

from orbitlens.families.architecture import NormKind, Position, Stack
from orbitlens.heads.attention import attention_output, attention_scores
from orbitlens.heads.head import normalised
from orbitlens.heads.layers import AttentionLayer
from orbitlens.heads.side_by_side import Sample
from orbitlens.running.capture import LayerStates
from orbitlens.theory.clouds import effective_rank, mean_cosine
from orbitlens.tracing.massive import length_ratios
from orbitlens.tracing.streams import split_padding

Real = Bool[Tensor, "batch tokens"]
SAMPLED = 128  # tokens of a reading that are kept for statistics
LONGEST_PATTERN = 256  # tokens of the context whose attention is computed
AGREEING = 0.05  # error of recomputed attention beyond which its sharpness is not told


@dataclass(frozen=True, kw_only=True)
class CloudNumbers:
    """Directions of the tokens at one point of the stream."""

    cosine: float
    effective_rank: float
    direction_rank: float  # the same of tokens scaled to one length


@dataclass(frozen=True, kw_only=True)
class LayerSums:
    """What is kept of one layer's tokens."""

    n_tokens: int  # of the longest context
    before: CloudNumbers
    after: CloudNumbers
    massive: float
    massive_position: int
    longest: float  # of the tokens that enter
    attention_update: float
    block_update: float
    mixed: Float[Tensor, "head d_head d_head"]  # mean of z z^T over tokens, z what a head mixed
    stream: float  # root mean square length of the tokens that enter
    sample: Sample  # tokens as heads see them
    context: Float[Tensor, "tokens d_model"]  # the first one as heads see it
    projected: Float[Tensor, "tokens d_model"]  # what attention wrote there


def layer_sums(stack: Stack, layer: int, states: LayerStates, real: Real | None) -> LayerSums:
    """Return what is kept of a layer's states; padding is left out."""
    blocks = list(_real_blocks(states, real))
    before = torch.cat([x.flatten(0, 1) for x in blocks[0]])
    after = torch.cat([x.flatten(0, 1) for x in blocks[1]])
    attention, mixed, projected = (
        torch.cat([x.flatten(0, 1) for x in block]) for block in blocks[2:]
    )
    seen = _seen(stack, before)
    first = blocks[0][0][0]
    ratios = [length_ratios(x) for x in blocks[1]]
    largest = max(range(len(ratios)), key=lambda k: ratios[k].max().item())
    size = before.norm()
    z = mixed.unflatten(-1, (stack.layers[layer].n_heads, -1)).transpose(0, 1)
    return LayerSums(
        n_tokens=max(x.shape[1] for x in blocks[0]),
        before=_cloud(stack, blocks[0]),
        after=_cloud(stack, blocks[1]),
        massive=ratios[largest].max().item(),
        massive_position=int(ratios[largest].flatten().argmax()) % ratios[largest].shape[1],
        longest=before.norm(dim=-1).max().item(),
        attention_update=(attention.norm() / size.clamp(min=1e-30)).item(),
        block_update=((after - before).norm() / size.clamp(min=1e-30)).item(),
        mixed=(z.mT @ z / z.shape[1]).double(),
        stream=(size / before.shape[0] ** 0.5).item(),
        sample=seen[:: max(1, seen.shape[0] // SAMPLED)][:SAMPLED],
        context=_seen(stack, first)[: _pattern_tokens(stack, first.shape[0])],
        projected=projected[: first.shape[0]][: _pattern_tokens(stack, first.shape[0])],
    )


def _real_blocks(states: LayerStates, real: Real | None) -> list[list[Tensor]]:
    """Return before, after, attention, mixed and projected without padding, in float32."""
    parts = (states.before, states.after, states.attention, states.mixed, states.projected)
    return [[block.float() for block in split_padding(x.detach(), real)] for x in parts]


def _pattern_tokens(stack: Stack, n_tokens: int) -> int:
    # Behind a causal mask the first tokens do not know of the others.
    return min(n_tokens, LONGEST_PATTERN) if stack.causal else n_tokens


def _seen(stack: Stack, x: Sample) -> Sample:
    return x if stack.norm is None else normalised(x, stack.norm, stack.norm_epsilon)


def _cloud(stack: Stack, blocks: list[Tensor]) -> CloudNumbers:
    """Return mean cosine and rank over contexts of two tokens and more (theory section 7)."""
    contexts = [x for block in blocks for x in block if x.shape[0] > 1]
    if stack.norm is NormKind.LAYER:
        contexts = [x - x.mean(dim=-1, keepdim=True) for x in contexts]
    if not contexts:
        return CloudNumbers(cosine=nan, effective_rank=nan, direction_rank=nan)
    few = [x.double()[:SAMPLED] for x in contexts[:2]]
    return CloudNumbers(
        cosine=fmean(mean_cosine(x.double()) for x in contexts),
        effective_rank=fmean(effective_rank(x) for x in few),
        direction_rank=fmean(effective_rank(normalize(x, dim=-1)) for x in few),
    )


# --- with the layer's weights ----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class HeadTokens:
    """What each head of a layer did with the tokens."""

    sharpness: tuple[float, ...]
    largest_score: tuple[float, ...]
    written: tuple[float, ...]


def head_tokens(layer: AttentionLayer, sums: LayerSums, *, attends: bool) -> HeadTokens:
    """Return what heads did; without `attends` only what they wrote."""
    w_o = layer.w_o.double().unflatten(0, (layer.n_heads, -1)).to(sums.mixed)
    squares = (sums.mixed * (w_o @ w_o.mT)).sum(dim=(1, 2)).clamp(min=0)
    written = squares.sqrt() / max(sums.stream, 1e-30)
    nothing = (float("nan"),) * layer.n_heads
    sharpness = largest = nothing
    if attends:
        scores = attention_scores(layer, sums.context.double())
        rows = slice(scores.shape[1] // 2, None)
        weights = scores.softmax(dim=-1)[:, rows]
        sharpness = tuple(weights.square().sum(dim=-1).mean(dim=-1).tolist())
        largest = tuple(scores.flatten(1).amax(dim=1).tolist())
    return HeadTokens(sharpness=sharpness, largest_score=largest, written=tuple(written.tolist()))


def attention_agrees(layer: AttentionLayer, sums: LayerSums) -> bool:
    """Say whether attention recomputed from weights is what the model did with these tokens."""
    if layer.stack.position is Position.DISENTANGLED or layer.stack.fading is not None:
        return False
    again = attention_output(layer, sums.context.double())
    error = (again - sums.projected.double()).norm()
    return bool(error <= AGREEING * sums.projected.double().norm().clamp(min=1e-30))
