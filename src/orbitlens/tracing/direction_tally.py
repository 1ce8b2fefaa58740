"""Directions at every point of one layer, summed up while batches pass by.

Enters: `LayerStates`, batch after batch. Leaves: a `DirectionTrace`: the mean cosine before and
after attention, MLP and norms, what each does to S = ln(1 - C), and what each head does to it.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from orbitlens.families.architecture import NormKind
from orbitlens.heads.layers import AttentionLayer
from orbitlens.running.capture import LayerStates
from orbitlens.tracing.directions import CosineSums, PathSums, centre
from orbitlens.tracing.heads import head_contributions
from orbitlens.tracing.massive import MASSIVE, MassiveSums, massive_ratios
from orbitlens.tracing.streams import Contexts
from orbitlens.tracing.trace_result import DirectionTrace, HeadDirections

POINTS = ("before", "attention", "normed", "unnormed", "after")  # in the order they are passed


class DirectionTally:
    """Sums of the directions of one layer."""

    def __init__(self, layer: AttentionLayer, *, n_attributed: int) -> None:
        """Take the layer, and on how many tokens its heads are told apart."""
        self.layer, self.n_attributed = layer, n_attributed
        self.points = {name: CosineSums() for name in POINTS}
        self.path = PathSums(layer.n_heads + 1)
        self.massive = MassiveSums()
        self.without_massive = CosineSums()
        self._attributed = 0

    def add(self, states: LayerStates) -> None:
        """Add one batch without padding."""
        moved = states.before + states.attention
        named = {"before": states.before, "attention": moved, "after": states.after}
        if states.normed is not None and states.unnormed is not None:
            named |= {"normed": states.normed, "unnormed": states.unnormed}
        for name, x in named.items():
            self.points[name].add(self.as_seen(x))
        self.massive.add(states.before)
        self._add_ordinary(self.as_seen(states.before), massive_ratios(states.before) < MASSIVE)
        if self._attributed < self.n_attributed:
            self._attributed += states.before.shape[0] * states.before.shape[1]
            self.path.add(self.as_seen(states.before), self.as_seen(self._parts(states)))

    def as_seen(self, x: Tensor) -> Tensor:
        """Return tokens as the norm in front of attention sees them, but for their length."""
        return centre(x.double()) if self.layer.stack.norm is NormKind.LAYER else x.double()

    def _add_ordinary(self, x: Contexts, ordinary: Tensor) -> None:
        if bool(ordinary.all()):
            self.without_massive.add(x)
            return
        for context, kept in zip(x, ordinary, strict=True):
            self.without_massive.add(context[kept][None])

    def _parts(self, states: LayerStates) -> Tensor:
        """Return what each head adds, and last what biases and a norm on the output add.

        A norm on the output divides every token by one number: heads are divided with it.
        """
        heads = head_contributions(self.layer, states.mixed.double())
        whole = states.attention.double()
        if self.layer.output_gain is not None:
            heads = heads * _output_scale(states)[None]
        return torch.cat([heads, (whole - heads.sum(dim=0))[None]])

    def merged(self, other: "DirectionTally") -> "DirectionTally":
        """Return the sums of both."""
        total = DirectionTally(self.layer, n_attributed=self.n_attributed)
        total.points = {name: self.points[name].merged(other.points[name]) for name in POINTS}
        total.path = self.path.merged(other.path)
        total.massive = self.massive.merged(other.massive)
        total.without_massive = self.without_massive.merged(other.without_massive)
        return total

    def reading(self, judged: PathSums, predicted: Mapping[str, PathSums]) -> DirectionTrace:
        """Return what is read off the sums, beside what closures predicted for `judged`."""
        spread = {name: sums.log_spread for name, sums in self.points.items() if sums.n_pairs}
        first, second = spread.get("normed"), spread.get("unnormed")
        norm, mlp = 0.0, spread["after"] - spread["attention"]
        if first is not None and second is not None:
            norm = (first - spread["attention"]) + (spread["after"] - second)
            mlp = second - first
        shares, alone = self.path.shares, self.path.effects_alone
        sizes = predicted["itself"].mean_sizes
        judged_shares = judged.shares
        predicted_shares = {name: path.shares for name, path in predicted.items()}
        return DirectionTrace(
            cosine_before=self.points["before"].value,
            cosine_attention=self.points["attention"].value,
            cosine_after=self.points["after"].value,
            attention=spread["attention"] - spread["before"],
            mlp=mlp,
            norm=norm,
            attributed=self.path.change,
            heads=tuple(
                HeadDirections(
                    share=shares[h],
                    alone=alone[h],
                    size=sizes[h],
                    judged=judged_shares[h],
                    predicted={name: values[h] for name, values in predicted_shares.items()},
                )
                for h in range(self.layer.n_heads)
            ),
            rest=shares[-1],
            predicted={name: path.change for name, path in predicted.items()},
            judged=judged.change,
            massive=self.massive.tokens,
            cosine_without_massive=self.without_massive.value,
        )


def _output_scale(states: LayerStates) -> Tensor:
    """Return by what a norm on the output multiplied each coordinate of each token."""
    projected = states.projected.double()
    safe = torch.where(projected.abs() > 1e-12, projected, 1.0)
    return torch.where(projected.abs() > 1e-12, states.attention.double() / safe, 0.0)
