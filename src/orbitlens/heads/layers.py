"""Checkpoint -> heads: transposes, fused tensors, grouped keys and norms settled here, once.

Enters: a `Checkpoint`. Leaves: `AttentionLayer` (one layer's weights, still in the file's type) and
`Head` (float64 factors, tokens as rows, the gain of the norm in front folded in). Score map and
value map are kept as factors, never as d_model x d_model:

    W = w_q w_k^T * scale,   V^T = w_v w_o      (theory section 1)

LayerNorm hands attention tokens of mean zero, so whatever a weight does to the direction
(1, ..., 1) never happens: it is projected out here, and readings do not depend on it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

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
from orbitlens.heads.refined import aligned_factors, definite_factors, n_negative

LARGEST_WEIGHT = 1e30  # products of eight such numbers still fit a float64


@dataclass(frozen=True, kw_only=True)
class AttentionLayer:
    """One layer's attention weights in the file's own type; `head(h)` unfolds one at a time."""

    index: int
    stack: Stack
    spec: LayerSpec
    w_q: Float[Tensor, "d_model heads_width"]
    w_k: Float[Tensor, "d_model kv_width"]
    w_v: Float[Tensor, "d_model kv_width"]
    w_o: Float[Tensor, "heads_width d_model"]
    b_q: Float[Tensor, " heads_width"]
    b_k: Float[Tensor, " kv_width"]
    b_v: Float[Tensor, " kv_width"]
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

    @property
    def n_heads(self) -> int:
        """Number of query heads."""
        return self.spec.n_heads

    def __iter__(self) -> Iterator[Head]:
        """Unfold the heads one after another; only one is in memory unless the caller keeps it."""
        return (self.head(h) for h in range(self.n_heads))

    def head(self, h: int) -> Head:
        """Unfold head `h` into float64 factors with the norm's gain and shift folded in."""
        group = h // (self.spec.n_heads // self.spec.n_kv_heads)
        w_q, b_q = self._folded(self.w_q, self.b_q, h)
        w_k, b_k = self._folded(self.w_k, self.b_k, group)
        w_v, b_v = self._folded(self.w_v, self.b_v, group)
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
            alibi_slope=self._alibi_slope(h),
            output_gain=self.output_gain,
        )
        return replace(head, qk_norm=self._qk_norm(head, h, group))

    def normalise(self, x: Tokens) -> Tokens:
        """Return the tokens the heads act on: `x` through the norm in front, without its gain."""
        kind = self.stack.norm
        return x if kind is None else normalised(x, kind, self.stack.norm_epsilon)

    def _folded(self, weight: Tensor, bias: Tensor, block: int) -> tuple[Tensor, Tensor]:
        columns = slice(block * self.stack.d_head, (block + 1) * self.stack.d_head)
        w = weight[:, columns].to(self.device, torch.float64)
        b = bias[columns].to(self.device, torch.float64)
        if self.norm_shift is not None:
            b = b + self.norm_shift @ w
        if self.norm_gain is not None:
            w = self.norm_gain[:, None] * w
        if self.stack.norm is NormKind.LAYER:
            w = w - w.mean(dim=0, keepdim=True)
        return w, b

    def _alibi_slope(self, h: int) -> float:
        if self.stack.position is not Position.ALIBI:
            return 0.0
        slopes = alibi_slopes(self.n_heads, self.stack.alibi_max)
        return slopes[h] * self.stack.alibi_scale

    def _qk_norm(self, head: Head, h: int, group: int) -> QKNorm | None:
        kind = self.stack.qk_norm
        if kind is None or self.q_gains is None or self.k_gains is None:
            return None
        zero = torch.zeros_like(head.b_q)
        everywhere = self.stack.qk_norm_scope is QKNormScope.ALL
        q = self._all_folded(self.w_q, self.b_q) if everywhere else (head.w_q, head.b_q)
        k = self._all_folded(self.w_k, self.b_k) if everywhere else (head.w_k, head.b_k)
        return QKNorm(
            kind=kind,
            scope=self.stack.qk_norm_scope,
            epsilon=self.stack.qk_norm_epsilon,
            q_gain=self.q_gains[h],
            k_gain=self.k_gains[group],
            q_shift=self.q_shifts[h] if self.q_shifts is not None else zero,
            k_shift=self.k_shifts[group] if self.k_shifts is not None else zero,
            q_typical=_typical_length(*q, kind),
            k_typical=_typical_length(*k, kind),
        )

    def _all_folded(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        blocks = range(weight.shape[1] // self.stack.d_head)
        folded = [self._folded(weight, bias, block) for block in blocks]
        return torch.cat([w for w, _ in folded], dim=1), torch.cat([b for _, b in folded])


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
    return _LayerReader(checkpoint, tower, index, torch.device(device)).layer()


class _LayerReader:
    """Turns the named tensors of one layer into an `AttentionLayer`."""

    def __init__(
        self, checkpoint: Checkpoint, stack: Stack, index: int, device: torch.device
    ) -> None:
        self.checkpoint, self.stack, self.index, self.device = checkpoint, stack, index, device
        self.names = stack.tensors[index]
        self.spec = stack.layers[index]

    def layer(self) -> AttentionLayer:
        weights = self._projections()
        layer = AttentionLayer(
            index=self.index,
            stack=self.stack,
            spec=self.spec,
            b_o=self._exact("o_bias", default_width=self.stack.d_model),
            norm_gain=self._gain("norm"),
            norm_shift=self._exact("norm_bias") if "norm_bias" in self.names else None,
            output_gain=self._gain("output_norm"),
            output_shift=self._exact("output_norm_bias")
            if "output_norm_bias" in self.names
            else None,
            q_gains=self._qk_gains("q_norm", self.spec.n_heads),
            k_gains=self._qk_gains("k_norm", self.spec.n_kv_heads),
            q_shifts=self._qk_shifts("q_norm", self.spec.n_heads),
            k_shifts=self._qk_shifts("k_norm", self.spec.n_kv_heads),
            relative_bias=self._relative_bias(),
            device=self.device,
            **weights,
        )
        return _with_typical_output(layer)

    def _read(self, name: str) -> Tensor:
        return read_finite(self.checkpoint, name)

    def _exact(self, role: str, default_width: int | None = None) -> Tensor:
        if role not in self.names and default_width is not None:
            return torch.zeros(default_width, dtype=torch.float64, device=self.device)
        return self._read(self.names[role]).to(self.device, torch.float64)

    def _gain(self, role: str) -> Tensor | None:
        if role not in self.names:
            return None
        return self._exact(role) + self.stack.norm_gain_offset

    def _projections(self) -> dict[str, Tensor]:
        """Return w_q, w_k, w_v (d_model x width), w_o (width x d_model) and biases, unfused."""
        recipe = self.stack.recipe
        if recipe is not None and recipe.startswith("definite-"):
            return self._definite(recipe)
        stored = self._stored_projections()
        if recipe == "aligned":
            gamma = self._read(self.names["alignment"])
            return aligned_factors(stored, gamma, scale=self.spec.scale)
        return stored

    def _definite(self, refinement: str) -> dict[str, Tensor]:
        score, inverse = (self._read(self.names[role]) for role in ("qkv", "o"))
        negative = n_negative(refinement, self.stack.d_model)
        factors = definite_factors(score, inverse, negative=negative)
        zero = torch.zeros(len(score), dtype=torch.float64)
        return factors | dict.fromkeys(("b_q", "b_k", "b_v"), zero)

    def _stored_projections(self) -> dict[str, Tensor]:
        if "qkv" in self.names:
            parts = self._unfused("qkv", self._in_first(self._read(self.names["qkv"])))
            has_bias = "qkv_bias" in self.names
            biases = (
                self._unfused("qkv_bias", self._read(self.names["qkv_bias"]))
                if has_bias
                else tuple(part.new_zeros(part.shape[-1]) for part in parts)
            )
        else:
            parts = tuple(self._in_first(self._read(self.names[role])) for role in "qkv")
            biases = tuple(
                self._read(self.names[f"{role}_bias"])
                if f"{role}_bias" in self.names
                else part.new_zeros(part.shape[-1])
                for role, part in zip("qkv", parts, strict=True)
            )
        w_o = self._read(self.names["o"])
        named = dict(zip(("w_q", "w_k", "w_v"), parts, strict=True))
        named |= dict(zip(("b_q", "b_k", "b_v"), biases, strict=True))
        named["w_o"] = w_o if self.stack.transposed else w_o.T
        return named

    def _in_first(self, weight: Tensor) -> Tensor:
        return weight if self.stack.transposed else weight.T

    def _unfused(self, role: str, fused: Tensor) -> tuple[Tensor, ...]:
        """Split a fused last axis: "blocks" is q | k | v, "groups" repeats queries, key, value."""
        n, kv, r = self.spec.n_heads, self.spec.n_kv_heads, self.stack.d_head
        if self.stack.recipe == "aligned":
            return fused.chunk(3, dim=-1)
        if self.stack.fused_order == "blocks":
            return fused.split([n * r, kv * r, kv * r], dim=-1)
        grouped = fused.unflatten(-1, (kv, n // kv + 2, r))
        queries, key, value = grouped.split([n // kv, 1, 1], dim=-2)
        return tuple(part.flatten(-3) for part in (queries, key, value))

    def _qk_gains(self, role: str, n_blocks: int) -> Tensor | None:
        return self._per_block(role, "", n_blocks, self.stack.norm_gain_offset)

    def _qk_shifts(self, role: str, n_blocks: int) -> Tensor | None:
        return self._per_block(role, "_bias", n_blocks, 0.0)

    def _per_block(self, role: str, suffix: str, n_blocks: int, offset: float) -> Tensor | None:
        """Return one row a head: of one vector for all, one a head, or one long vector."""
        r = self.stack.d_head
        if f"{role}.0{suffix}" in self.names:
            rows = [self._exact(f"{role}.{h}{suffix}") for h in range(n_blocks)]
            value = torch.cat(rows) + offset
        elif role + suffix in self.names:
            value = self._exact(role + suffix) + offset
            value = value.repeat(n_blocks) if value.numel() == r else value
        else:
            return None
        if value.numel() != n_blocks * r:
            raise CheckpointError(
                f"{self.checkpoint.path}: the norm of queries or keys in layer {self.index} has "
                f"{value.numel()} gains; expected {r} or {n_blocks * r}."
            )
        return value.reshape(n_blocks, r)

    def _relative_bias(self) -> Tensor | None:
        name = self.stack.shared_tensors.get("relative_bias")
        return None if name is None else self._read(name).to(self.device, torch.float64)


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
    typical = max((total / layer.stack.d_model) ** 0.5, 1e-300)
    return replace(layer, output_gain=layer.output_gain / typical)


def read_finite(checkpoint: Checkpoint, name: str) -> Tensor:
    """Read one tensor, and refuse it where its numbers would make every reading meaningless."""
    value = checkpoint.read(name)
    # A sum is NaN or infinite if any term is; only then is it worth a second, exact look.
    if torch.isfinite(value.sum()):
        return value
    largest = value.double().abs().max().item()
    if largest < LARGEST_WEIGHT:
        return value
    what = "numbers too large to multiply" if math.isfinite(largest) else "NaN or infinity"
    raise CheckpointError(
        f"{checkpoint.path}: tensor {name!r} holds {what}. "
        "The checkpoint is damaged or training diverged; no reading of it would mean much."
    )


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
    return max(square.item() ** 0.5, 1e-300)
