"""Position encodings: tables, angles and biases, each a function of position ids.

Enters: position ids and sizes. Leaves: what is added to tokens, turns queries and keys, or is added
to scores. All take ids, so that equal ids take every encoding away (theory S3).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from orbitlens.heads.attention import t5_buckets
from orbitlens.heads.head import alibi_slopes
from orbitlens.heads.rotary import Rotation

Ids = Int[Tensor, "#rows tokens"]  # one row for all contexts of a batch, or one each
KeyIds = Int[Tensor, "#rows keys"]
Angles = tuple[Tensor, Tensor]  # cos and sin, (rows, 1, tokens, d_rotary)


def sinusoidal_table(n_positions: int, d_model: int) -> Float[Tensor, "position d_model"]:
    """Return sines, then cosines, of geometric frequencies (arXiv 1706.03762)."""
    frequency = 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    angle = torch.arange(n_positions, dtype=torch.float64)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


class SinusoidalPositions(nn.Embedding):
    """The fixed table of sinusoidal positions; the model's initialisation fills it."""

    def __init__(self, n_positions: int, d_model: int) -> None:
        """Make a table that is not trained."""
        super().__init__(n_positions, d_model)
        self.weight.requires_grad_(False)

    def table(self) -> Float[Tensor, "position d_model"]:
        """Return what the table must hold."""
        return sinusoidal_table(*self.weight.shape).to(self.weight)


def rotary_angles(ids: Ids, *, d_rotary: int, base: float, dtype: torch.dtype) -> Angles:
    """Return cos and sin of each position's angles; coordinates k and k + d_rotary/2 pair up."""
    # In float32 at the least, as Llama has them: half precision cannot tell far positions apart.
    exact = torch.promote_types(dtype, torch.float32)
    index = torch.arange(0, d_rotary, 2, device=ids.device, dtype=exact)
    angle = ids[:, None, :, None].to(exact) / base ** (index / d_rotary)
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def resolved_angles(ids: Ids, rotation: Rotation, dtype: torch.dtype) -> Angles:
    """Return the same for a scaled encoding: any frequencies, and a factor on what is turned."""
    exact = torch.promote_types(dtype, torch.float32)
    frequencies = rotation.frequencies.to(device=ids.device, dtype=exact)
    angle = ids[:, None, :, None].to(exact) * frequencies
    angle = torch.cat([angle, angle], dim=-1)
    return (angle.cos() * rotation.factor).to(dtype), (angle.sin() * rotation.factor).to(dtype)


def turn(
    x: Float[Tensor, "batch head tokens width"], angles: Angles, *, back: bool = False
) -> Float[Tensor, "batch head tokens width"]:
    """Turn the first coordinates of each head by its token's angles, or back by them."""
    cos, sin = angles
    d_rotary = cos.shape[-1]
    part = x if d_rotary == x.shape[-1] else x[..., :d_rotary]
    first, second = part.chunk(2, dim=-1)
    swapped = torch.cat([-second, first], dim=-1)
    turned = part * cos - swapped * sin if back else part * cos + swapped * sin
    return turned if part is x else torch.cat([turned, x[..., d_rotary:]], dim=-1)


def alibi_bias(
    queries: Ids, keys: KeyIds, *, n_heads: int, dtype: torch.dtype
) -> Float[Tensor, "_ head tokens keys"]:
    """Return -slope |i - j| (arXiv 2108.12409); under a causal mask, BLOOM's bias."""
    slopes = torch.tensor(alibi_slopes(n_heads), dtype=dtype, device=queries.device)
    distance = (queries[:, None, :, None] - keys[:, None, None, :]).abs().to(dtype)
    return -slopes[:, None, None] * distance


def t5_bias(
    queries: Ids,
    keys: KeyIds,
    table: Float[Tensor, "buckets head"],
    *,
    max_distance: int,
    causal: bool,
) -> Float[Tensor, "_ head tokens keys"]:
    """Return T5's learned bias of each offset j - i (arXiv 1910.10683)."""
    buckets = t5_buckets(
        keys[:, None, :] - queries[:, :, None],
        n_buckets=table.shape[0],
        max_distance=max_distance,
        causal=causal,
    )
    return table[buckets].permute(0, 3, 1, 2)
