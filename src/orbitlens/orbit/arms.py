"""The arms of arXiv 2512.03058, rebuilt from formulas: as released, and as its theorem asks.

Enters: tokens, as for `PlainAttention`. Leaves: what attention adds to each. A *released* layer
holds its signs for the matrices Q K^T and V as they are stored; a *theorem* layer holds them for
the maps that its heads apply to tokens, output map included. Formulas are in `heads/refined.py`,
which a scan reads them with. How the released weights start is not copied: Q starts orthogonal,
the others near the identity.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import Cache

from orbitlens.families.orbit import theorem_rank
from orbitlens.heads.refined import (
    definite_map,
    n_negative,
    released_maps,
    theorem_output,
    theorem_reads,
)
from orbitlens.orbit.attention import (
    BatchTokens,
    Given,
    OrbitAttention,
    PlainAttention,
    attend,
    side_by_side,
)
from orbitlens.orbit.config import OrbitConfig

SMALL_SCORE, UNIT = -2.25, 0.54  # softplus makes about 0.1 and 1 of them


class FreeMatrices(nn.Module):
    """One free matrix a head, one below the other, that a definite map is made of."""

    def __init__(self, n_heads: int, width: int, *, start: float) -> None:
        """Make the matrices; `start` is what their diagonals start at."""
        super().__init__()
        self.n_heads, self.start = n_heads, start
        self.weight = nn.Parameter(torch.empty(n_heads * width, width))

    def per_head(self) -> Float[Tensor, "head d_model d_model"]:
        """Return the matrices."""
        return self.weight.unflatten(0, (self.n_heads, -1))


class ReleasedMaps(nn.Module):
    """Q, and the free matrices behind W = Q K^T and the alignment: one below the other."""

    def __init__(self, width: int, *, negative: int) -> None:
        """Make the matrices; `negative` directions of the alignment are."""
        super().__init__()
        self.negative = negative
        self.weight = nn.Parameter(torch.empty(3 * width, width))

    @property
    def started(self) -> Float[Tensor, "stacked d_model"]:
        """Where weights start, from what was drawn: Q orthogonal, D of both others at 1."""
        query, score, alignment = self.weight.chunk(3)
        unit = torch.full_like(query.diagonal(), UNIT)
        free = (torch.diagonal_scatter(part, unit) for part in (score, alignment))
        return torch.cat([torch.linalg.qr(query)[0], *free])

    def forward(self, x: BatchTokens) -> Float[Tensor, "batch tokens fused"]:
        """Return queries, keys and values side by side, as a fused projection does."""
        maps = released_maps(*self.weight.chunk(3), negative=self.negative)
        return x @ torch.cat(maps).T


class ReleasedAttention(PlainAttention):
    """One d x d map each for queries, keys and values, cut into heads; the output map is free.

    As many parameters as a plain layer.
    """

    def __init__(self, config: OrbitConfig) -> None:
        """Make a plain layer whose projections are computed."""
        super().__init__(config)
        width = config.hidden_size
        self.qkv_proj = ReleasedMaps(  # type: ignore[assignment]
            width, negative=n_negative(config.refinement, width)
        )


class TheoremAttention(OrbitAttention):
    """Heads of rank r with sym(W) > 0 on what they read and sym(W V^+) of chosen signs.

    A head reads u = x U, scores u M u^T and writes through U N U^T U M: keys are values. With four
    heads of half the model's width a layer has the parameters of a plain one.
    """

    def __init__(self, config: OrbitConfig) -> None:
        """Make what heads read with, and the free matrices of M and N."""
        super().__init__()
        width, self.n_heads = config.hidden_size, config.num_attention_heads
        self.rank = theorem_rank(width, self.n_heads)
        self.reading_map = nn.Linear(width, self.n_heads * self.rank, bias=False)
        self.score_form = FreeMatrices(self.n_heads, self.rank, start=SMALL_SCORE)
        negative = n_negative(config.refinement, self.rank)
        self.value_map = TheoremOutput(self.n_heads, self.rank, negative=negative)

    def forward(
        self, x: BatchTokens, given: Given, cache: Cache | None = None, layer: int = 0
    ) -> tuple[BatchTokens, Tensor | None]:
        """Return what attention adds to each token, and the pattern or None."""
        reads = theorem_reads(self.reading_map.weight, self.rank)
        u = x[:, None] @ reads
        score = definite_map(self.score_form.per_head())
        keys = u
        if cache is not None:
            keys, _ = cache.update(u, u[..., :0], layer)
        mixed, pattern = attend(u @ score, keys, keys, given)
        return self.value_map(side_by_side(mixed), reads, score), pattern


class TheoremOutput(FreeMatrices):
    """The output map of a theorem layer; its weight is what N is made of."""

    def __init__(self, n_heads: int, rank: int, *, negative: int) -> None:
        """Make the matrices; `negative` directions of N are."""
        super().__init__(n_heads, rank, start=UNIT)
        self.negative = negative

    def forward(
        self,
        mixed: Float[Tensor, "batch tokens heads_rank"],
        reads: Float[Tensor, "head d_model rank"],
        score: Float[Tensor, "head rank rank"],
    ) -> BatchTokens:
        """Return the sum over heads of (P x U) (U N G M)^T, G = U^T U."""
        value = definite_map(self.per_head(), negative=self.negative)
        return mixed @ theorem_output(reads, score, value).mT.flatten(0, 1)
