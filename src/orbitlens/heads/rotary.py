"""Rotary position encodings: frequencies of every scaling type, and rotations of a head.

Enters: a `RotarySpec`. Leaves: angles and the d_head x d_head matrix T(m) with which the score of
tokens at offset m = i - j is q_i T(m) k_j (theory section 1; arXiv 2104.09864). Scaling types:
linear and dynamic NTK, YaRN (arXiv 2309.00071), LongRoPE (arXiv 2402.13753), Llama 3, proportional.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens._types import HeadMatrix
from orbitlens.errors import CheckpointError
from orbitlens.families.architecture import Pairing, RotarySpec


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """A rotary encoding resolved for one context length."""

    frequencies: Float[Tensor, " pair"]  # radians a token, zero where a pair is not turned
    factor: float  # multiplies cosines and sines, so scores carry its square
    pairing: Pairing
    d_head: int


def resolve_rotary(spec: RotarySpec, n_context: int) -> Rotation:
    """Return the frequencies that a context of `n_context` tokens is turned with.

    Only the dynamic and the LongRoPE types depend on the length; the others ignore it.
    """
    plain = spec.base ** -(torch.arange(0, spec.d_rotary, 2, dtype=torch.float64) / spec.d_rotary)
    frequencies, factor = _SCALINGS[spec.kind](spec, plain, n_context)
    if spec.frequency_divisors is not None:
        divisors = torch.tensor(spec.frequency_divisors, dtype=torch.float64)
        frequencies = _same_length(frequencies, divisors) / divisors
    return Rotation(
        frequencies=frequencies, factor=factor, pairing=spec.pairing, d_head=spec.d_head
    )


# --- scaling types ---------------------------------------------------------------------------


def _default(spec: RotarySpec, plain: Tensor, n_context: int) -> tuple[Tensor, float]:
    return plain, 1.0


def _linear(spec: RotarySpec, plain: Tensor, n_context: int) -> tuple[Tensor, float]:
    return plain / spec.parameters["factor"], 1.0


def _proportional(spec: RotarySpec, plain: Tensor, n_context: int) -> tuple[Tensor, float]:
    turned = int(spec.parameters.get("partial_rotary_factor", 1.0) * spec.d_head // 2)
    frequencies = torch.where(torch.arange(plain.numel()) < turned, plain, 0.0)
    return frequencies / spec.parameters.get("factor", 1.0), 1.0


def _dynamic(spec: RotarySpec, plain: Tensor, n_context: int) -> tuple[Tensor, float]:
    trained = spec.max_positions or n_context
    factor, width = spec.parameters["factor"], spec.d_rotary
    stretch = factor * max(n_context, trained) / trained - (factor - 1)
    base = spec.base * stretch ** (width / (width - 2))
    exponents = torch.arange(0, width, 2, dtype=torch.float64) / width
    return base**-exponents, 1.0


def _yarn(spec: RotarySpec, plain: Tensor, n_context: int) -> tuple[Tensor, float]:
    p = spec.parameters
    trained = p["original_max_position_embeddings"]
    factor = p.get("factor") or (spec.max_positions or trained) / trained
    ramp = _yarn_ramp(spec, trained)
    frequencies = plain / factor * ramp + plain * (1 - ramp)
    return frequencies, _yarn_attention_factor(p, factor)


def _yarn_ramp(spec: RotarySpec, trained: int) -> Tensor:
    """Return 0 for pairs that turn often within the trained length, 1 for those that hardly do."""
    p, width = spec.parameters, spec.d_rotary

    def pair_of(turns: float) -> float:
        return width * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(spec.base))

    low, high = pair_of(float(p.get("beta_fast") or 32)), pair_of(float(p.get("beta_slow") or 1))
    if p.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    high = high if high != low else high + 0.001
    index = torch.arange(width // 2, dtype=torch.float64)
    return ((index - low) / (high - low)).clamp(0, 1)


def _yarn_attention_factor(p: Mapping[str, Any], factor: float) -> float:
    if p.get("attention_factor") is not None:
        return float(p["attention_factor"])

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if p.get("mscale") and p.get("mscale_all_dim"):
        return magnitude(p["mscale"]) / magnitude(p["mscale_all_dim"])
    return magnitude(1.0)


def _longrope(spec: RotarySpec, plain: Tensor, n_context: int) -> tuple[Tensor, float]:
    p = spec.parameters
    trained = p["original_max_position_embeddings"]
    key = "long_factor" if n_context > trained else "short_factor"
    divisors = torch.tensor(p[key], dtype=torch.float64)
    attention_factor = p.get("attention_factor")
    if attention_factor is None:
        factor = p.get("factor") or (spec.max_positions or trained) / trained
        grown = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
        attention_factor = grown
    return _same_length(plain, divisors) / divisors, float(attention_factor)


def _llama3(spec: RotarySpec, plain: Tensor, n_context: int) -> tuple[Tensor, float]:
    p = spec.parameters
    trained, low, high = (
        p["original_max_position_embeddings"],
        p["low_freq_factor"],
        p["high_freq_factor"],
    )
    turns = trained * plain / (2 * math.pi)  # full turns within the trained length
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * plain / p["factor"] + smooth * plain, 1.0


_SCALINGS = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "proportional": _proportional,
}


def _same_length(frequencies: Tensor, divisors: Tensor) -> Tensor:
    if divisors.shape != frequencies.shape:
        raise CheckpointError(
            f"the rotary encoding has {frequencies.numel()} pairs and {divisors.numel()} factors; "
            "expected one factor a pair. The config and the weights are not of the same model."
        )
    return frequencies


# --- rotations -------------------------------------------------------------------------------


def rotation_matrix(rotation: Rotation, offset: float) -> HeadMatrix:
    """Return T(m), with which the score at offset m = i - j is q_i T(m) k_j."""
    angles = rotation.frequencies * offset
    return blocks_to_matrix(rotation, angles.cos(), angles.sin())


def mean_rotation(
    rotation: Rotation, n_context: int, *, causal: bool, window: int | None = None
) -> HeadMatrix:
    """Return the average of T(m) over the offsets that uniform attention sees in a context.

    Causal: m = 0 ... N-1, seen from the last token. Full: all N^2 pairs of tokens. Either way only
    offsets within the window count. Fast planes average to nothing, slow ones survive.
    """
    half = rotation.frequencies / 2
    seen = min(n_context, window or n_context)
    if causal:
        size = _dirichlet(half, seen) / seen
        middle = (seen - 1) * half  # the average angle
        return blocks_to_matrix(rotation, size * middle.cos(), size * middle.sin())
    # sum over |m| < seen of (N - |m|) cos(m theta), over its value at theta = 0
    total = (n_context - seen) * _dirichlet(half, 2 * seen - 1) + _dirichlet(half, seen).square()
    cosine = total / ((n_context - seen) * (2 * seen - 1) + seen**2)
    return blocks_to_matrix(rotation, cosine, torch.zeros_like(cosine))


def _dirichlet(half: Float[Tensor, " pair"], count: int) -> Float[Tensor, " pair"]:
    """Return sin(count h) / sin(h): the sum of `count` equally turned unit vectors, 2h apart."""
    below = torch.sin(half)
    still = below.abs() < 1e-12  # a plane that is not turned, or by full circles
    ratio = torch.sin(count * half) / torch.where(still, 1.0, below)
    return torch.where(still, float(count), ratio)


def blocks_to_matrix(
    rotation: Rotation, cosine: Float[Tensor, " pair"], sine: Float[Tensor, " pair"]
) -> HeadMatrix:
    """Return the matrix whose plane k is [[c_k, s_k], [-s_k, c_k]], times the squared factor."""
    first, second = plane_indices(rotation)
    matrix = torch.eye(rotation.d_head, dtype=torch.float64)
    matrix[first, first] = matrix[second, second] = cosine * rotation.factor**2
    matrix[first, second] = sine * rotation.factor**2
    matrix[second, first] = -sine * rotation.factor**2
    return matrix


def plane_indices(rotation: Rotation) -> tuple[Int[Tensor, " pair"], Int[Tensor, " pair"]]:
    """Return the first and second coordinate of each plane."""
    return plane_members(rotation.pairing, 2 * rotation.frequencies.numel())


def plane_members(
    pairing: Pairing, width: int
) -> tuple[Int[Tensor, " pair"], Int[Tensor, " pair"]]:
    """Return the two coordinates of each plane among the first `width` of a head."""
    pairs = torch.arange(width // 2)
    if pairing is Pairing.HALVES:
        return pairs, pairs + pairs.numel()
    return 2 * pairs, 2 * pairs + 1


@dataclass(frozen=True)
class Turning:
    """How every coordinate of every token's vector turns: x -> x * cosine + x[partner] * sine."""

    cosine: Float[Tensor, "tokens d_head"]  # 1 where a coordinate does not turn
    sine: Float[Tensor, "tokens d_head"]  # with its sign
    partner: Int[Tensor, " d_head"]

    @classmethod
    def of(cls, rotation: Rotation, n_tokens: int, d_head: int) -> "Turning":
        """Tabulate the turns of `n_tokens` vectors of width `d_head`."""
        positions = torch.arange(n_tokens, dtype=torch.float64)
        angles = positions[:, None] * rotation.frequencies.cpu()
        first, second = plane_indices(rotation)
        cosine, sine = angles.new_ones(n_tokens, d_head), angles.new_zeros(n_tokens, d_head)
        cosine[:, first] = cosine[:, second] = angles.cos() * rotation.factor
        sine[:, second] = angles.sin() * rotation.factor
        sine[:, first] = -sine[:, second]
        partner = torch.arange(d_head)
        partner[first], partner[second] = second, first
        return cls(cosine, sine, partner)

    def to(self, like: Tensor) -> "Turning":
        """Return the tables in the type and on the device of `like`."""
        return Turning(self.cosine.to(like), self.sine.to(like), self.partner.to(like.device))

    def __call__(
        self, vectors: Float[Tensor, "*any tokens d_head"]
    ) -> Float[Tensor, "*any tokens d_head"]:
        """Turn the vectors."""
        turned = vectors.index_select(-1, self.partner)
        return torch.addcmul(vectors * self.cosine, turned, self.sine)


def rotate(
    vectors: Float[Tensor, "*any tokens d_head"], rotation: Rotation
) -> Float[Tensor, "*any tokens d_head"]:
    """Turn the vector of token i by i times the frequencies: queries and keys before their product.

    >>> spec = RotarySpec(base=100.0, d_rotary=4, d_head=4, pairing=Pairing.HALVES)
    >>> turned = rotate(torch.ones(3, 4, dtype=torch.float64), resolve_rotary(spec, 3))
    >>> bool(torch.allclose(turned.norm(dim=-1), torch.full((3,), 2.0, dtype=torch.float64)))
    True
    """
    return Turning.of(rotation, *vectors.shape[-2:]).to(vectors)(vectors)
