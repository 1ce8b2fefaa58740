"""Masks, and what positions add to scores: computed once for all layers of a run.

Enters: position ids, a mask in any of the forms transformers knows, the number of cached tokens.
Leaves: a `Given`. Where nothing but the number of tokens matters, it is made once and kept.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from orbitlens.errors import InputError
from orbitlens.heads.rotary import Rotation
from orbitlens.orbit.attention import Given
from orbitlens.orbit.config import OrbitConfig
from orbitlens.orbit.position import (
    Angles,
    alibi_bias,
    resolved_angles,
    rotary_angles,
    t5_bias,
)

KEPT = 16  # lengths of which ready-made angles and biases are kept


@dataclass(frozen=True, kw_only=True)
class Call:
    """Positions and masks of one call of a model."""

    n_tokens: int
    n_past: int = 0
    position_ids: Int[Tensor, "rows tokens"] | None = None
    attention_mask: Tensor | None = None  # (batch, keys) of 0 and 1, or 4-D: boolean or additive
    patterns: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether everything follows from the number of tokens."""
        return self.n_past == 0 and self.position_ids is None and self.attention_mask is None


class Surroundings:
    """Makes a `Given` for each call of one model, and keeps those that will be asked for again."""

    def __init__(self, config: OrbitConfig, relative_bias: nn.Embedding | None) -> None:
        """Read the switches."""
        self.config, self.relative_bias = config, relative_bias
        self._kept: dict[tuple[object, ...], Given] = {}
        self._rotation: Rotation | None = None

    def turn_by(self, rotation: Rotation | None) -> None:
        """Turn queries and keys by other frequencies than the config's; None: by those again."""
        self._rotation = rotation
        self.forget()

    def forget(self) -> None:
        """Drop what is kept: a switch has changed."""
        self._kept.clear()

    def given(self, call: Call, like: Tensor) -> Given:
        """Return what all layers are given in a call; `like` has the device and type of states."""
        if not call.is_plain or self.relative_bias is not None:
            return self._made(call, like)
        key = (call.n_tokens, call.patterns, like.device, like.dtype)
        if key not in self._kept:
            if len(self._kept) >= KEPT:
                self._kept.clear()
            with torch.inference_mode(False):  # what is kept may serve a training step later
                self._kept[key] = self._made(call, like)
        return self._kept[key]

    def _made(self, call: Call, like: Tensor) -> Given:
        queries = self.query_ids(call, like.device)
        keys = self._key_ids(call, queries)
        bias = self._position_bias(queries, keys, like.dtype)
        visible, causal = self._visible(call, like.device), False
        if visible is None and self.config.mask == "causal" and call.n_tokens > 1:
            causal = bias is None and call.n_past == 0
            visible = None if causal else _causal(call, like.device)
        angles = None
        if self.config.position == "rotary":
            angles = self._angles(queries, like.dtype)
        return Given(
            angles=angles,
            bias=_with_mask(bias, visible, like.dtype),
            causal=causal,
            patterns=call.patterns,
        )

    def _angles(self, queries: Tensor, dtype: torch.dtype) -> Angles:
        if self._rotation is not None:
            return resolved_angles(queries, self._rotation, dtype)
        base = float(self.config.rotary_base)
        return rotary_angles(queries, d_rotary=self.config.d_rotary, base=base, dtype=dtype)

    def query_ids(self, call: Call, device: torch.device) -> Int[Tensor, "rows tokens"]:
        """Return the positions of the tokens that are run now."""
        if call.position_ids is not None:
            return call.position_ids
        mask = call.attention_mask
        if mask is not None and mask.ndim == 2:
            return _counted(mask)[:, call.n_past :]
        return torch.arange(call.n_past, call.n_past + call.n_tokens, device=device)[None]

    def _key_ids(self, call: Call, queries: Tensor) -> Tensor:
        if call.n_past == 0:
            return queries
        mask = call.attention_mask
        if mask is not None and mask.ndim == 2:
            return _counted(mask)
        return torch.arange(call.n_past + call.n_tokens, device=queries.device)[None]

    def _position_bias(self, queries: Tensor, keys: Tensor, dtype: torch.dtype) -> Tensor | None:
        if self.config.position == "alibi":
            n_heads = self.config.num_attention_heads
            return alibi_bias(queries, keys, n_heads=n_heads, dtype=dtype)
        if self.relative_bias is None:
            return None
        return t5_bias(
            queries,
            keys,
            self.relative_bias.weight,
            max_distance=self.config.relative_attention_max_distance,
            causal=self.config.mask == "causal",
        )

    def _visible(self, call: Call, device: torch.device) -> Tensor | None:
        """Return an explicit mask, boolean or additive; None where the config's own is enough."""
        mask = call.attention_mask
        if mask is not None and mask.ndim == 4:
            return mask
        own = None
        if self.config.image_size is not None and self.config.mask == "causal":
            own = _class_token_sees_all(call.n_tokens, device)
        if mask is None:
            return own
        if mask.ndim != 2 or mask.shape[1] != call.n_past + call.n_tokens:
            raise InputError(
                f"attention_mask has shape {list(mask.shape)}; expected (batch, "
                f"{call.n_past + call.n_tokens}), cached tokens included, or a 4-D mask."
            )
        padding = mask[:, None, None, :].bool()
        if own is not None:
            return own & padding
        return _causal(call, device) & padding if self.config.mask == "causal" else padding


def _counted(mask: Tensor) -> Tensor:
    return (mask.long().cumsum(dim=-1) - 1).clamp(min=0)


def _causal(call: Call, device: torch.device) -> Bool[Tensor, "1 1 tokens keys"]:
    n_keys = call.n_past + call.n_tokens
    visible = torch.ones(call.n_tokens, n_keys, dtype=torch.bool, device=device)
    return visible.tril(call.n_past)[None, None]


def _class_token_sees_all(n_tokens: int, device: torch.device) -> Bool[Tensor, "1 1 tokens keys"]:
    """Return a causal mask of patches; the class token in front comes last in rank."""
    visible = torch.ones(n_tokens, n_tokens, dtype=torch.bool, device=device).tril()
    visible[0], visible[1:, 0] = True, False
    return visible[None, None]


def _with_mask(bias: Tensor | None, visible: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if visible is None:
        return bias
    if visible.dtype == torch.bool:
        if bias is not None:
            return bias.masked_fill(~visible, torch.finfo(dtype).min)
        # Never -inf: a padded query that sees nothing would turn into NaN.
        zeros = torch.zeros((), dtype=dtype, device=visible.device)
        return zeros.masked_fill(~visible, torch.finfo(dtype).min)
    return visible if bias is None else bias + visible
