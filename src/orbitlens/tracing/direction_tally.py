"""Directions at every point of one layer, summed up while batches pass by.

Enters: `LayerStates`, batch after batch. Leaves: a `DirectionTrace`: the mean cosine before and
after attention, MLP and norms, what each does to S = ln(1 - C), and what each head does to it.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from orbitlens.heads.layers import AttentionLayer
from orbitlens.running.capture import LayerStates
from orbitlens.tracing.directions import (
    CosineSums,
    MomentSums,
    PathSums,
    as_norm_sees,
    context_ranks,
)
from orbitlens.tracing.heads import head_contributions
from orbitlens.tracing.massive import MassiveSums
from orbitlens.tracing.trace_result import DirectionPoint, DirectionTrace, HeadDirections

POINTS = ("before", "attention", "normed", "unnormed", "after")  # in the order they are passed


class DirectionTally:
    """Sums of the directions of one layer."""

    def __init__(self, layer: AttentionLayer, *, n_attributed: int) -> None:
        """Take the layer, and on how many tokens its heads are told apart."""
        self.layer, self.n_attributed = layer, n_attributed
        self.points = {name: CosineSums() for name in POINTS}
        self.ordinary = {name: CosineSums() for name in POINTS}  # massive tokens left out
        self.raw = {name: MomentSums() for name in POINTS}
        self.path = PathSums(layer.n_heads + 1)
        self.massive = MassiveSums()
        self._attributed = 0

    def add(self, states: LayerStates) -> None:
        """Add one batch without padding."""
        moved = states.before + states.attention
        named = {"before": states.before, "attention": moved, "after": states.after}
        if states.normed is not None and states.unnormed is not None:
            named |= {"normed": states.normed, "unnormed": states.unnormed}
        ordinary = self.massive.add(states.before)
        for name, x in named.items():
            seen = self.as_seen(x)
            self.points[name].add(seen)
            self.ordinary[name].add(seen, ordinary)
            self.raw[name].add(x)
        if self._attributed < self.n_attributed:
            self._attributed += states.before.shape[0] * states.before.shape[1]
            self.attribute(states)

    def attribute(self, states: LayerStates) -> None:
        """Add what heads do in one batch, and nothing else of it."""
        self.path.add(self.as_seen(states.before), self.as_seen(self._parts(states)))

    def as_seen(self, x: Tensor) -> Tensor:
        """Return tokens as the norm in front of attention sees them, but for their length."""
        return as_norm_sees(x.double(), self.layer.stack.norm)

    def _parts(self, states: LayerStates) -> Tensor:
        """Return what each head adds, and last what biases and a norm on the output add.

        A norm on the output divides every token by one number: heads are divided with it.
        """
        parts = head_contributions(self.layer, states.mixed.double(), n_more=1)
        heads = parts[:-1]
        if self.layer.output_gain is not None:
            heads *= _output_scale(states)[None]
        parts[-1] = states.attention.double() - heads.sum(dim=0)
        return parts

    def merged(self, other: "DirectionTally") -> "DirectionTally":
        """Return the sums of both."""
        total = DirectionTally(self.layer, n_attributed=self.n_attributed)
        for name in POINTS:
            total.points[name] = self.points[name].merged(other.points[name])
            total.ordinary[name] = self.ordinary[name].merged(other.ordinary[name])
            total.raw[name] = self.raw[name].merged(other.raw[name])
        total.path = self.path.merged(other.path)
        total.massive = self.massive.merged(other.massive)
        return total

    def reading(
        self,
        judged: PathSums,
        predicted: Mapping[str, PathSums],
        *,
        contexts: Sequence[Tensor],
    ) -> DirectionTrace:
        """Return what is read off the sums, beside what closures predicted for `judged`.

        `contexts` are a few whole ones in front of the layer, for what needs tokens and not sums.
        """
        rank, clusters = context_ranks([self.as_seen(x) for x in contexts])
        return DirectionTrace(
            points=tuple(self._point(name) for name in POINTS if self.points[name].n_pairs),
            attributed=self.path.change,
            heads=self._heads(judged, predicted),
            rest=self.path.shares[-1],
            predicted={name: path.change for name, path in predicted.items()},
            judged=judged.change,
            massive=self.massive.tokens,
            effective_rank=rank,
            clusters=clusters,
        )

    def _point(self, name: str) -> DirectionPoint:
        return DirectionPoint(
            name=name,
            cosine=self.points[name].value,
            cosine_without_massive=self.ordinary[name].value,
            shared=self.raw[name].shared,
            own=self.raw[name].own,
        )

    def _heads(
        self, judged: PathSums, predicted: Mapping[str, PathSums]
    ) -> tuple[HeadDirections, ...]:
        shares, alone, judged_shares = self.path.shares, self.path.effects_alone, judged.shares
        sizes = predicted["itself"].mean_sizes
        predicted_shares = {name: path.shares for name, path in predicted.items()}
        return tuple(
            HeadDirections(
                share=shares[h],
                alone=alone[h],
                size=sizes[h],
                judged=judged_shares[h],
                predicted={name: values[h] for name, values in predicted_shares.items()},
            )
            for h in range(self.layer.n_heads)
        )


def _output_scale(states: LayerStates) -> Tensor:
    """Return by what a norm on the output multiplied each coordinate of each token."""
    projected = states.projected.double()
    safe = torch.where(projected.abs() > 1e-12, projected, 1.0)
    return torch.where(projected.abs() > 1e-12, states.attention.double() / safe, 0.0)
