"""Checkpoint -> heads: the gains of norms are folded in here, once.

Enters: a `Checkpoint`. Leaves: `AttentionLayer` (one layer's weights, still in the file's type) and
`Head` (float64 factors, tokens as rows, the gain of the norm in front folded in). Score map and
value map are kept as factors, never as d_model x d_model:

    W = w_q w_k^T * scale,   V^T = w_v w_o      (theory section 1)

LayerNorm hands attention tokens of mean zero, so whatever a weight does to the direction
(1, ..., 1) never happens: it is projected out here, and readings do not depend on it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens._types import ModelVector, Tokens
from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.errors import CheckpointError, InputError
from orbitlens.families.architecture import (
    LayerSpec,
    NormKind,
    Position,
    QKNormScope,
    Stack,
)
from orbitlens.heads.head import Head, QKNorm, alibi_slopes, centred_columns, normalised
from orbitlens.heads.latent import SHORTEST, Latent
from orbitlens.heads.reading import LayerReader, read_finite

Stored = tuple[Float[Tensor, "d_model _"], Float[Tensor, " _"]]  # in the file's own type


@dataclass(frozen=True, kw_only=True)
class AttentionLayer:
    """One layer's attention weights in the file's own type; `head(h)` unfolds one at a time."""

    index: int
    stack: Stack
    spec: LayerSpec
    w_q: Float[Tensor, "q_input heads_width"]  # from tokens, or from the latent of queries
    w_k: Float[Tensor, "kv_input k_width"]
    w_v: Float[Tensor, "kv_input v_width"]
    w_o: Float[Tensor, "heads_width d_model"]
    b_q: Float[Tensor, " heads_width"]
    b_k: Float[Tensor, " k_width"]
    b_v: Float[Tensor, " v_width"]
    b_o: ModelVector  # float64
    norm_gain: ModelVector | None  # float64, of the norm in front
    norm_shift: ModelVector | None
    output_gain: ModelVector | None
    output_shift: ModelVector | None
    q_gains: Float[Tensor, "head d_head"] | None
    k_gains: Float[Tensor, "kv_head d_head"] | None
    q_shifts: Float[Tensor, "head d_head"] | None
    k_shifts: Float[Tensor, "kv_head d_head"] | None
    relative_bias: Float[Tensor, "buckets head"] | None
    device: torch.device
    # Latent attention: the stored weight and bias in front of w_q, of w_k and w_v, and of the
    # rotated part of keys, which all heads share.
    q_down: Stored | None = None
    kv_down: Stored | None = None
    k_shared: Stored | None = None

    @property
    def n_heads(self) -> int:
        """Number of query heads."""
        return self.spec.n_heads

    @property
    def n_sharing(self) -> int:
        """Number of query heads that share one head of keys and values."""
        return self.spec.n_heads // self.spec.n_kv_heads

    def __iter__(self) -> Iterator[Head]:
        """Unfold the heads one after another; only one is in memory unless the caller keeps it."""
        return (self.head(h) for h in range(self.n_heads))

    @contextmanager
    def unfolded(self) -> Iterator[None]:
        """Within this context every head is unfolded once and kept, in float64; nested ones share.

        For work that asks for the same heads again and again. Beyond it one head at a time is in
        memory, as a scan needs it.
        """
        if "_kept" in self.__dict__:
            yield
            return
        self.__dict__["_kept"] = {}  # as a cached property does it: the layer's fields stay
        try:
            yield
        finally:
            del self.__dict__["_kept"]

    def head(self, h: int) -> Head:
        """Return head `h` as float64 factors with the norm's gain and shift folded in."""
        kept: dict[int, Head] | None = self.__dict__.get("_kept")
        if kept is None:
            return self._unfold(h)
        if h not in kept:
            kept[h] = self._unfold(h)
        return kept[h]

    def _unfold(self, h: int) -> Head:
        group = h // self.n_sharing
        q_latent, kv_latent = self._latents
        (w_q, b_q), (w_v, b_v) = self._block("q", h), self._block("v", group)
        w_k, b_k = self._block("k", group)
        if self.k_shared is not None:
            shared, shift = self._folded(*self.k_shared)
            w_k, b_k = torch.cat([shared, w_k], dim=1), torch.cat([shift, b_k])
        rows = slice(h * self.stack.d_head, (h + 1) * self.stack.d_head)
        head = Head(
            w_q=w_q,
            w_k=w_k,
            w_v=w_v,
            # Turned in memory as the others are: products of thin factors are a quarter faster.
            w_o=self.w_o[rows].to(self.device, torch.float64).contiguous(),
            b_q=b_q,
            b_k=b_k,
            b_v=b_v,
            scale=self.spec.scale,
            layer=self.index,
            index=h,
            causal=self.stack.causal,
            position=self.stack.position,
            window=self.spec.window,
            rotary=self.spec.rotary,
            softcap=self.stack.softcap,
            clip=self.stack.qk_clip,
            alibi_slope=self.alibi_slope(h),
            q_latent=q_latent,
            kv_latent=kv_latent,
            output_gain=self.output_gain,
            norm=self.stack.norm,
            post_norm=self.stack.post_norm,
        )
        return replace(head, qk_norm=self._qk_norm(head, h, group))

    def normalise(self, x: Tokens) -> Tokens:
        """Return the tokens the heads act on: `x` through the norm in front, without its gain."""
        kind = self.stack.norm
        return x if kind is None else normalised(x, kind, self.stack.norm_epsilon)

    def _block(self, role: str, index: int) -> tuple[Tensor, Tensor]:
        """Return weight and bias of one head's queries, keys or values, from tokens to the head."""
        weight, bias = getattr(self, f"w_{role}"), getattr(self, f"b_{role}")
        width = weight.shape[1] // self._n_blocks(role)
        columns = slice(index * width, (index + 1) * width)
        q_latent, kv_latent = self._latents
        latent = q_latent if role == "q" else kv_latent
        if latent is None:
            return self._folded(weight[:, columns], bias[columns])
        up = weight[:, columns].to(self.device, torch.float64) / latent.typical
        return latent.w @ up, latent.b @ up

    def _n_blocks(self, role: str) -> int:
        return self.spec.n_heads if role == "q" else self.spec.n_kv_heads

    @cached_property
    def _latents(self) -> tuple[Latent | None, Latent | None]:
        """The bottlenecks of queries, and of keys and values, the norm in front folded in."""
        return self._latent(self.q_down), self._latent(self.kv_down)

    def _latent(self, stored: Stored | None) -> Latent | None:
        if stored is None or self.stack.latent is None:
            return None
        w, b = self._folded(*stored)
        return Latent(w=w, b=b, epsilon=self.stack.latent.epsilon)

    def _folded(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return a stored weight and bias in float64, the norm in front of attention folded in."""
        w = weight.to(self.device, torch.float64)
        b = bias.to(self.device, torch.float64)
        if self.norm_shift is not None:
            b = b + self.norm_shift @ w
        if self.norm_gain is not None:
            w = self.norm_gain[:, None] * w
        if self.stack.norm is NormKind.LAYER:
            w = w - w.mean(dim=0, keepdim=True)
        return w, b

    def alibi_slope(self, h: int) -> float:
        """Return by how much a token of distance lowers the scores of head `h` (ALiBi)."""
        if self.stack.position is not Position.ALIBI:
            return 0.0
        slopes = alibi_slopes(self.n_heads, self.stack.alibi_max)
        return slopes[h] * self.stack.alibi_scale

    def _qk_norm(self, head: Head, h: int, group: int) -> QKNorm | None:
        kind = self.stack.qk_norm
        if kind is None or self.q_gains is None or self.k_gains is None:
            return None
        zero = torch.zeros_like(head.b_q)
        lengths = self._typical_over_all
        if lengths is None:
            q, k = (head.w_q, head.b_q), (head.w_k, head.b_k)
            lengths = _typical_length(*q, kind), _typical_length(*k, kind)
        return QKNorm(
            kind=kind,
            scope=self.stack.qk_norm_scope,
            epsilon=self.stack.qk_norm_epsilon,
            q_gain=self.q_gains[h],
            k_gain=self.k_gains[group],
            q_shift=self.q_shifts[h] if self.q_shifts is not None else zero,
            k_shift=self.k_shifts[group] if self.k_shifts is not None else zero,
            q_typical=lengths[0],
            k_typical=lengths[1],
        )

    @cached_property
    def _typical_over_all(self) -> tuple[float, float] | None:
        """Typical lengths of queries and keys of all heads at once, where the norm is over all."""
        kind = self.stack.qk_norm
        if kind is None or self.stack.qk_norm_scope is not QKNormScope.ALL:
            return None
        return (
            _typical_length(*self._all_blocks("q"), kind),
            _typical_length(*self._all_blocks("k"), kind),
        )

    def _all_blocks(self, role: str) -> tuple[Tensor, Tensor]:
        blocks = [self._block(role, index) for index in range(self._n_blocks(role))]
        return torch.cat([w for w, _ in blocks], dim=1), torch.cat([b for _, b in blocks])


# --- reading a layer -------------------------------------------------------------------------


def load_layer(
    checkpoint: Checkpoint,
    index: int,
    *,
    stack: str | None = None,
    device: torch.device | str = "cpu",
) -> AttentionLayer:
    """Read one layer's attention weights, and nothing else, from a checkpoint.

    Raises:
        InputError: there is no such layer.
        CheckpointError: a tensor is broken, or holds NaN or infinity.
    """
    tower = checkpoint.stack(stack)
    if not 0 <= index < tower.n_layers:
        raise InputError(
            f"{checkpoint.path}: there is no layer {index}; the {tower.name} has layers 0 to "
            f"{tower.n_layers - 1}."
        )
    if tower.refusal is not None:
        raise CheckpointError(f"{checkpoint.path}: {tower.refusal}. Its heads cannot be read.")
    reader = LayerReader(checkpoint, tower, index, torch.device(device))
    with checkpoint.expecting(tuple(tower.tensors[index].values())):
        return _with_typical_output(AttentionLayer(**reader.fields()))


def _with_typical_output(layer: AttentionLayer) -> AttentionLayer:
    """Divide the gain of a norm on the output by the output's typical length.

    The norm divides by a length that depends on the data; for isotropic tokens and one attended
    token a head it is about (sum_h |V_h|_F^2 / d)^(1/2). Directions and signs do not depend on it.
    """
    if layer.output_gain is None:
        return layer
    total = 0.0
    for head in replace(layer, output_gain=None):
        total += ((head.w_v.T @ head.w_v) * (head.w_o @ head.w_o.T)).sum().item()
    typical = max((total / layer.stack.d_model) ** 0.5, SHORTEST)
    return replace(layer, output_gain=layer.output_gain / typical)


def position_table(
    checkpoint: Checkpoint, *, stack: str | None = None
) -> Float[Tensor, "position d_embedding"]:
    """Return the absolute encodings p_i, one row a position that a token can have.

    Raises:
        InputError: the model has no table of absolute positions.
    """
    tower = checkpoint.stack(stack)
    name = tower.shared_tensors.get("positions")
    if name is None:
        raise InputError(
            f"{checkpoint.path}: no table of absolute positions here; "
            f"this model's position encoding is {tower.position.value!r}."
        )
    table = read_finite(checkpoint, name).to(torch.float64)
    return table.reshape(-1, table.shape[-1])[tower.position_offset :]


# --- small formulas --------------------------------------------------------------------------


def _typical_length(weight: Tensor, bias: Tensor, kind: NormKind) -> float:
    """Return the root mean square of x @ weight + bias over isotropic x, as the norm sees it."""
    w = centred_columns(weight, kind)
    b = bias - bias.mean() if kind is NormKind.LAYER else bias
    square = (w.square().sum() + b.square().sum()) / weight.shape[1]
    return max(square.item() ** 0.5, SHORTEST)
