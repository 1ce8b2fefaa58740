"""Plasticity attention: linear attention as a fast weight that each token changes by a local rule.

Enters: tokens, as for `PlainAttention`. Leaves: what attention adds to each. There is no softmax: a
head has one matrix S, its synapses. A token writes, S <- decay S + v k^T (what arrives times what
is there: two factors), then reads y = S q / sqrt(width). Behind a causal mask that is

    y_i = sum_{j <= i} decay^(i - j) (q_i . k_j) v_j / sqrt(width),

which a whole context computes at once; without a mask every token reads the whole sum. After
arXiv 2410.08711; the rule is that of linear attention and of fast weight programmers.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from orbitlens.errors import InputError
from orbitlens.orbit.attention import (
    BatchTokens,
    Given,
    PerHead,
    PlainAttention,
    side_by_side,
    split_heads,
)
from orbitlens.orbit.config import OrbitConfig
from orbitlens.orbit.position import turn

State = Float[Tensor, "batch head value_width width"]
Visible = Bool[Tensor, "rows 1 queries keys"]


class PlasticAttention(PlainAttention):
    """Multi-head linear attention; with a cache, each head keeps its state and no token."""

    def __init__(self, config: OrbitConfig) -> None:
        """Make the maps of a plain layer."""
        super().__init__(config)
        self.decay = float(config.decay)

    def forward(
        self, x: BatchTokens, given: Given, cache: Cache | None = None, layer: int = 0
    ) -> tuple[BatchTokens, Tensor | None]:
        """Return what attention adds to each token, and its weights (signed) or None."""
        q, k, v = split_heads(self.qkv_proj(x), self.n_heads)
        if given.angles is not None:
            q, k = turn(q, given.angles), turn(k, given.angles)
        q = q * self.d_head**-0.5
        visible = seen(given, x.shape[1])
        mixed, pattern = at_once(q, k, v, visible, decay=self.decay)
        if cache is not None:
            kept = state_of(cache, layer)
            if kept.n_tokens:
                mixed = mixed + read(kept.state, q, decay=self.decay)
            writers = None if visible is None else visible[..., -1, :, None]
            kept.add(written(k, v, writers, decay=self.decay), k.shape[-2], decay=self.decay)
        return self.o_proj(side_by_side(mixed)), pattern if given.patterns else None


# --- the rule --------------------------------------------------------------------------------


def write(
    state: State,
    k: Float[Tensor, "batch head width"],
    v: Float[Tensor, "batch head value_width"],
    decay: float = 1.0,
) -> State:
    """Return the state after one token: decay S + v k^T. A synapse reads its own two ends."""
    return decay * state + v[..., :, None] * k[..., None, :]


def token_by_token(
    q: PerHead, k: PerHead, v: Float[Tensor, "batch head tokens value_width"], decay: float = 1.0
) -> tuple[Float[Tensor, "batch head tokens value_width"], State]:
    """Return what each token reads right after it wrote, and the last state: nothing is kept."""
    state = v.new_zeros(*v.shape[:2], v.shape[-1], k.shape[-1])
    read_out = []
    for t in range(k.shape[-2]):
        state = write(state, k[..., t, :], v[..., t, :], decay)
        read_out.append((state @ q[..., t, :, None])[..., 0])
    return torch.stack(read_out, dim=-2), state


def at_once(
    q: PerHead,
    k: PerHead,
    v: Float[Tensor, "batch head tokens value_width"],
    visible: Visible | None,
    *,
    decay: float = 1.0,
) -> tuple[Float[Tensor, "batch head tokens value_width"], Float[Tensor, "batch head tokens keys"]]:
    """Return the same for a whole context: weights q_i . k_j, 0 where j is hidden from i."""
    weights = q @ k.transpose(-1, -2)
    if decay != 1:
        weights = weights * _kept_shares(q.shape[-2], decay, q)
    if visible is not None:
        weights = weights.masked_fill(~visible, 0.0)
    return weights @ v, weights


def written(
    k: PerHead,
    v: Float[Tensor, "batch head tokens value_width"],
    writers: Bool[Tensor, "rows 1 tokens 1"] | None,
    *,
    decay: float = 1.0,
) -> State:
    """Return what a stretch of tokens leaves in an empty state; hidden tokens write nothing."""
    if decay != 1:
        v = v * _kept_shares(v.shape[-2], decay, v)[-1, :, None]
    if writers is not None:
        v = v.masked_fill(~writers, 0.0)
    return v.transpose(-1, -2) @ k


def read(
    state: State, q: PerHead, *, decay: float = 1.0
) -> Float[Tensor, "batch head tokens width"]:
    """Return what a stretch of tokens reads of a state that was there before its first."""
    values = q @ state.transpose(-1, -2)
    if decay != 1:
        steps = torch.arange(1, q.shape[-2] + 1, dtype=q.dtype, device=q.device)
        values = values * (decay**steps)[:, None]
    return values


def _kept_shares(n_tokens: int, decay: float, like: Tensor) -> Float[Tensor, "tokens tokens"]:
    """Return decay^(i - j) for j <= i, and 0 above."""
    steps = torch.arange(n_tokens, dtype=like.dtype, device=like.device)
    return (decay ** (steps[:, None] - steps[None, :]).clamp(min=0)).tril()


def seen(given: Given, n_tokens: int) -> Visible | None:
    """Return which of the tokens run now each of them reads; None where it is all of them.

    A `Given` hides a token by the lowest number there is; nothing else is added to scores here.
    """
    if given.bias is not None:
        return given.bias[..., -n_tokens:] > torch.finfo(given.bias.dtype).min / 2
    if given.causal:
        return torch.ones(n_tokens, n_tokens, dtype=torch.bool).tril()[None, None]
    return None


# --- the state between calls -------------------------------------------------------------------


class PlasticState(DynamicLayer):
    """One layer's entry of a cache: its state and how many tokens wrote to it.

    The state lies in `keys` (and in `values`, unread) so that beams are picked and repeated by what
    the class of transformers does.
    """

    is_croppable = False

    def __init__(self) -> None:
        """Start with no state."""
        super().__init__()
        self.n_tokens = 0

    @property
    def state(self) -> State:
        """The synapses."""
        assert self.keys is not None
        return self.keys

    def add(self, new: State, n_tokens: int, *, decay: float) -> None:
        """Let the state decay over a stretch of tokens, and add what they wrote."""
        if self.n_tokens:
            new = decay**n_tokens * self.state + new
        self.dtype, self.device, self.is_initialized = new.dtype, new.device, True
        self.keys = self.values = new
        self.n_tokens += n_tokens

    def get_seq_length(self) -> int:
        """Return how many tokens were read."""
        return self.n_tokens

    def reset(self) -> None:
        """Forget all."""
        super().reset()
        self.n_tokens = 0


def state_of(cache: Cache, layer: int) -> PlasticState:
    """Return a layer's state in a cache; unused entries of another kind make room for it."""
    while len(cache.layers) <= layer:
        cache.layers.append(PlasticState())
    kept = cache.layers[layer]
    if not isinstance(kept, PlasticState):
        if not isinstance(kept, CacheLayerMixin) or kept.get_seq_length():
            raise InputError(
                f"layer {layer} of the cache holds {type(kept).__name__}; expected a cache that is "
                "empty or was filled by this model. Give a fresh DynamicCache()."
            )
        kept = cache.layers[layer] = PlasticState()
    return kept
