"""Latent attention: queries, keys and values through a normalised bottleneck (arXiv 2405.04434).

Enters: the stored weights of one layer. Leaves: weights from the bottleneck to each head, and the
bottleneck itself. Its norm divides by a length that depends on the token, so it cannot be folded
into a map; heads hold the maps at typical length, exact in direction, and `Latent` what is needed
to compute with the true length:

    q_i = (typical / |latent of x_i|) (x_i w_q + b_q)

A head's coordinates are [rotated | plain | zeros], so that queries, keys and values have one width
and the rotary encoding turns the first of them. The rotated part of a key comes straight from the
token, one for all heads.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from orbitlens._types import Tokens
from orbitlens.families.architecture import LatentSpec

# Typical lengths that norms divide by are at least this. Their epsilon, left out here, holds true
# lengths above 1e-6; without a floor, weights of 0 or nearly so would give maps of 1e300.
SHORTEST = 1e-10


@dataclass(frozen=True, kw_only=True)
class Latent:
    """A bottleneck of width `rank`; the gain of its norm is part of the weights behind it."""

    w: Float[Tensor, "d_model rank"]  # float64, the norm in front of attention folded in
    b: Float[Tensor, " rank"]
    epsilon: float

    @cached_property
    def typical(self) -> float:
        """Root mean square of the latent, for isotropic tokens."""
        square = (self.w.square().sum() + self.b.square().sum()) / self.b.numel()
        return max(square.item() ** 0.5, SHORTEST)

    def relative_scale(self, tokens: Tokens) -> Float[Tensor, "tokens 1"]:
        """Return typical length over true length, one number a token."""
        latent = tokens @ self.w + self.b
        return self.typical * torch.rsqrt(latent.square().mean(dim=-1, keepdim=True) + self.epsilon)


def query_blocks(weight: Float[Tensor, "out any"], spec: LatentSpec) -> Float[Tensor, "any width"]:
    """Return stored query weights, heads of [plain | rotated], as [rotated | plain | zeros]."""
    heads = weight.unflatten(0, (-1, spec.d_plain + spec.d_rotary))
    plain, rotated = heads.split([spec.d_plain, spec.d_rotary], dim=1)
    return _padded(torch.cat([rotated, plain], dim=1), spec.d_head)


def key_and_value_blocks(
    weight: Float[Tensor, "out rank"], spec: LatentSpec
) -> tuple[Float[Tensor, "rank k_width"], Float[Tensor, "rank v_width"]]:
    """Split stored weights, heads of [plain key | value]; keys are without their rotated part."""
    heads = weight.unflatten(0, (-1, spec.d_plain + spec.d_value))
    keys, values = heads.split([spec.d_plain, spec.d_value], dim=1)
    return _padded(keys, spec.d_head - spec.d_rotary), _padded(values, spec.d_head)


def output_blocks(
    weight: Float[Tensor, "d_model out"], spec: LatentSpec
) -> Float[Tensor, "all d_model"]:
    """Return the stored output weight with rows of zeros where values are padded with zeros."""
    return _padded(weight.T.unflatten(0, (-1, spec.d_value)), spec.d_head).T


def _padded(heads: Float[Tensor, "head width any"], width: int) -> Float[Tensor, "any all"]:
    """Widen every head to `width` with zeros, and lay the heads side by side."""
    return functional.pad(heads, (0, 0, 0, width - heads.shape[1])).flatten(0, 1).T
