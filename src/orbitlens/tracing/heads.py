"""What each head writes to the residual stream, from the states a model computed anyway.

Enters: a layer's weights, and the input of its output map: the heads' mixed values side by side.
Leaves: each head's part of attention's output, or, cheaper, what each part does to pair distances.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.heads.head import normalised
from orbitlens.heads.layers import AttentionLayer


def seen_tokens(
    layer: AttentionLayer, x: Float[Tensor, "*any d_model"]
) -> Float[Tensor, "*any d_model"]:
    """Return tokens as the heads see them: `AttentionLayer.normalise` of any number of contexts."""
    kind = layer.stack.norm
    return x if kind is None else normalised(x, kind, layer.stack.norm_epsilon)


def head_contributions(
    layer: AttentionLayer, mixed: Float[Tensor, "batch tokens heads_width"], *, n_more: int = 0
) -> Float[Tensor, "head batch tokens d_model"]:
    """Return each head's part of the output map's result; with the bias they sum to all of it.

    Behind them is room for `n_more` parts of the caller's: all are too large to be copied.
    """
    n, width = layer.n_heads, layer.stack.d_head
    blocks = mixed.unflatten(-1, (n, width)).permute(2, 0, 1, 3)
    w_o = output_blocks(layer).to(mixed)
    parts = mixed.new_empty(n + n_more, *mixed.shape[:-1], w_o.shape[-1])
    torch.bmm(blocks.flatten(1, 2), w_o, out=parts[:n].flatten(1, 2))
    return parts


def output_blocks(layer: AttentionLayer) -> Float[Tensor, "head d_head d_model"]:
    """Return w_o of every head, float64, without the gain of a norm behind it."""
    return layer.w_o.double().unflatten(0, (layer.n_heads, layer.stack.d_head))


def head_log_changes(
    layer: AttentionLayer,
    *,
    total: float,
    cross: Float[Tensor, "d_model heads_width"],
    mixed: Float[Tensor, "head d_head d_head"],
) -> list[float]:
    """Return ln of the factor by which each head alone changes the mean squared pair distance.

    tr Cov(x + z_h w_o) / tr Cov(x), from tr Cov(x) = `total`, Cov(x, z) = `cross` and Cov(z_h) =
    `mixed`: nothing of size tokens is formed. A norm on attention's output acts on the sum of the
    heads, so a head's part is taken in front of it.
    """
    width = layer.stack.d_head
    changes = []
    for h, w_o in enumerate(output_blocks(layer)):
        here = slice(h * width, (h + 1) * width)
        moved = 2 * (cross[:, here].double() * w_o.T).sum()
        spread = (mixed[h].double() * (w_o @ w_o.T)).sum()
        changes.append(torch.log1p((moved + spread) / total).item())
    return changes
