"""What others have proposed to watch, measured the slow way on the lab's model.

Enters: a model and a few sequences. Leaves: numbers by name, one a model. Attention is formed in
full.

- max_logit: the largest |q·k|/√r in front of the softmax, over layers, heads, queries and keys
  they see.
- spectral_norm: the largest singular value of any matrix inside a block.
- sign_alignment: after arXiv 2510.04202. Of a map x → W x with right singular vector v of its
  largest singular value, the alignment of a token is cos(x, v); the paper warns when its signs
  lose their diversity. It shows distributions, and how they become one number is our reading: the
  share of positive less the share of negative, without its sign, over tokens; its mean over maps
  (`sign_alignment_max`: the largest over maps).
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from orbitlens.orbit import OrbitForCausalLM
from orbitlens.orbit.attention import split_heads

MAPS = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
NAMES = ("max_logit", "spectral_norm", "sign_alignment", "sign_alignment_max")


@torch.no_grad()
def slow_readings(model: OrbitForCausalLM, ids: Tensor) -> dict[str, float]:
    """Return all readings of a model on a batch; infinite where a number is not finite."""
    inputs = _inputs(model, ids)
    if not all(m.weight.isfinite().all() and x.isfinite().all() for m, x in inputs.items()):
        return dict.fromkeys(NAMES, math.inf)
    found = [
        one_sided(*(torch.stack(each) for each in zip(*maps, strict=True)))
        for maps in ([(m.weight, inputs[m].flatten(0, 1)) for m in _maps(model, n)] for n in MAPS)
    ]
    norms, sides = torch.cat([n for n, _ in found]), torch.cat([s for _, s in found])
    return {
        "max_logit": max(_largest_logit(b.self_attn, inputs) for b in model.model.layers),
        "spectral_norm": norms.max().item(),
        "sign_alignment": sides.mean().item(),
        "sign_alignment_max": sides.max().item(),
    }


def _inputs(model: OrbitForCausalLM, ids: Tensor) -> dict[nn.Linear, Tensor]:
    """Return what enters every map of every block."""
    seen: dict[nn.Linear, Tensor] = {}

    def note(module: Any, args: tuple[Tensor, ...]) -> None:
        seen[module] = args[0]

    hooks = [m.register_forward_pre_hook(note) for name in MAPS for m in _maps(model, name)]
    try:
        model.model(input_ids=ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _maps(model: OrbitForCausalLM, name: str) -> Iterator[nn.Linear]:
    for block in model.model.layers:
        yield block.get_submodule(name)


def one_sided(weights: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the spectral norm of every map, and how one-sided the alignment of its tokens is.

    >>> w = torch.diag(torch.tensor([3.0, 1.0]))[None]
    >>> one_sided(w, torch.tensor([[[1.0, 5.0], [2.0, -5.0], [3.0, 1.0], [-1.0, 0.0]]]))
    (tensor([3.]), tensor([0.5000]))
    """
    _, n_out, n_in = weights.shape
    wide = n_in > n_out
    values, vectors = torch.linalg.eigh(weights @ weights.mT if wide else weights.mT @ weights)
    top = vectors[..., -1:]
    right = weights.mT @ top if wide else top  # W^T u is along v
    return values[:, -1].clamp(min=0).sqrt(), (x @ right).sign().mean(dim=(1, 2)).abs()


def _largest_logit(attention: Any, inputs: dict[nn.Linear, Tensor]) -> float:
    return scores_of(attention, inputs[attention.qkv_proj]).tril().abs().max().item()


def scores_of(attention: Any, x: Tensor) -> Tensor:
    """Return q·k/√r of every head, before any mask; for encodings that leave scores alone."""
    q, k, _ = split_heads(attention.qkv_proj(x), attention.n_heads)
    if attention.has_qk_norm:
        q, k = attention.q_norm(q), attention.k_norm(k)
    return q @ k.mT * attention.d_head**-0.5
