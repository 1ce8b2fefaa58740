"""Refined attention layers (theory section 6): each one class, a drop-in for the plain layer.

Enters: tokens, as for `PlainAttention`. Leaves: what attention adds to each. "guard", "guard-data"
and "anti" are plain layers whose weights are put back after every step; "penalty" is a plain layer
with a term in the loss; the others change the forward pass. "reinjection" is no matter of attention
and is in `stack.py`; the arms of arXiv 2512.03058 are in `arms.py`, means of values in
`averages.py`.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from transformers import Cache

from orbitlens.heads.refined import definite_maps, n_negative
from orbitlens.orbit.aligned import HeadWeights, alignment, held, weights_of
from orbitlens.orbit.arms import (
    SMALL_SCORE,
    UNIT,
    FreeMatrices,
    ReleasedAttention,
    TheoremAttention,
)
from orbitlens.orbit.attention import (
    BatchTokens,
    Frame,
    Given,
    OrbitAttention,
    PlainAttention,
    attend,
    side_by_side,
    split_heads,
)
from orbitlens.orbit.averages import AveragingAttention, CentredAttention, HeadScalars
from orbitlens.orbit.config import OrbitConfig
from orbitlens.orbit.position import turn
from orbitlens.orbit.switches import DEFINITE, RELEASED, THEOREM

Answer = tuple[BatchTokens, Tensor | None]
MOST_TOKENS = 512  # of a batch, for the running covariance
MOMENTUM = 0.05
SMALL_DIAGONAL = 0.05
SMALL_ALIGNMENT = -4.0  # softplus makes 0.018 of it


class HeldAttention(PlainAttention):
    """Every head at sign * <V, W> >= 0 after every step: "guard" with sign 1, "anti" with -1."""

    def __init__(self, config: OrbitConfig, *, sign: int) -> None:
        """Make a plain layer."""
        super().__init__(config)
        self.sign = sign

    def after_step(self, frame: Frame) -> None:
        """Move each output map by as little as possible."""
        exact = _heads(self, torch.float64)
        _write_output(self, held(exact, sign=self.sign, frame=_exact(frame)))


class DataGuardAttention(PlainAttention):
    """Every head at tr(V S W^T) >= 0 after every step, S the running covariance of the input."""

    covariance: Tensor

    def __init__(self, config: OrbitConfig) -> None:
        """Make a plain layer and a covariance that starts as the identity."""
        super().__init__(config)
        self.register_buffer("covariance", torch.eye(config.hidden_size))

    def forward(
        self, x: BatchTokens, given: Given, cache: Cache | None = None, layer: int = 0
    ) -> Answer:
        """Do what a plain layer does; in training, note the covariance of what enters."""
        if self.training:
            self._note(x.detach())
        return super().forward(x, given, cache, layer)

    def after_step(self, frame: Frame) -> None:
        """Move each output map by as little as possible."""
        exact, frame = _heads(self, torch.float64), _exact(frame)
        seen = self.covariance.double()
        _write_output(self, held(exact, sign=1, frame=frame, covariance=seen))

    def _note(self, x: BatchTokens) -> None:
        tokens = x.reshape(-1, x.shape[-1])
        tokens = tokens[:: max(1, len(tokens) // MOST_TOKENS)]
        tokens = tokens - tokens.mean(dim=0)
        self.covariance.lerp_(tokens.T @ tokens / len(tokens), MOMENTUM)


class PenaltyAttention(PlainAttention):
    """A term mu sum_h max(0, -<V_h, W_h>)^2 in the loss."""

    def __init__(self, config: OrbitConfig) -> None:
        """Make a plain layer."""
        super().__init__(config)
        self.weight = float(config.penalty_weight)

    def extra_loss(self, frame: Frame) -> Tensor | None:
        """Return the penalty of heads whose maps oppose each other."""
        value = alignment(_heads(self), frame=frame)
        return self.weight * value.clamp(max=0).square().sum()


class AlignedAttention(PlainAttention):
    """V + softplus(gamma_h) W: W x_j = W_Q^T k_j scale, so the extra path is (P K) W_Q."""

    def __init__(self, config: OrbitConfig) -> None:
        """Make a plain layer and one scalar a head."""
        super().__init__(config)
        self.alignment = HeadScalars(self.n_heads, start=SMALL_ALIGNMENT)
        self.o_proj = AlignedOutput(config.hidden_size, bias=config.bias)

    def forward(
        self, x: BatchTokens, given: Given, cache: Cache | None = None, layer: int = 0
    ) -> Answer:
        """Mix values and keys at once; keys that turned are turned back by the query's angle."""
        q, k, v = split_heads(self.qkv_proj(x), self.n_heads)
        if given.angles is not None:
            q, k = turn(q, given.angles), turn(k, given.angles)
        if cache is not None:
            k, v = cache.update(k, v, layer)
        mixed, pattern = attend(q, k, torch.cat([v, k], dim=-1), given)
        if given.angles is not None:
            values, keys = mixed.chunk(2, dim=-1)
            mixed = torch.cat([values, turn(keys, given.angles, back=True)], dim=-1)
        w_q = self.qkv_proj.weight[: x.shape[-1]].unflatten(0, (self.n_heads, self.d_head))
        gain = functional.softplus(self.alignment.weight) * self.d_head**-0.5
        return self.o_proj(side_by_side(mixed), gain[:, None, None] * w_q), pattern


class AlignedOutput(nn.Linear):
    """An output map of heads of twice the width, the second half given."""

    def __init__(self, width: int, *, bias: bool) -> None:
        """Make the map of the first halves."""
        super().__init__(width, width, bias=bias)

    def forward(  # type: ignore[override]
        self,
        mixed: Float[Tensor, "batch tokens twice"],
        second: Float[Tensor, "head d_head d_model"],
    ) -> BatchTokens:
        """Return mixed @ [w_o, second], head by head."""
        first = self.weight.T.unflatten(0, second.shape[:2])
        whole = torch.cat([first, second], dim=1).flatten(0, 1)
        return functional.linear(mixed, whole.T, self.bias)


class DiagonalAttention(PlainAttention):
    """x_i^T D_h x_j / sqrt(d_head) added to the rotated score, unrotated (arXiv 2512.03058).

    D_h is a learned diagonal on the head's own slice of a token, which starts at 0.05; its sign is
    free.
    """

    def __init__(self, config: OrbitConfig) -> None:
        """Make a plain layer and one diagonal a head."""
        super().__init__(config)
        self.diagonal = HeadScalars(self.n_heads, self.d_head, start=SMALL_DIAGONAL)

    def forward(
        self, x: BatchTokens, given: Given, cache: Cache | None = None, layer: int = 0
    ) -> Answer:
        """Put the slices of tokens behind the turned queries and keys: one product does both."""
        q, k, v = split_heads(self.qkv_proj(x), self.n_heads)
        if given.angles is not None:
            q, k = turn(q, given.angles), turn(k, given.angles)
        own = x.unflatten(-1, (self.n_heads, self.d_head)).transpose(1, 2)
        q = torch.cat([q, own * self.diagonal.weight[:, None, :]], dim=-1)
        k = torch.cat([k, own], dim=-1)
        if cache is not None:
            k, v = cache.update(k, v, layer)
        mixed, pattern = attend(q, k, v, given, scale=self.d_head**-0.5)
        return self.o_proj(side_by_side(mixed)), pattern


class RotaryValueAttention(PlainAttention):
    """Values turn with the keys, and what a query takes up turns back by its own angle."""

    def forward(
        self, x: BatchTokens, given: Given, cache: Cache | None = None, layer: int = 0
    ) -> Answer:
        """Return what attention adds: a value moved by an offset arrives turned by it."""
        if given.angles is None:
            return super().forward(x, given, cache, layer)
        fused = self.qkv_proj(x)
        q, k, v = (turn(part, given.angles) for part in split_heads(fused, self.n_heads))
        if cache is not None:
            k, v = cache.update(k, v, layer)
        mixed, pattern = attend(q, k, v, given)
        return self.o_proj(side_by_side(turn(mixed, given.angles, back=True))), pattern


class DefiniteAttention(OrbitAttention):
    """Full maps with sym(W) > 0 and sym(W V^-1) of chosen signs, in all of training.

    Each head has maps as wide as the model, two free matrices a head. A rotary encoding turns x W
    and x, so the signs hold at offset 0.
    """

    def __init__(self, config: OrbitConfig) -> None:
        """Make the free matrices."""
        super().__init__()
        width, self.n_heads = config.hidden_size, config.num_attention_heads
        self.score_map = FreeMatrices(self.n_heads, width, start=SMALL_SCORE)
        self.value_map = ValueMap(self.n_heads, width, start=UNIT)
        self.negative = n_negative(config.refinement, width)

    def maps(self) -> tuple[Tensor, Tensor]:
        """Return W, without its scale 1/sqrt(d_model), and V of every head."""
        return definite_maps(
            self.score_map.per_head(), self.value_map.per_head(), negative=self.negative
        )

    def forward(
        self, x: BatchTokens, given: Given, cache: Cache | None = None, layer: int = 0
    ) -> Answer:
        """Return what attention adds: softmax(x W x^T) x V^T."""
        w, v = self.maps()
        q = (x @ w.transpose(0, 1).flatten(1)).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        k = values = x[:, None]
        if given.angles is not None:
            q, k = turn(q, given.angles), turn(k, given.angles)
        if cache is not None:
            k, values = cache.update(k, values, layer)
        k, values = (part.expand(-1, self.n_heads, -1, -1) for part in (k, values))
        mixed, pattern = attend(q, k, values, given)
        return self.value_map(side_by_side(mixed), v), pattern


class ValueMap(FreeMatrices):
    """The output map of definite heads; its weight is free, the maps are given."""

    def forward(
        self,
        mixed: Float[Tensor, "batch tokens heads_width"],
        v: Float[Tensor, "head d_model d_model"],
    ) -> BatchTokens:
        """Return the sum over heads of (P x) V^T."""
        return mixed @ v.mT.flatten(0, 1)


def _heads(layer: PlainAttention, dtype: torch.dtype | None = None) -> HeadWeights:
    qkv, out = layer.qkv_proj.weight, layer.o_proj.weight
    return weights_of(qkv.to(dtype), out.to(dtype), layer.n_heads)


def _exact(frame: Frame) -> Frame:
    gains = (frame.gain, frame.out_gain)
    gain, out_gain = (None if value is None else value.double() for value in gains)
    return Frame(gain=gain, centred=frame.centred, out_gain=out_gain)


def _write_output(layer: PlainAttention, w_o: Float[Tensor, "head d_head d_model"]) -> None:
    layer.o_proj.weight.copy_(w_o.flatten(0, 1).T)


ATTENTIONS: dict[str, Callable[[OrbitConfig], OrbitAttention]] = {
    "none": PlainAttention,
    "reinjection": PlainAttention,
    "guard": lambda config: HeldAttention(config, sign=1),
    "guard-data": DataGuardAttention,
    "anti": lambda config: HeldAttention(config, sign=-1),
    "penalty": PenaltyAttention,
    "aligned": AlignedAttention,
    "diagonal": DiagonalAttention,
    "rotary-values": RotaryValueAttention,
    "centred": CentredAttention,
    "centred-fixed": lambda config: CentredAttention(config, learned=False),
    "averaging": AveragingAttention,
    **dict.fromkeys(DEFINITE, DefiniteAttention),
    **dict.fromkeys(RELEASED, ReleasedAttention),
    **dict.fromkeys(THEOREM, TheoremAttention),
}
