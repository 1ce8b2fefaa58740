"""Local rules: what a synapse may read, and attention done by nothing else.

Enters: queries, keys and values, a token at a time. Leaves: what is read out of weights that only
these rules changed. A rule sees one synapse: the neuron in front of it, the one behind it, and at
most one signal that is broadcast. Two factors make linear attention; a third, which says where to
write now, makes the slots of any attention (arXiv 2410.08711).
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens_papers.on_chip.model import Parts

Weights = Float[Tensor, "*batch post pre"]
Pre = Float[Tensor, "*batch pre"]
Post = Float[Tensor, "*batch post"]
Update = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # weights, pre, post, third


def two_factor(pre: Tensor, post: Tensor) -> Tensor:
    """Return the change of a synapse: what arrives times what is behind it."""
    return pre * post


def three_factor(pre: Tensor, post: Tensor, third: Tensor) -> Tensor:
    """Return the same, where a third signal lets it happen."""
    return third * pre * post


def hebb(weights: Weights, pre: Pre, post: Post, third: Tensor) -> Weights:
    """Return the change of all synapses by two factors; weights and signal are not read."""
    return two_factor(pre[..., None, :], post[..., :, None])


def gated(weights: Weights, pre: Pre, post: Post, third: Tensor) -> Weights:
    """Return the change of all synapses by three factors."""
    return three_factor(pre[..., None, :], post[..., :, None], third)


def delta(weights: Weights, pre: Pre, post: Post, third: Tensor) -> Weights:
    """Return the change by an error, (v - S k) k^T: it needs a whole row of weights at once."""
    error = post - (weights @ pre[..., None])[..., 0]
    return hebb(weights, pre, error, third)


# --- attention by such rules -----------------------------------------------------------------


def by_state(parts: Parts, *, decay: float = 1.0, update: Update = hebb) -> list[Tensor]:
    """Return what all queries read after each token of a context, from a state of two factors."""
    n, _, width = parts.k.shape
    state = parts.v.new_zeros(n, parts.v.shape[-1], width)
    one = parts.v.new_ones(())
    outputs = []
    for t in range(parts.k.shape[1]):
        state = decay * state + update(state, parts.k[:, t], parts.v[:, t], one)
        outputs.append(parts.q @ state.mT)
    return outputs


def by_slots(parts: Parts, sharpness: Tensor, *, decay: float = 1.0) -> list[Tensor]:
    """Return what all queries read after each token from slots written by three factors.

    A token's turn is a signal that is 1 at one slot. Keys and values are weights onto that slot's
    neuron and from it; scores of slots without a turn so far are not read.
    """
    n, n_tokens, width = parts.k.shape
    one = parts.v.new_ones(())
    keys = parts.k.new_zeros(n, n_tokens, width)
    values = parts.v.new_zeros(n, parts.v.shape[-1], n_tokens)
    turns = torch.eye(n_tokens, dtype=parts.k.dtype).expand(n, -1, -1)
    outputs = []
    for t in range(n_tokens):
        slot = turns[:, t]
        keys = decay * keys + gated(keys, parts.k[:, t], slot, one)
        values = decay * values + gated(values, slot, parts.v[:, t], one)
        scores = sharpness * parts.q @ keys.mT
        weights = scores[..., : t + 1].softmax(dim=-1)
        outputs.append(weights @ values.mT[:, : t + 1])
    return outputs


# --- is a rule local? ------------------------------------------------------------------------


def reads_elsewhere(update: Update, generator: torch.Generator, *, width: int, post: int) -> int:
    """Return how many synapses change otherwise once all that is not theirs is changed.

    For synapse (i, j), every other neuron's activity and every other weight is drawn anew; the
    change of (i, j) must stay the same to the last bit.
    """
    before = [torch.randn(size, generator=generator) for size in ((post, width), (width,), (post,))]
    after = [torch.randn(x.shape, generator=generator) for x in before]
    third = torch.rand((), generator=generator)
    change = update(before[0], before[1], before[2], third)
    moved = 0
    for i in range(post):
        for j in range(width):
            other = [x.clone() for x in after]
            other[0][i, j], other[1][j], other[2][i] = before[0][i, j], before[1][j], before[2][i]
            moved += int(update(other[0], other[1], other[2], third)[i, j] != change[i, j])
    return moved
