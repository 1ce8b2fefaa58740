"""Architecture and Checkpoint: what a model is, and where its numbers are.

Enters: nothing (plain data). Leaves: frozen dataclasses that `load.py` fills and `heads.py` reads.
An `Architecture` has one `Stack` per tower of self-attention layers: one for GPT-2 or BERT, two
(encoder, decoder) for T5 and Whisper.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Position(StrEnum):
    """How a model tells positions apart, apart from its mask."""

    NONE = "none"
    LEARNED = "learned"
    SINUSOIDAL = "sinusoidal"
    ROTARY = "rotary"
    ALIBI = "alibi"
    T5_BIAS = "t5-bias"
    DISENTANGLED = "disentangled"  # DeBERTa: content-to-position and position-to-content terms


class Pairing(StrEnum):
    """Which two coordinates of a head a rotary encoding turns together."""

    HALVES = "halves"  # k with k + d_rotary/2: Llama, GPT-NeoX and most others
    NEIGHBOURS = "neighbours"  # 2k with 2k + 1: GPT-J, and Llama in GGUF files

    @property
    def other(self) -> "Pairing":
        """The pairing that this one is mistaken for."""
        return Pairing.NEIGHBOURS if self is Pairing.HALVES else Pairing.HALVES


class NormKind(StrEnum):
    """What a normalisation divides by, and whether it centres first."""

    LAYER = "layer"  # (x - mean) / std
    RMS = "rms"  # x / root mean square


class QKNormScope(StrEnum):
    """Over which coordinates queries and keys are normalised."""

    HEAD = "head"  # within each head, one gain for all heads or one a head
    ALL = "all"  # over all heads at once (OLMo 2)


@dataclass(frozen=True, kw_only=True)
class RotarySpec:
    """A rotary encoding as configured; `orbitlens.heads.rotary` turns it into frequencies."""

    base: float
    d_rotary: int  # how many of the head's coordinates are turned
    d_head: int
    pairing: Pairing
    kind: str = "default"  # transformers' rope_type
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of that kind: factor, ...
    max_positions: int | None = None
    frequency_divisors: tuple[float, ...] | None = None  # per pair, where a file stores them (GGUF)


@dataclass(frozen=True, kw_only=True)
class LatentSpec:
    """Latent attention: queries, and keys with values, come through a normalised bottleneck.

    A head's query and key have a rotated part and a plain one; the rotated part of the key is one
    for all heads and comes straight from the token (arXiv 2405.04434).
    """

    q_rank: int | None  # width of the queries' bottleneck; None: they have none
    kv_rank: int
    d_plain: int  # per head, of queries and keys
    d_rotary: int
    d_value: int
    epsilon: float  # of the norms on the bottlenecks
    names: Mapping[str, str]  # role ("q_down", "kv_up", ...) -> tensor within a layer

    @property
    def d_head(self) -> int:
        """Width of a head as it is read: queries, keys and values padded with zeros to one."""
        return max(self.d_plain + self.d_rotary, self.d_value)


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """What differs from layer to layer."""

    number: int  # in the model, whose layers without attention are counted too
    scale: float  # multiplies query-key products
    rotary: RotarySpec | None = None
    window: int | None = None  # a token sees the last `window` tokens, itself included
    n_heads: int
    n_kv_heads: int


@dataclass(frozen=True, kw_only=True)
class Stack:
    """One tower of self-attention layers, with the names of its tensors filled in."""

    name: str  # "decoder" or "encoder"
    causal: bool
    position: Position
    d_model: int
    d_head: int
    norm: NormKind | None  # the norm in front of attention, None where tokens enter as they are
    norm_epsilon: float
    norm_gain_offset: float  # Gemma stores gain - 1
    output_norm: bool  # a norm on attention's output, before the residual sum
    qk_norm: NormKind | None
    qk_norm_scope: QKNormScope
    qk_norm_epsilon: float
    qk_clip: float | None  # queries, keys and values clamped to [-c, c]
    softcap: float | None  # scores become cap * tanh(score / cap)
    parallel: bool  # attention and MLP read the same input
    alibi_scale: float  # multiplies the standard ALiBi slopes
    alibi_max: float
    t5_max_distance: int
    layers: tuple[LayerSpec, ...]
    tensors: tuple[Mapping[str, str], ...]  # per layer: role ("q", "k", "o_bias", ...) -> file name
    shared_tensors: Mapping[str, str]  # of the whole stack: "positions", "relative_bias"
    fused_order: str | None  # "blocks" or "groups" where one tensor holds q, k and v
    transposed: bool  # weights stored as (in, out): GPT-2's Conv1D
    recipe: str | None = None  # how maps are computed, where the file holds no weights of heads
    fading: float | None = None  # no softmax: scores weigh values, times this a token of distance
    refusal: str | None = None  # why heads cannot be read
    latent: LatentSpec | None = None
    position_offset: int = 0  # rows of the table of positions that no token uses (OPT, RoBERTa)
    post_norm: bool = False  # norms on the stream itself, behind attention and MLP

    @property
    def n_layers(self) -> int:
        """Number of self-attention layers, shared weights counted each time they are used."""
        return len(self.layers)


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What a model is, as far as self-attention goes."""

    family: str
    stacks: tuple[Stack, ...]
    flags: tuple[str, ...] = ()  # what the reading leaves out or approximates, and why

    @property
    def widest(self) -> int:
        """Coordinates of the widest stack's residual stream."""
        return max(stack.d_model for stack in self.stacks)
