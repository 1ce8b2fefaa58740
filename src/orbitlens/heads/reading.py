"""One layer's tensors, by role -> weights in one form: unfused, tokens from the left.

Enters: a `Checkpoint` and a layer's number. Leaves: the fields of an `AttentionLayer`. Transposes,
fused tensors, grouped keys and maps that are computed and not stored are settled here, once.
"""

import math
from typing import Any

import torch
from torch import Tensor

from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.errors import CheckpointError, NotFiniteError
from orbitlens.families.architecture import LatentSpec, Stack
from orbitlens.heads.latent import key_and_value_blocks, output_blocks, query_blocks
from orbitlens.heads.refined import (
    aligned_factors,
    definite_factors,
    n_negative,
    released_factors,
    theorem_factors,
)

# A map has a weight and a gain, up to 1e20 in all; theory multiplies the squares of four maps, and
# the settings' scale: 1e190 and the width's eighth power, which fit a float64.
LARGEST_WEIGHT = 1e10


class LayerReader:
    """Reads the named tensors of one layer; `fields` are those of an `AttentionLayer`."""

    def __init__(
        self, checkpoint: Checkpoint, stack: Stack, index: int, device: torch.device
    ) -> None:
        """Name the layer; nothing is read yet."""
        self.checkpoint, self.stack, self.index, self.device = checkpoint, stack, index, device
        self.names = stack.tensors[index]
        self.spec = stack.layers[index]

    def fields(self) -> dict[str, Any]:
        """Return everything an `AttentionLayer` holds, by name."""
        offset = self.stack.norm_gain_offset
        n, kv = self.spec.n_heads, self.spec.n_kv_heads
        return {
            "index": self.index,
            "stack": self.stack,
            "spec": self.spec,
            "b_o": self._exact("o_bias", default_width=self.stack.d_model),
            "norm_gain": self._gain("norm"),
            "norm_shift": self._optional("norm_bias"),
            "output_gain": self._gain("output_norm"),
            "output_shift": self._optional("output_norm_bias"),
            "q_gains": self._per_block("q_norm", "", n, offset),
            "k_gains": self._per_block("k_norm", "", kv, offset),
            "q_shifts": self._per_block("q_norm", "_bias", n, 0.0),
            "k_shifts": self._per_block("k_norm", "_bias", kv, 0.0),
            "relative_bias": self._relative_bias(),
            "device": self.device,
            **self._projections(),
        }

    def _read(self, name: str) -> Tensor:
        return read_finite(self.checkpoint, name)

    def _exact(self, role: str, default_width: int | None = None) -> Tensor:
        if role not in self.names and default_width is not None:
            return torch.zeros(default_width, dtype=torch.float64, device=self.device)
        return self._read(self.names[role]).to(self.device, torch.float64)

    def _optional(self, role: str) -> Tensor | None:
        return self._exact(role) if role in self.names else None

    def _gain(self, role: str) -> Tensor | None:
        if role not in self.names:
            return None
        return self._exact(role) + self.stack.norm_gain_offset

    def _projections(self) -> dict[str, Any]:
        """Return w_q, w_k, w_v (d_model x width), w_o (width x d_model) and biases, unfused."""
        recipe = self.stack.recipe
        if recipe is not None and recipe != "aligned":
            return self._computed(recipe)
        if self.stack.latent is not None:
            return self._latent_projections(self.stack.latent)
        stored = self._stored_projections()
        if recipe == "aligned":
            gamma = self._read(self.names["alignment"])
            return aligned_factors(stored, gamma, scale=self.spec.scale)
        return stored

    def _computed(self, refinement: str) -> dict[str, Tensor]:
        """Return the maps of a layer that stores what they are made of."""
        inner, out = (self._read(self.names[role]) for role in ("qkv", "o"))
        kind = refinement.partition("-")[0]
        if kind == "theorem":
            score = self._read(self.names["alignment"])
            negative = n_negative(refinement, score.shape[1])
            factors = theorem_factors(inner, score, out, negative=negative)
        else:
            negative = n_negative(refinement, self.stack.d_model)
            make = definite_factors if kind == "definite" else released_factors
            factors = make(inner, out, negative=negative)
        zero = factors["w_q"].new_zeros(factors["w_q"].shape[1])
        return factors | dict.fromkeys(("b_q", "b_k", "b_v"), zero)

    def _latent_projections(self, spec: LatentSpec) -> dict[str, Any]:
        """Return weights behind the bottlenecks, whose gains they take in, and those in front."""
        kv_down, shared = self._in_front("kv_down").split([spec.kv_rank, spec.d_rotary])
        kv_up = self._read(self.names["kv_up"]).double() * self._exact("kv_down_norm")
        w_k, w_v = key_and_value_blocks(kv_up, spec)
        queries: dict[str, Any] = {}
        if "q" in self.names:
            stored = self._read(self.names["q"])
        else:
            stored = self._read(self.names["q_up"]).double() * self._exact("q_down_norm")
            queries["q_down"] = self._with_bias(self._in_front("q_down"))
        w_q = query_blocks(stored, spec)
        return queries | {
            "w_q": w_q,
            "w_k": w_k,
            "w_v": w_v,
            "w_o": output_blocks(self._read(self.names["o"]), spec),
            "b_q": w_q.new_zeros(w_q.shape[1]),
            "b_k": w_k.new_zeros(w_k.shape[1]),
            "b_v": w_v.new_zeros(w_v.shape[1]),
            "kv_down": self._with_bias(kv_down),
            "k_shared": self._with_bias(shared),
        }

    def _in_front(self, role: str) -> Tensor:
        """Return a weight with its bias as a last column."""
        weight = self._read(self.names[role])
        name = self.names.get(f"{role}_bias")
        bias = weight.new_zeros(len(weight)) if name is None else self._read(name).to(weight.dtype)
        return torch.cat([weight, bias[:, None]], dim=1)

    def _with_bias(self, extended: Tensor) -> tuple[Tensor, Tensor]:
        return extended[:, :-1].T, extended[:, -1]

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

    def scores(self) -> tuple[Tensor, Tensor]:
        """Return queries and keys alone, (head, d_model, d_head) in float32, their gains folded."""
        n, kv, r = self.spec.n_heads, self.spec.n_kv_heads, self.stack.d_head
        if "qkv" in self.names:
            parts = self._unfused("qkv", self._in_first(self._read(self.names["qkv"])))[:2]
        else:
            parts = tuple(self._in_first(self._read(self.names[role])) for role in "qk")
        heads = [
            part.float().unflatten(1, (count, r)).transpose(0, 1)
            for part, count in zip(parts, (n, kv), strict=True)
        ]
        offset = self.stack.norm_gain_offset
        gains = (
            self._per_block("q_norm", "", n, offset),
            self._per_block("k_norm", "", kv, offset),
        )
        q, k = (
            w if gain is None else w * gain.float()[:, None, :]
            for w, gain in zip(heads, gains, strict=True)
        )
        return q, k

    def latent_scores(self, spec: LatentSpec) -> tuple[Tensor, Tensor]:
        """Return the rotated part of queries, through their bottleneck, and of the one key."""
        if "q" in self.names:
            stored = self._read(self.names["q"]).float()
        else:
            stored = self._read(self.names["q_up"]).float() * self._exact("q_down_norm").float()
        rotated = stored.unflatten(0, (-1, spec.d_plain + spec.d_rotary))[:, spec.d_plain :]
        if "q_down" in self.names:
            rotated = rotated @ self._read(self.names["q_down"]).float()
        shared = self._read(self.names["kv_down"])[spec.kv_rank :].float()
        return rotated.mT, shared.T[None]

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


def read_finite(checkpoint: Checkpoint, name: str) -> Tensor:
    """Read one tensor, and refuse it where its numbers would make every reading meaningless."""
    value = checkpoint.read(name)
    if value.numel() == 0:
        return value
    low, high = (edge.double().item() for edge in value.aminmax())  # NaN if there is one
    if -LARGEST_WEIGHT <= low and high <= LARGEST_WEIGHT:
        return value
    largest = max(-low, high)
    what = f"a number of size {largest:.0e}, at most {LARGEST_WEIGHT:.0e} can be worked with"
    raise NotFiniteError(
        f"{checkpoint.path}: tensor {name!r} holds "
        f"{what if math.isfinite(largest) else 'NaN or infinity'}. "
        "The checkpoint is damaged or training diverged; no reading of it would mean much."
    )
