"""A model that copies by induction, its weights set by hand: a known answer for induction scores.

Enters: sizes. Leaves: two layers of one head each, without norms and MLPs, in which every number is
a choice. The stream has four parts: token, place, token in front, answer.

    layer 0 (copies)   attends to the previous position, writes that token to "token in front"
    layer 1 (matches)  attends to where "token in front" equals its own token, writes the token
                       there to "answer", which the output reads

This is the two-layer mechanism that arXiv 2409.10559 proves training to find, for chains of order
one. Without the first layer's output the second has nothing to match: the negative control.
"""

import torch

from orbitlens.orbit.config import OrbitConfig
from orbitlens.orbit.language import OrbitForCausalLM

NATS = 40.0  # by which the right token is preferred: softmax is one-hot to rounding
LOGIT = 30.0  # of the answer


def induction_by_hand(
    n_tokens: int = 40, n_positions: int = 80, *, copies: bool = True
) -> OrbitForCausalLM:
    """Return the model, in evaluation mode.

    Args:
        n_tokens: size of the vocabulary.
        n_positions: longest sequence.
        copies: whether the first layer writes the preceding token; False is the control.
    """
    width = 3 * n_tokens + n_positions
    config = OrbitConfig(
        vocab_size=n_tokens,
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=1,
        max_position_embeddings=n_positions,
        position="learned",
        norm="none",
        mlp=False,
    )
    model = OrbitForCausalLM(config)
    token, place, front, answer = _parts(n_tokens, n_positions)
    tokens, places = torch.eye(n_tokens), torch.eye(n_positions)
    one_back = torch.ones(n_positions - 1).diag(1)  # place i asks for place i - 1
    strength = NATS * width**0.5  # attention divides scores by the root of a head's width
    stack, (first, second) = model.model, model.model.layers
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        stack.embed_tokens.weight[:, token] = tokens
        stack.embed_positions.weight[:, place] = places
        q, k, v = first.self_attn.qkv_proj.weight.view(3, width, width)
        q[place, place], k[place, place], v[token, token] = strength * one_back, places, tokens
        if copies:
            first.self_attn.o_proj.weight[front, token] = tokens
        q, k, v = second.self_attn.qkv_proj.weight.view(3, width, width)
        q[token, token], k[token, front], v[token, token] = strength * tokens, tokens, tokens
        second.self_attn.o_proj.weight[answer, token] = tokens
        model.lm_head.weight[:, answer] = LOGIT * tokens
    return model.eval()


def _parts(n_tokens: int, n_positions: int) -> tuple[slice, slice, slice, slice]:
    """Return where token, place, token in front and answer lie in the stream."""
    ends = [n_tokens, n_tokens + n_positions, 2 * n_tokens + n_positions]
    return (
        slice(0, ends[0]),
        slice(ends[0], ends[1]),
        slice(ends[1], ends[2]),
        slice(ends[2], ends[2] + n_tokens),
    )
