"""Systems of one shape -> their episodes: what is printed of each, and what each then does.

Enters: recipes with their numbers. Leaves: `Trial`s with the certificates that were printed as held
and the slack that the reference found for each.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orbitlens._types import Tokens
from orbitlens.flows.prediction import predict
from orbitlens.flows.system import System
from orbitlens.theory.certificates import Certificate
from orbitlens.verifying.recipes import Recipe
from orbitlens.verifying.reference import Maps, SystemBatch, start_of
from orbitlens.verifying.statements import STATEMENTS, Episode

Array = NDArray[np.float64]
Printed = Callable[[System, Tokens], Sequence[Certificate]]
MOMENTS = np.linspace(0.0, 2.0, 6)  # in units of 1 / (sum of |V_h| + |b|)
LONG = np.array([0.0, 150.0])
GENTLE = 12.0  # scores beyond which a system is looked at where it starts, and not integrated
ASYMPTOTIC = {"N1", "N1c", "N2", "N3"}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One system: what it was made of, and the slack of everything that was printed of it."""

    recipe: Recipe
    theta: Array
    held: tuple[str, ...]
    slacks: dict[str, float]  # of those that its episode could tell


def printed_certificates(system: System, tokens: Tokens) -> Sequence[Certificate]:
    """Return what the library prints of a flow."""
    return predict(system, tokens).certificates


def run_trials(
    made: Sequence[tuple[Recipe, Array]], *, printed: Printed, with_ends: bool
) -> list[Trial]:
    """Check everything that is printed of systems of one shape; where they end takes longer."""
    built = [recipe.build(theta) for recipe, theta in made]
    claims = [
        {c.name: c.numbers for c in printed(system, tokens) if c.holds} for system, tokens in built
    ]
    maps = [Maps.of(system, tokens.shape[0]) for system, tokens in built]
    starts = np.stack([start_of(system, tokens.numpy()) for system, tokens in built])
    episodes = _episodes(maps, starts, claims, with_ends=with_ends)
    trials = []
    for (recipe, theta), claim, episode in zip(made, claims, episodes, strict=True):
        slacks = {name: STATEMENTS[name](episode, numbers) for name, numbers in claim.items()}
        known = {name: slack for name, slack in slacks.items() if slack is not None}
        trials.append(Trial(recipe=recipe, theta=theta, held=tuple(claim), slacks=known))
    return trials


def _episodes(
    maps: list[Maps], starts: Array, claims: list[dict[str, dict[str, float]]], *, with_ends: bool
) -> list[Episode]:
    sizes = [_largest_score(m, x) for m, x in zip(maps, starts, strict=True)]
    gentle = [k for k, size in enumerate(sizes) if size <= GENTLE and bool(claims[k])]
    # Where attention's input or output is normalised, rates are not claimed: only ends are asked.
    smooth = [k for k in gentle if not maps[k].sees_unit and not maps[k].gives_unit]
    paths = _paths(maps, starts, smooth, MOMENTS)
    asked = [k for k in gentle if with_ends and _needs_end(claims[k])]
    late = _ends(maps, starts, asked)
    whole = SystemBatch(maps)
    first = starts[None], whole.velocity(starts)[None], whole.weights(starts)[None]
    episodes = []
    for k, m in enumerate(maps):
        times, (x, moves, weights) = paths.get(k, (np.zeros(1), tuple(a[:, k] for a in first)))
        episodes.append(
            Episode(
                maps=m, times=times, tokens=x, velocities=moves, weights=weights, late=late.get(k)
            )
        )
    return episodes


def _needs_end(claims: dict[str, dict[str, float]]) -> bool:
    return any(
        name in ASYMPTOTIC and "rate" not in numbers and "pull" not in numbers
        for name, numbers in claims.items()
    )


def _largest_score(maps: Maps, start: Array) -> float:
    seen = start
    if maps.sees_unit or maps.is_unit:
        seen = start / np.maximum(np.linalg.norm(start, axis=1, keepdims=True), 1e-300)
    scores = np.einsum("id,hijde,je->hij", seen, maps.pair, seen)
    return float(np.abs(scores).max())


def _paths(
    maps: list[Maps], starts: Array, chosen: list[int], moments: Array
) -> dict[int, tuple[Array, tuple[Array, Array, Array]]]:
    """Return moments of each trajectory, with velocities and weights there."""
    if not chosen:
        return {}
    batch = SystemBatch([maps[k] for k in chosen])
    scale = np.array([max(maps[k].speed, 1e-300) for k in chosen])
    path = batch.solve(starts[chosen], moments, scale)
    if path is None:
        if len(chosen) == 1:
            return {}
        halves = chosen[: len(chosen) // 2], chosen[len(chosen) // 2 :]
        return _paths(maps, starts, halves[0], moments) | _paths(maps, starts, halves[1], moments)
    moves = np.stack([batch.velocity(x) for x in path])
    weights = np.stack([batch.weights(x) for x in path])
    return {
        k: (moments / scale[b], (path[:, b], moves[:, b], weights[:, b]))
        for b, k in enumerate(chosen)
    }


def _ends(maps: list[Maps], starts: Array, chosen: list[int]) -> dict[int, tuple[Array, float]]:
    """Return directions after a long time, and how fast they still turn."""
    ends = {}
    for k, (_, (x, moves, _)) in _paths(maps, starts, chosen, LONG).items():
        lengths = np.linalg.norm(x[-1], axis=1, keepdims=True)
        y = x[-1] / np.maximum(lengths, 1e-300)
        turning = moves[-1] - (moves[-1] * y).sum(axis=1, keepdims=True) * y
        ends[k] = (y, float(np.abs(turning / np.maximum(lengths, 1e-300)).max()))
    return ends
