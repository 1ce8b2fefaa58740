"""Orbits: the directions of the tokens of one context, before and after each layer.

Enters: a running model and one batch. Leaves: `Orbits`. Tokens are directions (unit length), which
is what the next layer sees of them. They are told in two ways. Around the shared direction, the
mean of all directions of that depth: the cosine with it says exactly how far a token is from what
all have in common, and a bearing in two axes tells tokens apart. And in the three leading principal
directions of all depths together, in which a move on the screen is a move of the token.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.reporting.data import Orbits
from orbitlens.running.inputs import Batch
from orbitlens.running.model import Model
from orbitlens.tracing.directions import as_norm_sees, unit_directions
from orbitlens.tracing.token_courses import context_states, mean_cosines

MOST_TOKENS = 64
MOST_DEPTHS = 40
MOST_PLACES = 1200  # tokens times depths; deep models show fewer tokens


def orbits_of(model: Model, batch: Batch, names: list[str]) -> Orbits:
    """Return the orbits of the first context of a batch, in the model's last stack."""
    stack = model.architecture.stacks[-1]
    states, layers = context_states(model, batch, stack)
    states = as_norm_sees(states, stack.norm)
    depths = spread_out(states.shape[0], MOST_DEPTHS)
    kept = spread_out(states.shape[1], min(MOST_TOKENS, MOST_PLACES // len(depths)))
    positions, explained = principal_positions(states)
    shown = positions[depths][:, kept]
    shared, bearings = around_shared_direction(states)
    return Orbits(
        stack=stack.name,
        tokens=tuple(names[k] if k < len(names) else f"token {k}" for k in kept),
        depths=tuple("input" if k == 0 else f"after layer {layers[k - 1]}" for k in depths),
        positions=tuple(tuple(_three(x) for x in frame) for frame in shown.tolist()),
        explained=_three(explained.tolist()),
        shared=tuple(tuple(row) for row in shared[depths][:, kept].tolist()),
        bearings=tuple(tuple(row) for row in bearings[depths][:, kept].tolist()),
        cosine=tuple(mean_cosines(states)[depths].mean(dim=1).tolist()),
        n_left_out=states.shape[1] - len(kept),
    )


def _three(values: list[float]) -> tuple[float, float, float]:
    return (values[0], values[1], values[2])


def spread_out(n: int, most: int) -> list[int]:
    """Return at most `most` of the numbers 0 to n - 1, the ends among them.

    >>> spread_out(5, 3)
    [0, 2, 4]
    """
    if n <= most:
        return list(range(n))
    return [round(k * (n - 1) / (most - 1)) for k in range(most)]


@dataclass(frozen=True, kw_only=True)
class PrincipalAxes:
    """The three leading directions in which directions of tokens vary."""

    mean: Float[Tensor, " width"]
    axes: Float[Tensor, "axis width"]
    explained: Float[Tensor, " three"]  # shares of the variance; zeros where there are fewer axes

    def positions(self, states: Float[Tensor, "*any width"]) -> Float[Tensor, "*any three"]:
        """Return where the directions of tokens are in these axes, of any run of the model."""
        centred = unit_directions(states) - self.mean
        places = torch.zeros(*states.shape[:-1], 3, dtype=states.dtype)
        places[..., : len(self.axes)] = centred @ self.axes.T
        return places


def principal_axes(states: Float[Tensor, "*any width"]) -> PrincipalAxes:
    """Return the leading axes of the directions of tokens, and the variance these explain."""
    flat = unit_directions(states).reshape(-1, states.shape[-1])
    mean = flat.mean(dim=0)
    _, sizes, axes = torch.linalg.svd(flat - mean, full_matrices=False)
    total = (sizes**2).sum().clamp(min=1e-30)
    n_axes = min(3, len(axes))
    shares = torch.zeros(3, dtype=flat.dtype)
    shares[:n_axes] = sizes[:n_axes] ** 2 / total
    return PrincipalAxes(mean=mean, axes=axes[:n_axes], explained=shares)


def principal_positions(states: Tensor) -> tuple[Tensor, Tensor]:
    """Return each token's direction in the three leading axes, and the variance these explain."""
    axes = principal_axes(states)
    return axes.positions(states), axes.explained


def around_shared_direction(states: Tensor) -> tuple[Tensor, Tensor]:
    """Return each token's cosine with the mean direction of its depth, and its bearing around it.

    The bearing is the angle, in radians, of what a token has besides the mean direction, in the two
    axes in which these parts are longest over all depths together.
    """
    unit = unit_directions(states)
    middle = unit_directions(unit.mean(dim=-2, keepdim=True))
    cosines = (unit * middle).sum(dim=-1)
    own = unit - cosines[..., None] * middle
    _, _, axes = torch.linalg.svd(own.reshape(-1, own.shape[-1]), full_matrices=False)
    seen = torch.zeros(*own.shape[:-1], 2, dtype=own.dtype)
    seen[..., : min(2, len(axes))] = own @ axes[:2].T
    return cosines.clamp(-1, 1), torch.atan2(seen[..., 1], seen[..., 0])
