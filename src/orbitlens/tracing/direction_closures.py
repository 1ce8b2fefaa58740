"""Closures for directions: what heads do to ln(1 - C), from few statistics of another text.

Enters: the tally of a layer on the text to fit on. Leaves: a `PathSums` of the steps that a closure
ascribes to the heads (theory section 7). What each knows of a head, beside its value map V:

    mean            every token gets V mu, mu the mean of what heads see (T8: uniform attention)
    three-points    two shares at each position, how much a token looks at the first token and at
                    itself; the rest goes to V mu. Without a causal mask also at the last token.
    itself          no closure but the ceiling: what was measured on that other text

None knows which tokens are alike, or anything of scores but these shares.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.families.architecture import NormKind
from orbitlens.heads.attention import attention_pattern
from orbitlens.heads.layers import AttentionLayer
from orbitlens.tracing.directions import PathSums, centre
from orbitlens.tracing.tally import LayerTally

Shares = Float[Tensor, "head tokens"]  # of attention, by position of the query


def mean_closure(tally: LayerTally) -> PathSums:
    """Return the steps of uniform attention: V mu for every token."""
    contexts, seen = _tokens(tally)
    nothing = torch.zeros(tally.layer.n_heads, contexts.shape[1], dtype=torch.float64)
    return _path(tally.layer, contexts, seen, {"rest": 1 - nothing})


def three_point_closure(tally: LayerTally) -> PathSums:
    """Return the steps of heads that look at the first token, at themselves, and at the rest."""
    contexts, seen = _tokens(tally)
    layer = tally.layer
    pattern = torch.stack([attention_pattern(layer, u) for u in seen]).mean(dim=0)
    shares = {"first": pattern[..., 0], "itself": pattern.diagonal(dim1=-2, dim2=-1).clone()}
    shares["itself"][:, 0] = 0  # the first token is itself
    if not layer.stack.causal:
        shares["last"] = pattern[..., -1].clone()
        shares["last"][:, -1] = 0
    rest = 1 - torch.stack(list(shares.values())).sum(dim=0)
    return _path(layer, contexts, seen, {**shares, "rest": rest})


def measured_on_it(tally: LayerTally) -> PathSums:
    """Return what was measured on the text that closures are fitted on: the ceiling."""
    return tally.directions.path


DIRECTION_CLOSURES: dict[str, Callable[[LayerTally], PathSums]] = {
    "mean": mean_closure,
    "three-points": three_point_closure,
    "itself": measured_on_it,
}


def _tokens(tally: LayerTally) -> tuple[Tensor, Tensor]:
    """Return the kept contexts of the commonest length, and the same as heads see them."""
    length = tally.kept[0].shape[0]
    contexts = torch.stack([x for x in tally.kept if x.shape[0] == length])
    return contexts, torch.stack([tally.layer.normalise(x) for x in contexts])


def _path(
    layer: AttentionLayer, contexts: Tensor, seen: Tensor, shares: dict[str, Shares]
) -> PathSums:
    """Return the sums of the path along the steps that shares of attention make."""
    looked_at = {
        "first": seen[:, :1].mean(dim=0, keepdim=True).expand_as(seen),
        "last": seen[:, -1:].mean(dim=0, keepdim=True).expand_as(seen),
        "itself": seen,
        "rest": seen.mean(dim=(0, 1), keepdim=True).expand_as(seen),
    }
    steps = []
    for h in range(layer.n_heads):
        head = layer.head(h)
        parts_seen = [share[h][None, :, None] * looked_at[name] for name, share in shares.items()]
        mixed = torch.stack(parts_seen).sum(dim=0)
        w_v, w_o = head.value_factors
        steps.append((mixed @ w_v + head.b_v) @ w_o)
    bias = layer.b_o.expand_as(contexts)
    parts = torch.stack([*steps, bias])
    if layer.stack.norm is NormKind.LAYER:
        contexts, parts = centre(contexts), centre(parts)
    path = PathSums(layer.n_heads + 1)
    path.add(contexts, parts)
    return path
