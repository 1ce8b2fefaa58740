"""Weights of a layer -> what they say of its rotation, and when they say enough.

Enters: queries and keys of every layer. Leaves: a `LayerPositions` each. Hypotheses are pairings
and shares of a head; evidence is in nats against no rotation (`theory/planes.py`). Layers of one
model are mostly alike, so a layer that says little is held against what the others say.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import torch

from orbitlens.families.architecture import Pairing
from orbitlens.heads.scores import ScoreWeights
from orbitlens.theory.planes import Energies, Marks, energies, marks, widths

# Chosen on the streams "choose" and "judge" of benchmarks/positions.py, frozen before "final" ran.
ENOUGH = 14.0  # nats for a rotation, found in one layer by itself
ENOUGH_LIKE_OTHERS = 7.0  # nats for the rotation that most other layers have
MARGIN = 3.0  # nats beyond the best hypothesis of another pairing
OTHER_WIDTH = 20.0  # nats that another width must bring beyond that of the config or the head,
OTHER_WIDTH_SHARE = 0.5  # and beyond this share of its nats: a part of a trend is a trend too
LITTLE = 5.0  # nats below which nothing speaks for a rotation
BALANCED = 0.3  # correlation of q^T q and k^T k: training is visible, and nothing else breaks it
BALANCED_UNLIKE_OTHERS = 0.6  # where other layers are rotated
FEWEST_PLANES = 4


class Found(StrEnum):
    """What the weights of a layer say."""

    ROTARY = "rotary"
    PLAIN = "not rotary"
    UNKNOWN = "cannot tell"


@dataclass(frozen=True, kw_only=True)
class Rotated:
    """Which coordinates of a head a rotation turns: the first `width` of them, in pairs."""

    pairing: Pairing
    width: int

    def __str__(self) -> str:
        """Name it in two words."""
        return f"{self.pairing.value}, {self.width}"


@dataclass(frozen=True, kw_only=True)
class LayerPositions:
    """What one layer's weights say of its rotation, beside what the config says."""

    stack: str
    layer: int
    d_head: int
    configured: Rotated | None  # None: the config has the layer unrotated
    found: Found
    rotated: Rotated | None  # where found is rotary
    best: Rotated  # the likeliest rotation, found or not
    nats: float  # for it, against no rotation
    margin: float  # nats beyond the best rotation of another pairing
    marks: Marks  # of it, by kind
    balance: float  # correlation of q^T q and k^T k off the diagonal
    spread: float  # variance of energies in units of that of random weights
    p_value: float | None  # share of shuffles within heads with as many nats; None: not shuffled

    @property
    def agrees(self) -> bool | None:
        """Whether the weights say what the config says; None where they do not say."""
        if self.found is Found.UNKNOWN:
            return None
        return self.rotated == self.configured


Weighed = dict[tuple[Pairing, int], Marks]


@dataclass(frozen=True, kw_only=True)
class LayerEvidence:
    """All hypotheses of a layer, weighed."""

    stack: str
    layer: int
    d_head: int
    configured: Rotated | None
    weighed: Weighed
    balance: float
    spread: float
    p_value: float | None

    @property
    def best(self) -> Rotated:
        """The likeliest rotation, of the config's width unless another is clearly likelier."""
        return best_of(self.weighed, self.usual)

    @property
    def usual(self) -> int:
        """The width that the config states, or that of a head."""
        return self.d_head // 2 * 2 if self.configured is None else self.configured.width

    def nats(self, rotated: Rotated) -> float:
        """Return what speaks for a rotation."""
        return self.weighed[rotated.pairing, rotated.width].nats


def best_of(weighed: Weighed, usual: int) -> Rotated:
    """Return the likeliest rotation, of the usual width unless another is clearly likelier.

    Pairs of neighbours in a part of a head are pairs of neighbours in all of it, so that widths
    are told apart less well than pairings.
    """
    best = {}
    for pairing in Pairing:
        at_usual = weighed[pairing, usual].nats
        width = max((w for p, w in weighed if p is pairing), key=lambda w: weighed[pairing, w].nats)
        other = weighed[pairing, width].nats
        clearly = other > at_usual + max(OTHER_WIDTH, OTHER_WIDTH_SHARE * other)
        best[pairing] = (other, width) if clearly else (at_usual, usual)
    pairing = max(best, key=lambda p: best[p][0])
    return Rotated(pairing=pairing, width=best[pairing][1])


def layer_evidence(
    scores: ScoreWeights,
    stack: str,
    layer: int,
    *,
    whole: bool = False,
    shuffles: int = 0,
    seed: int = 0,
) -> LayerEvidence:
    """Return the evidence of one layer for every rotation; `whole`: of all coordinates, if any."""
    seen = energies(scores.w_q, scores.w_k)
    spec = scores.spec.rotary
    configured = None
    if spec is not None:
        configured = Rotated(pairing=spec.pairing, width=min(spec.d_rotary, seen.d_head))
    sizes = {seen.d_head // 2 * 2} if whole else set(widths(seen.d_head))
    if configured is not None:
        sizes.add(configured.width)
    weighed = weigh(seen, sizes)
    return LayerEvidence(
        stack=stack,
        layer=layer,
        d_head=seen.d_head,
        configured=configured,
        weighed=weighed,
        balance=seen.balance,
        spread=seen.spread,
        p_value=_p_value(seen, weighed, shuffles, seed) if shuffles else None,
    )


def weigh(seen: Energies, sizes: Iterable[int]) -> Weighed:
    """Return the marks of all rotations of so many coordinates."""
    return {(pairing, width): marks(seen, pairing, width) for pairing in Pairing for width in sizes}


def _p_value(seen: Energies, weighed: Weighed, shuffles: int, seed: int) -> float:
    """Return how often coordinates shuffled within heads have as much evidence for any rotation."""
    generator = torch.Generator().manual_seed(seed)
    largest = max(marks.nats for marks in weighed.values())
    sizes = sorted({width for _, width in weighed})
    as_large = 0
    for _ in range(shuffles):
        shuffled = weigh(_shuffled(seen, generator), sizes)
        as_large += max(marks.nats for marks in shuffled.values()) >= largest
    return (1 + as_large) / (1 + shuffles)


def _shuffled(seen: Energies, generator: torch.Generator) -> Energies:
    """Put the coordinates of every head in an order of its own, the same for queries and keys."""
    n, width = seen.total.shape
    order = torch.argsort(torch.rand(n, width, generator=generator), dim=1)
    group = len(seen.crossed) // n
    rows = order.repeat_interleave(group, dim=0)
    crossed = seen.crossed.gather(1, rows[:, :, None].expand_as(seen.crossed))
    return replace(
        seen,
        total=seen.total.gather(1, order),
        imbalance=seen.imbalance.gather(1, order),
        crossed=crossed.gather(2, rows[:, None, :].expand_as(seen.crossed)),
    )


# --- what follows ----------------------------------------------------------------------------


def readings(layers: Sequence[LayerEvidence]) -> tuple[LayerPositions, ...]:
    """Return what each layer says, by itself and in the company of the others."""
    alone = [_decided(layer, None) for layer in layers]
    return tuple(_decided(layer, _company(alone, number)) for number, layer in enumerate(layers))


def _company(alone: Sequence[LayerPositions], number: int) -> Rotated | None:
    """Return the rotation that most other layers of the stack have, where most are rotary."""
    others = [
        each.rotated
        for k, each in enumerate(alone)
        if k != number and each.stack == alone[number].stack and each.rotated is not None
    ]
    return Counter(others).most_common(1)[0][0] if others else None


def _decided(layer: LayerEvidence, company: Rotated | None) -> LayerPositions:
    best = layer.best
    nats = layer.nats(best)
    others = [
        m.nats
        for (pairing, width), m in layer.weighed.items()
        if pairing is not best.pairing and width in (best.width, layer.usual)
    ]
    margin = nats - max(others)
    found, rotated = Found.UNKNOWN, None
    if layer.d_head >= 2 * FEWEST_PLANES:
        found, rotated = _answer(layer, best, margin, company)
    return LayerPositions(
        stack=layer.stack,
        layer=layer.layer,
        d_head=layer.d_head,
        configured=layer.configured,
        found=found,
        rotated=rotated,
        best=best,
        nats=nats,
        margin=margin,
        marks=layer.weighed[best.pairing, best.width],
        balance=layer.balance,
        spread=layer.spread,
        p_value=layer.p_value,
    )


def _answer(
    layer: LayerEvidence, best: Rotated, margin: float, company: Rotated | None
) -> tuple[Found, Rotated | None]:
    nats = layer.nats(best)
    if nats >= ENOUGH and margin >= MARGIN:
        return Found.ROTARY, best
    if best == company and nats >= ENOUGH_LIKE_OTHERS and margin > 0:
        return Found.ROTARY, best
    enough = BALANCED if company is None else BALANCED_UNLIKE_OTHERS
    if nats < LITTLE and layer.balance >= enough:
        return Found.PLAIN, None
    return Found.UNKNOWN, None
