"""Steps of heads from shares of attention that were measured on another text.

Enters: the tally of a layer on the text to fit on. Leaves: its kept contexts and what each head is
said to add to every token of them (theory section 7: T8 and three points). Scores are not used.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.heads.attention import attention_pattern
from orbitlens.heads.layers import AttentionLayer
from orbitlens.tracing.heads import seen_tokens
from orbitlens.tracing.position_points import Contexts
from orbitlens.tracing.tally import LayerTally

Steps = Float[Tensor, "head batch tokens d_model"]
ByPosition = Float[Tensor, "head tokens"]


def even_steps(tally: LayerTally) -> tuple[Contexts, Steps]:
    """Return V mu for every token: what uniform attention adds (T8)."""
    contexts = kept_contexts(tally)
    seen = seen_tokens(tally.layer, contexts)
    mean = seen.mean(dim=(0, 1)).expand(tally.layer.n_heads, 1, 1, -1)
    alike = written(tally.layer, mean)  # all tokens get the same: one product serves them
    return contexts, alike.expand(-1, *seen.shape)


def share_steps(tally: LayerTally) -> tuple[Contexts, Steps]:
    """Return what heads add that look at the ends, at themselves, and evenly at the rest."""
    contexts = kept_contexts(tally)
    seen = seen_tokens(tally.layer, contexts)
    shares = AttentionShares.of(tally.layer, seen)
    mean = seen.mean(dim=(0, 1))
    mixed = [shares.pointed(h, seen) + shares.rest[h][:, None] * mean for h in shares.heads]
    return contexts, written(tally.layer, torch.stack(mixed))


def three_point_steps(tally: LayerTally, generator: torch.Generator) -> tuple[Contexts, Steps]:
    """Return what heads add that look at the ends, at themselves, and at the rest unevenly.

    The rest is taken at the mean that attention gives it, and fluctuates about it: with variance
    sum_j p_ij^2 for token i, of which sum_j p_ij p_kj is common to the tokens i and k. Fluctuations
    are those of tokens drawn as often as attention falls on them.
    """
    contexts = kept_contexts(tally)
    seen = seen_tokens(tally.layer, contexts)
    shares = AttentionShares.of(tally.layer, seen)
    mixed = [shares.pointed(h, seen) + shares.uneven_rest(h, seen, generator) for h in shares.heads]
    return contexts, written(tally.layer, torch.stack(mixed))


def kept_contexts(tally: LayerTally) -> Contexts:
    """Return the kept contexts that are as long as the first."""
    length = tally.kept[0].shape[0]
    return torch.stack([x for x in tally.kept if x.shape[0] == length])


def written(layer: AttentionLayer, mixed: Steps) -> Steps:
    """Return what each head writes for the tokens, mixed by attention, that it looked at."""
    parts = []
    for head, looked_at in zip(layer, mixed, strict=True):
        w_v, w_o = head.value_factors
        parts.append((looked_at @ w_v + head.b_v) @ w_o)
    return torch.stack(parts)


@dataclass(frozen=True, kw_only=True)
class AttentionShares:
    """Where heads look, averaged over contexts."""

    first: ByPosition  # share of the first token
    last: ByPosition  # share of the last one; 0 behind a causal mask
    itself: ByPosition
    rest: ByPosition
    concentration: ByPosition  # sum over the rest of p_ij^2
    overlap: Float[Tensor, " head"]  # mean over i != k of the sum over the rest of p_ij p_kj
    falling: Float[Tensor, "head batch tokens"]  # how much attention falls on a token of the rest

    @classmethod
    def of(cls, layer: AttentionLayer, seen: Contexts) -> "AttentionShares":
        """Measure the shares of every head on contexts as heads see them."""
        pattern = torch.stack([attention_pattern(layer, context) for context in seen], dim=1)
        mean = pattern.mean(dim=1)
        first, itself = mean[..., 0].clone(), mean.diagonal(dim1=-2, dim2=-1).clone()
        itself[:, 0] = 0  # the first token is itself
        last = torch.zeros_like(first)
        others = pattern.clone()
        others[..., 0] = 0
        others.diagonal(dim1=-2, dim2=-1).zero_()
        if not layer.stack.causal:
            last[:, :-1] = mean[:, :-1, -1]
            others[..., -1] = 0
        squares, falling = others.square().sum(dim=-1), others.sum(dim=-2)
        n = seen.shape[1]
        pairs = falling.square().sum(dim=-1) - squares.sum(dim=-1)
        return cls(
            first=first,
            last=last,
            itself=itself,
            rest=others.sum(dim=-1).mean(dim=1),
            concentration=squares.mean(dim=1),
            overlap=pairs.mean(dim=1) / (n * (n - 1)),
            falling=falling,
        )

    @property
    def heads(self) -> range:
        """The numbers of the heads."""
        return range(self.first.shape[0])

    def pointed(self, h: int, seen: Contexts) -> Contexts:
        """Return what comes from the ends of a context and from the token itself."""
        ends = {0: self.first[h], -1: self.last[h]}
        at_ends = sum(share[:, None] * seen[:, place].mean(dim=0) for place, share in ends.items())
        return at_ends + self.itself[h][:, None] * seen

    def uneven_rest(self, h: int, seen: Contexts, generator: torch.Generator) -> Contexts:
        """Return the rest at its attended mean, with own and common fluctuations about it."""
        n_contexts, n, _ = seen.shape
        pool, weight = seen.flatten(0, 1), self.falling[h].flatten().abs()
        if not weight.sum() > 0:  # nothing is looked at but ends and itself
            return torch.zeros_like(seen)
        mean = self.falling[h].flatten() @ pool / self.falling[h].sum()
        places = torch.multinomial(
            weight, n_contexts * (n + 1), replacement=True, generator=generator
        )
        gaps = (pool[places] - mean).view(n_contexts, n + 1, -1)
        rest, total = self.rest[h], self.concentration[h]
        common = self.overlap[h] * (rest / rest.mean()).square()
        common = torch.minimum(common.clamp(min=0), total)
        own = (total - common).clamp(min=0)
        fluctuation = own.sqrt()[:, None] * gaps[:, 1:] + common.sqrt()[:, None] * gaps[:, :1]
        return rest[:, None] * mean + fluctuation
