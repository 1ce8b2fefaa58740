"""All that is summed up at one layer while batches pass by, and what is read off it.

Enters: `LayerStates`, batch after batch. Leaves: measured log-changes of the squared pair distance
by attention, MLP, norms and each head; the means and covariances that closures need; and a few
whole contexts, for what needs tokens and not sums.
"""

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.heads.layers import AttentionLayer
from orbitlens.running.capture import LayerStates, is_post_norm
from orbitlens.tracing.direction_tally import DirectionTally
from orbitlens.tracing.heads import head_log_changes, seen_tokens
from orbitlens.tracing.steps import pair_contraction
from orbitlens.tracing.streams import CovarianceSums, Kept, SpreadSums, StateSums, split_padding

FEWEST_KEPT = 2  # contexts kept whole, however long


@dataclass
class PositionSums:
    """Mean and variance of the tokens at each position, over contexts of one length."""

    count: int = 0
    total: Tensor | None = None
    squares: Tensor | None = None

    def add(self, x: Float[Tensor, "batch tokens width"]) -> None:
        """Add contexts; those of another length than the first are left out."""
        if self.total is not None and self.total.shape[0] != x.shape[1]:
            return
        self.count += x.shape[0]
        total, squares = x.sum(dim=0).double(), x.square().sum(dim=(0, 2)).double()
        self.total = total if self.total is None else self.total + total
        self.squares = squares if self.squares is None else self.squares + squares

    @property
    def mean(self) -> Float[Tensor, "tokens width"]:
        """The mean token at each position."""
        assert self.total is not None
        return self.total / self.count

    @property
    def variance(self) -> Float[Tensor, " tokens"]:
        """The mean of |x - mean|^2 at each position."""
        assert self.squares is not None
        spread = self.squares / self.count - self.mean.square().sum(dim=-1)
        return spread.clamp(min=0) * self.count / max(self.count - 1, 1)


@dataclass
class HeadSums:
    """Covariance of each head's mixed values, all heads at once."""

    scatter: Tensor | None = None
    freedom: int = 0

    def add(self, centred: Float[Tensor, "batch tokens heads_width"], n_heads: int) -> None:
        """Add values that are centred within their contexts."""
        blocks = centred.flatten(0, 1).unflatten(-1, (n_heads, -1)).transpose(0, 1)
        scatter = (blocks.transpose(-1, -2) @ blocks).double()
        self.scatter = scatter if self.scatter is None else self.scatter + scatter
        self.freedom += centred.shape[0] * (centred.shape[1] - 1)

    @property
    def value(self) -> Float[Tensor, "head d_head d_head"]:
        """The covariances."""
        assert self.scatter is not None
        return self.scatter / self.freedom


@dataclass
class LayerTally:
    """Sums of one layer over one text."""

    layer: AttentionLayer
    n_kept: int  # tokens kept, in whole contexts
    before: StateSums = field(default_factory=StateSums)
    seen: StateSums = field(default_factory=StateSums)  # tokens as the heads see them
    seen_cross: CovarianceSums = field(default_factory=CovarianceSums)
    mixed: HeadSums = field(default_factory=HeadSums)
    mixed_cross: CovarianceSums = field(default_factory=CovarianceSums)
    spreads: dict[str, SpreadSums] = field(default_factory=dict)
    positions: PositionSums = field(default_factory=PositionSums)
    kept: list[Tensor] = field(default_factory=list)
    updates: float = 0.0
    update_cosines: float = 0.0
    contractions: float = 0.0
    contexts: int = 0
    directions: DirectionTally = field(init=False)

    def __post_init__(self) -> None:
        """Start the sums that need the layer."""
        self.directions = DirectionTally(self.layer, n_attributed=self.n_kept)

    def add(self, states: LayerStates, real: Kept | None = None) -> None:
        """Add one batch; `real` marks the tokens that are no padding."""
        if real is None or bool(real.all()):
            self._add(states)
            return
        for k in range(states.before.shape[0]):
            whole = {
                name: next(split_padding(x[k : k + 1], real[k : k + 1])) if x is not None else None
                for name, x in vars(states).items()
            }
            self._add(LayerStates(**whole))  # type: ignore[arg-type]

    def _add(self, states: LayerStates) -> None:
        x = states.before
        if x.dtype in {torch.float16, torch.bfloat16}:
            raise_up = {k: None if v is None else v.float() for k, v in vars(states).items()}
            states = LayerStates(**raise_up)  # type: ignore[arg-type]
            x = states.before
        centred = self.before.add(x)
        if self.layer.stack.norm is not None:
            centred_seen = self.seen.add(seen_tokens(self.layer, x))
            self.seen_cross.add(centred, centred_seen)
        self._add_heads(states, centred)
        self._add_spreads(states)
        self._add_step(x, states.after)
        self.directions.add(states)
        self.positions.add(x)
        room = max(self.n_kept // x.shape[1], FEWEST_KEPT) - len(self.kept)
        if room > 0:
            self.kept += list(x[:room].double())

    def _add_heads(self, states: LayerStates, centred: Tensor) -> None:
        z = states.mixed - states.mixed.mean(dim=1, keepdim=True)
        self.mixed.add(z, self.layer.n_heads)
        self.mixed_cross.add(centred, z)

    def _add_spreads(self, states: LayerStates) -> None:
        moved = states.before + states.attention
        self._spread("attention", moved)
        if self.layer.stack.parallel:
            self._spread("mlp", states.after - states.attention)
        self._spread("after", states.after)
        if states.normed is not None and states.unnormed is not None:
            self._spread("normed", states.normed)
            self._spread("unnormed", states.unnormed)

    def _spread(self, name: str, x: Tensor) -> None:
        self.spreads.setdefault(name, SpreadSums()).add(x)

    def _add_step(self, before: Tensor, after: Tensor) -> None:
        gap = after - before
        self.updates += torch.linalg.vector_norm(gap).double().square().item()
        cosine = torch.nn.functional.cosine_similarity(before, gap, dim=-1)
        self.update_cosines += cosine.double().sum().item()
        self.contractions += pair_contraction(before, after) * before.shape[0]
        self.contexts += before.shape[0]

    # --- what is read off ---

    @property
    def mean_squared_distance(self) -> float:
        """Of the stream that enters the layer."""
        return self.before.spread.mean_squared_distance

    def log_change(self, after: str, before: str | None = None) -> float:
        """Return ln of the ratio of two mean squared pair distances."""
        last = self.spreads[after].mean_squared_distance
        first = self.spreads[before].mean_squared_distance if before else self.mean_squared_distance
        return math.log(last / first) if last > 0 and first > 0 else 0.0

    @property
    def attention_change(self) -> float:
        """What attention alone does: from x to x + attention."""
        return self.log_change("attention")

    @property
    def mlp_change(self) -> float:
        """What the MLP alone does; with it, in a decoder that looks at an encoder, cross-attention.

        Sequential: from x + attention to what leaves; post-norm: between the two norms; parallel:
        from x to x + mlp.
        """
        if self.layer.stack.parallel:
            return self.log_change("mlp")
        if is_post_norm(self.layer.stack):
            return self.log_change("unnormed", "normed")
        return self.log_change("after", "attention")

    @property
    def norm_changes(self) -> dict[str, float]:
        """What norms alone do, by place: on the stream (post-norm), or in front of attention."""
        if is_post_norm(self.layer.stack):
            return {
                "after attention": self.log_change("normed", "attention"),
                "after mlp": self.log_change("after", "unnormed"),
            }
        if self.layer.stack.norm is None:
            return {}
        gain = self.layer.norm_gain
        variances = self.seen.covariance.value.diagonal()
        spread = 2 * (variances if gain is None else variances * gain.square()).sum().item()
        first = self.mean_squared_distance
        # A norm of gain 0, as damaged files have it, leaves nothing to compare.
        change = math.log(spread / first) if spread > 0 and first > 0 else 0.0
        return {"before attention": change}

    @property
    def head_changes(self) -> list[float]:
        """What each head alone does: from x to x + its part."""
        return head_log_changes(
            self.layer,
            total=self.mean_squared_distance / 2,
            cross=self.mixed_cross.value,
            mixed=self.mixed.value,
        )

    @property
    def what_heads_see(self) -> StateSums:
        """The tokens after the norm in front of attention, or the stream where there is none."""
        return self.seen if self.layer.stack.norm is not None else self.before

    @property
    def stream_to_seen(self) -> Float[Tensor, "d_model d_model"]:
        """Cov(x, u): of the stream with what the heads see."""
        if self.layer.stack.norm is None:
            return self.before.covariance.value
        return self.seen_cross.value
