"""Head: one attention head as low-rank factors in float64, and what follows from them alone.

Score map and value map are kept as factors, never as d_model x d_model:

    W = w_q w_k^T * scale,   V^T = w_v w_o      (theory section 1)
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens._types import HeadVector, InputWeight, ModelVector, OutputWeight
from orbitlens.errors import InputError
from orbitlens.families.architecture import NormKind, Position, QKNormScope, RotarySpec
from orbitlens.heads.latent import Latent


@dataclass(frozen=True, kw_only=True)
class QKNorm:
    """A normalisation of queries and keys: kept as it is, as it cannot be folded into weights."""

    kind: NormKind
    scope: QKNormScope
    epsilon: float
    q_gain: HeadVector
    k_gain: HeadVector
    q_shift: HeadVector
    k_shift: HeadVector
    q_typical: float  # root mean square of a query, for isotropic tokens
    k_typical: float


@dataclass(frozen=True, kw_only=True)
class Head:
    """One attention head as low-rank factors in float64, acting on what its layer feeds it."""

    w_q: InputWeight
    w_k: InputWeight
    w_v: InputWeight
    w_o: OutputWeight
    b_q: HeadVector
    b_k: HeadVector
    b_v: HeadVector
    scale: float
    layer: int = 0
    index: int = 0
    causal: bool = False
    position: Position = Position.NONE
    window: int | None = None
    rotary: RotarySpec | None = None
    qk_norm: QKNorm | None = None
    softcap: float | None = None
    clip: float | None = None
    alibi_slope: float = 0.0
    q_latent: Latent | None = None  # w_q, b_q are at its typical length
    kv_latent: Latent | None = None  # w_v, b_v are, and w_k, b_k but for what is rotated
    output_gain: ModelVector | None = None  # of a norm on attention's output, at typical length
    norm: NormKind | None = None  # in front of attention; its gain and shift are folded in
    post_norm: bool = False  # whether the stream itself is normalised, behind attention and MLP

    @property
    def d_model(self) -> int:
        """Width of the tokens."""
        return self.w_q.shape[0]

    @property
    def d_head(self) -> int:
        """Width of the head: the largest rank its score and value maps can have."""
        return self.w_q.shape[1]

    @property
    def has_bilinear_scores(self) -> bool:
        """Whether a score is a bilinear form of two tokens, apart from positions."""
        extras = (self.qk_norm, self.softcap, self.clip, self.q_latent, self.kv_latent)
        return all(extra is None for extra in extras)

    @property
    def score_factors(self) -> tuple[InputWeight, InputWeight]:
        """Return (left, right) with W = left @ right.T, the scale included.

        With a norm on queries and keys, or on what they are made of, W is what it is at their
        typical length: exact in direction, a data-dependent positive factor in size.
        """
        norm = self.qk_norm
        if norm is None:
            return self.w_q * self.scale, self.w_k
        left = centred_columns(self.w_q, norm.kind) * (norm.q_gain / norm.q_typical)
        right = centred_columns(self.w_k, norm.kind) * (norm.k_gain / norm.k_typical)
        return left * self.scale, right

    @property
    def value_factors(self) -> tuple[InputWeight, OutputWeight]:
        """Return (w_v, w_o) with V^T = w_v @ w_o, the gain of a norm on the output included."""
        return self.w_v, self.w_o if self.output_gain is None else self.w_o * self.output_gain

    @property
    def score_shift(self) -> ModelVector:
        """Return c, the part of a score that depends on the key alone: score += c . x_j."""
        left_bias = self.b_q * self.scale
        if self.qk_norm is not None:
            left_bias = self.qk_norm.q_shift * self.scale
        return self.score_factors[1] @ left_bias

    @property
    def value_shift(self) -> ModelVector:
        """Return W_O b_V, what the head adds to every token whatever it attends to."""
        return self.b_v @ self.value_factors[1]


def make_head(  # noqa: PLR0913 - a head has four factors
    w_q: InputWeight,
    w_k: InputWeight,
    w_v: InputWeight,
    w_o: OutputWeight,
    *,
    scale: float | None = None,
    causal: bool = False,
    rotary: RotarySpec | None = None,
) -> Head:
    """Return a head made of plain tensors, without biases; `scale` defaults to 1/sqrt(d_head).

    >>> eye = torch.eye(3, dtype=torch.float64)
    >>> make_head(eye, eye, eye, eye, scale=1.0).d_head
    3
    """
    shapes = {tuple(w_k.shape), tuple(w_v.shape), tuple(w_o.T.shape)}
    if w_q.ndim != 2 or shapes != {tuple(w_q.shape)}:
        raise InputError(
            f"w_q has shape {list(w_q.shape)}, w_k {list(w_k.shape)}, w_v {list(w_v.shape)} and "
            f"w_o {list(w_o.shape)}; expected d_model x d_head three times, then d_head x d_model."
        )
    zero = torch.zeros(w_q.shape[1], dtype=torch.float64, device=w_q.device)
    return Head(
        w_q=w_q.double(),
        w_k=w_k.double(),
        w_v=w_v.double(),
        w_o=w_o.double(),
        b_q=zero,
        b_k=zero,
        b_v=zero,
        scale=scale if scale is not None else w_q.shape[1] ** -0.5,
        causal=causal,
        rotary=rotary,
        position=Position.NONE if rotary is None else Position.ROTARY,
    )


def normalised(
    x: Float[Tensor, "*any width"], kind: NormKind, epsilon: float
) -> Float[Tensor, "*any width"]:
    """Return `x` divided by its standard deviation after centring, or by its root mean square."""
    if kind is NormKind.LAYER:
        x = x - x.mean(dim=-1, keepdim=True)
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + epsilon)


def alibi_slopes(n_heads: int, largest: float = 8.0) -> list[float]:
    """Return the slopes of ALiBi (arXiv 2108.12409), in the order its implementations use.

    >>> alibi_slopes(4)
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    power = 1 << (n_heads - 1).bit_length()
    slopes = [2.0 ** (-largest * (i + 1) / power) for i in range(power)]
    return slopes if power == n_heads else (slopes[1::2] + slopes[::2])[:n_heads]


def centred_columns(weight: InputWeight, kind: NormKind) -> InputWeight:
    """Return the weight behind a norm that centres: without its mean over the head's columns."""
    return weight - weight.mean(dim=1, keepdim=True) if kind is NormKind.LAYER else weight
