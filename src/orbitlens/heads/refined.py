"""Attention layers whose maps are not stored but computed: from raw parameters to head factors.

Enters: the parameters of a refined layer (theory section 6). Leaves: the maps they stand for. The
lab computes with these functions when it trains, and `heads.py` when it reads a file, so that a
scan never mistakes parameters for maps.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

FLOOR = 1e-3  # of the entries of D: a definite map stays away from singular ones
NEGATIVE_SHARE = {"positive": 0.0, "half": 0.5, "negative": 1.0}
Free = Float[Tensor, "*head d_model d_model"]
Factors = dict[str, Tensor]


def n_negative(refinement: str, d_model: int) -> int:
    """Return how many directions of the alignment an arm such as "definite-half" has negative."""
    return int(NEGATIVE_SHARE[refinement.rpartition("-")[2]] * d_model)


def definite_map(free: Free, *, negative: int = 0) -> Free:
    """Return L D L^T + S, a map whose symmetric part has `negative` negative directions.

    One free matrix a head holds all: below its diagonal L (ones on L's own), on it D = softplus,
    the first `negative` entries with a minus sign, above it the antisymmetric part S.
    """
    eye = torch.eye(free.shape[-1], dtype=free.dtype, device=free.device)
    lower = free.tril(-1) + eye
    skew = free.triu(1)
    diagonal = functional.softplus(free.diagonal(dim1=-2, dim2=-1)) + FLOOR
    sign = torch.ones_like(diagonal)
    sign[..., :negative] = -1
    return (lower * (sign * diagonal)[..., None, :]) @ lower.mT + skew - skew.mT


def definite_maps(score: Free, inverse: Free, *, negative: int) -> tuple[Free, Free]:
    """Return W (unscaled) and V of definite heads: sym(W) > 0, and sym(W V^-1) of chosen signs.

    V = A^-1 W, and A^-1 is what is parametrised: sym(A^-1) = A^-1 sym(A) A^-T has the signs of
    sym(A), so no linear system need be solved, and none can be singular.
    """
    w = definite_map(score)
    return w, definite_map(inverse, negative=negative) @ w


def definite_factors(
    score: Float[Tensor, "stacked d_model"],
    inverse: Float[Tensor, "stacked d_model"],
    *,
    negative: int,
) -> Factors:
    """Return w_q, w_k, w_v, w_o of heads as wide as the model: W, 1, 1 and V^T, side by side."""
    d_model = score.shape[1]
    w, v = definite_maps(
        score.double().unflatten(0, (-1, d_model)),
        inverse.double().unflatten(0, (-1, d_model)),
        negative=negative,
    )
    ones = torch.eye(d_model, dtype=torch.float64).repeat(1, len(w))
    return {"w_q": torch.cat(list(w), dim=1), "w_k": ones, "w_v": ones, "w_o": v.mT.flatten(0, 1)}


def released_maps(
    query: Float[Tensor, "d_model d_model"],
    score: Float[Tensor, "d_model d_model"],
    alignment: Float[Tensor, "d_model d_model"],
    *,
    negative: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return Q, K, V of a layer as weights of linear maps, of which tokens see the transposes.

    K^T = Q^-1 W and V = A^-1 W, so that Q K^T = W has a positive symmetric part and W V^-1 = A one
    of chosen signs. What scores tokens is Q^T K = Q^T W^T Q^-T.
    """
    w = definite_map(score)
    a = definite_map(alignment, negative=negative)
    return query, torch.linalg.solve(query, w).mT, torch.linalg.solve(a, w)


def released_factors(
    stacked: Float[Tensor, "stacked d_model"],
    out: Float[Tensor, "d_model d_model"],
    *,
    negative: int,
) -> Factors:
    """Return w_q, w_k, w_v, w_o of a released layer, to be cut into heads."""
    query, key, value = released_maps(*stacked.double().chunk(3), negative=negative)
    return {"w_q": query.mT, "w_k": key.mT, "w_v": value.mT, "w_o": out.double().mT}


def theorem_reads(
    stacked: Float[Tensor, "stacked d_model"], rank: int
) -> Float[Tensor, "head d_model rank"]:
    """Return U of each head, the constant direction left out.

    A LayerNorm in front takes that direction away; were it in U, what a head reads and what it
    writes to would differ, and the signs would not survive the norm.
    """
    return (stacked - stacked.mean(dim=1, keepdim=True)).unflatten(0, (-1, rank)).mT


def theorem_output(
    reads: Float[Tensor, "head d_model rank"],
    score: Float[Tensor, "head rank rank"],
    value: Float[Tensor, "head rank rank"],
) -> Float[Tensor, "head d_model rank"]:
    """Return O = U N G M of each head, G = U^T U, so that V = O U^T = (U N U^T) W.

    V^T W = (G M U^T)^T N^T (G M U^T): the alignment has the signs of sym(N), whatever U and M are.
    """
    return reads @ value @ (reads.mT @ reads) @ score


def theorem_factors(
    reads: Float[Tensor, "stacked d_model"],
    score: Float[Tensor, "stacked rank"],
    value: Float[Tensor, "stacked rank"],
    *,
    negative: int,
) -> Factors:
    """Return w_q, w_k, w_v, w_o of a theorem layer: U M, U, U and (U N G M)^T, side by side."""
    rank = score.shape[1]
    u = theorem_reads(reads.double(), rank)
    m = definite_map(score.double().unflatten(0, (-1, rank)))
    n = definite_map(value.double().unflatten(0, (-1, rank)), negative=negative)
    read = torch.cat(list(u), dim=1)
    return {
        "w_q": torch.cat(list(u @ m), dim=1),
        "w_k": read,
        "w_v": read,
        "w_o": theorem_output(u, m, n).mT.flatten(0, 1),
    }


def aligned_factors(plain: Factors, alignment: Float[Tensor, " head"], *, scale: float) -> Factors:
    """Return the factors of V + softplus(gamma_h) W: heads of twice the width, scores as before.

    Queries and keys are padded with zeros; values are [values, keys], read out by [w_o, g W_Q].
    """
    n_heads = len(alignment)
    gain = functional.softplus(alignment.double()) * scale
    q, k, v = (_blocks(plain[name], n_heads, dim=-1) for name in ("w_q", "w_k", "w_v"))
    o = plain["w_o"].double().unflatten(0, (n_heads, -1))
    b_q, b_k, b_v = (_blocks(plain[name], n_heads, dim=-1) for name in ("b_q", "b_k", "b_v"))
    read_out = torch.cat([o, gain[:, None, None] * q.permute(1, 2, 0)], dim=1)
    return {
        "w_q": torch.cat([q, torch.zeros_like(q)], dim=-1).flatten(1),
        "w_k": torch.cat([k, torch.zeros_like(k)], dim=-1).flatten(1),
        "w_v": torch.cat([v, k], dim=-1).flatten(1),
        "w_o": read_out.flatten(0, 1),
        "b_q": torch.cat([b_q, torch.zeros_like(b_q)], dim=-1).flatten(),
        "b_k": torch.cat([b_k, torch.zeros_like(b_k)], dim=-1).flatten(),
        "b_v": torch.cat([b_v, b_k], dim=-1).flatten(),
    }


def _blocks(weight: Tensor, n_heads: int, *, dim: int) -> Tensor:
    return weight.double().unflatten(dim, (n_heads, -1))
