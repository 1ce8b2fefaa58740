"""Weights of a layer -> what they say of its rotation, and when they say enough.

Enters: queries and keys of every layer. Leaves: a `LayerPositions` each. Answers are a pairing, or
none; evidence is in nats against none (`theory/plane_evidence.py`). Layers of one stack are mostly
rotated alike, and that is all that one layer's answer says of another's. Their profile of energy is
lent to a layer only by two that are sure, or by one that is beyond doubt; that it is absent speaks
against a rotation.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens.families.architecture import Pairing
from orbitlens.heads.scores import ScoreWeights
from orbitlens.theory.plane_evidence import Marks, either, likeness, marks
from orbitlens.theory.planes import Energies, Totals, energies, leading, profile, widths

# Chosen on models of the first six streams of benchmarks/positions.py, frozen before the seventh.
SURE = 5.0  # nats of a rotation against all other answers together: 99 of 100
SURE_ALONE = 12.0  # of one layer that the others are held against; of two, SURE each
OTHER_WIDTH = 20.0  # nats against a width that no config states: slow planes are hardly turned,
OTHER_WIDTH_SHARE = 0.5  # so that a part of a head has most of the marks of all of it
DEVIANT = 0.15  # of layers, rotated otherwise than the rest of their stack
PLAIN = 1.0  # nats for no rotation: silence is worth little, so that balance is asked for too,
BALANCED = 0.35  # the correlation of q^T q and k^T k: training is visible, and no plane breaks it,
BALANCED_TOGETHER = 0.3  # or the mean over layers, none of which is
BALANCED_LIKE_OTHERS = 0.15  # less balanced than this
ALIKE = 0.95  # of rotated layers, whose energy has the profile that others of their stack have
COMMON_UNLIKE_OTHERS = 0.12  # of balanced products: enough training for their profile to show
PLAIN_UNLIKE_OTHERS = 2.0  # nats for no rotation, where others are rotated
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
    odds: float  # nats of the likeliest answer beyond all others together, other layers heard
    marks: Marks  # of it, by kind
    balance: float  # correlation of q^T q and k^T k off the diagonal
    spread: float  # variance of energies in units of that of random weights
    p_value: float | None  # share of shuffles within heads with as many nats; None: not shuffled
    is_leading: bool = False  # read in the directions that queries and keys weigh most, alone
    likeness: float | None = None  # nats for the profile of other rotated layers; None: none are

    @property
    def probability(self) -> float:
        """Of the likeliest answer: a pairing, or no rotation."""
        return 0.5 * (1 + math.tanh(self.odds / 2))  # the logistic function, which cannot overflow

    @property
    def agrees(self) -> bool | None:
        """Whether the weights say what the config says; None where they do not say."""
        if self.found is Found.UNKNOWN:
            return None
        return self.rotated == self.configured


Weighed = dict[tuple[Pairing, int], Marks]
Answers = dict[Pairing | None, float]  # nats of each pairing, and of no rotation


@dataclass(frozen=True, kw_only=True)
class LayerEvidence:
    """All hypotheses of a layer, weighed."""

    stack: str
    layer: int
    d_head: int
    configured: Rotated | None
    usual: int  # width that is supposed without a reason: as some config states, or that of a head
    weighed: Weighed
    totals: tuple[Totals, ...]  # energies; the first are those that were weighed
    is_leading: bool
    balance: float
    common: float
    spread: float
    p_value: float | None

    def nats(self, rotated: Rotated, company: "Company | None" = None) -> float:
        """Return what speaks for a rotation, all that was looked at taken into account."""
        found = self.weighed[rotated.pairing, rotated.width]
        total = found.nats - math.log(len(self.totals))
        if company is not None and rotated.width == company.width:
            like = company.likeness(self, rotated.pairing)
            total += either(like, found.energy, ALIKE) - found.energy
        if rotated.width == self.usual:
            return total
        return total - max(OTHER_WIDTH, OTHER_WIDTH_SHARE * total)

    def of_pairing(self, pairing: Pairing, company: "Company | None" = None) -> Rotated:
        """Return the likeliest rotation of a pairing."""
        sizes = {width for each, width in self.weighed if each is pairing}
        found = [Rotated(pairing=pairing, width=width) for width in sizes]
        return max(found, key=lambda each: self.nats(each, company))

    def likelihoods(self, company: "Company | None" = None) -> Answers:
        """Return the nats of each answer: a pairing, or none (0)."""
        found: Answers = {None: 0.0}
        for pairing in Pairing:
            found[pairing] = self.nats(self.of_pairing(pairing, company), company)
        return found

    def is_sure(self, enough: float) -> bool:
        """Say whether so many nats are for one pairing, by this layer alone."""
        best, odds = likeliest(self.likelihoods())
        return best is not None and odds >= enough and self.d_head >= 2 * FEWEST_PLANES

    @property
    def best(self) -> Rotated:
        """The likeliest rotation, by this layer alone."""
        return max(map(self.of_pairing, Pairing), key=self.nats)

    def is_beside(self, other: "LayerEvidence") -> bool:
        """Say whether another layer is of the same stack, and has weights of its own."""
        is_like = (self.stack, self.d_head) == (other.stack, other.d_head)
        return is_like and not torch.equal(self.totals[-1], other.totals[-1])


def likeliest(nats: Answers) -> tuple[Pairing | None, float]:
    """Return the likeliest answer, and its nats beyond all others together."""
    best = max(nats, key=lambda each: nats[each])
    return best, nats[best] - log_sum(value for each, value in nats.items() if each is not best)


def log_sum(nats: Iterable[float]) -> float:
    """Return the logarithm of a sum of exponentials."""
    values = list(nats)
    largest = max(values)
    return largest + math.log(sum(math.exp(each - largest) for each in values))


def layer_evidence(
    scores: ScoreWeights,
    stack: str,
    layer: int,
    *,
    whole: bool = False,
    shuffles: int = 0,
    seed: int = 0,
) -> LayerEvidence:
    """Return the evidence of one layer for every rotation; `whole`: of all coordinates, if any.

    Where all directions of tokens together do not say enough, the leading ones are looked at alone.
    """
    seen = energies(scores.w_q, scores.w_k)
    spec, d_head = scores.spec.rotary, seen.d_head
    configured = None
    if spec is not None:
        configured = Rotated(pairing=spec.pairing, width=min(spec.d_rotary, d_head))
    sizes = {d_head // 2 * 2} if whole else set(widths(d_head))
    if configured is not None:
        sizes.add(configured.width)

    def evidence(weighed: Weighed, *readings: Energies) -> LayerEvidence:
        return LayerEvidence(
            stack=stack,
            layer=layer,
            d_head=d_head,
            configured=configured,
            usual=d_head // 2 * 2 if configured is None else configured.width,
            weighed=weighed,
            totals=tuple(each.total for each in readings),
            is_leading=readings[0] is not seen,
            balance=seen.balance,
            common=seen.common,
            spread=seen.spread,
            p_value=_p_value(readings, weighed, shuffles, seed) if shuffles else None,
        )

    found = evidence(weigh(seen, sizes), seen)
    if found.is_sure(SURE_ALONE):
        return found
    lead = energies(*leading(scores.w_q, scores.w_k))
    other = evidence(weigh(lead, sizes), lead, seen)
    if other.nats(other.best) > max(found.nats(found.best), 0.0):
        return other
    return evidence(found.weighed, seen, lead)


def weigh(seen: Energies, sizes: Iterable[int]) -> Weighed:
    """Return the marks of all rotations of so many coordinates."""
    return {(pairing, width): marks(seen, pairing, width) for pairing in Pairing for width in sizes}


def _p_value(readings: Sequence[Energies], weighed: Weighed, shuffles: int, seed: int) -> float:
    """Return how often coordinates shuffled within heads have as much evidence for any rotation."""
    generator = torch.Generator().manual_seed(seed)
    largest = max(marks.nats for marks in weighed.values())
    sizes = sorted({width for _, width in weighed})
    as_large = 0
    for _ in range(shuffles):
        order = torch.argsort(torch.rand(readings[0].total.shape, generator=generator), dim=1)
        found = [weigh(_shuffled(each, order), sizes) for each in readings]
        as_large += max(m.nats for w in found for m in w.values()) >= largest
    return (1 + as_large) / (1 + shuffles)


def _shuffled(seen: Energies, order: Int[Tensor, "kv_head d_head"]) -> Energies:
    """Put the coordinates of every head in an order of its own, the same for queries and keys."""
    rows = order.repeat_interleave(len(seen.crossed) // len(order), dim=0)
    crossed = seen.crossed.gather(1, rows[:, :, None].expand_as(seen.crossed))
    return replace(
        seen,
        total=seen.total.gather(1, order),
        imbalance=seen.imbalance.gather(1, order),
        balances=seen.balances.gather(1, order),
        crossed=crossed.gather(2, rows[:, None, :].expand_as(seen.crossed)),
    )


# --- what follows ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Company:
    """What the other layers of a stack say, where that cannot be one layer's mistake."""

    width: int
    profile: Float[Tensor, " _"]  # their energy over planes

    @classmethod
    def of(cls, others: Sequence[LayerEvidence]) -> "Company | None":
        """Sum up what other layers have to say; None: not enough."""
        sure = [each for each in others if each.is_sure(SURE)]
        if not sure or (len(sure) == 1 and not sure[0].is_sure(SURE_ALONE)):
            return None
        width = Counter(each.best.width for each in sure).most_common(1)[0][0]
        profiles = [
            profile(each.totals[0], each.best.pairing, width)
            for each in sure
            if each.best.width == width
        ]
        return cls(width=width, profile=torch.stack(profiles).mean(dim=0))

    def likeness(self, layer: LayerEvidence, pairing: Pairing) -> float:
        """Return the nats for the others' profile in a layer, under a pairing."""
        return likeness(layer.totals[0], pairing, self.width, self.profile)


def readings(layers: Sequence[LayerEvidence]) -> tuple[LayerPositions, ...]:
    """Return what each layer says, by itself and in the company of the others."""
    layers = [_with_stated_width(layer, layers) for layer in layers]
    return tuple(_decided(layer, layers) for layer in layers)


def _with_stated_width(layer: LayerEvidence, layers: Sequence[LayerEvidence]) -> LayerEvidence:
    """Suppose the width that the config states for other layers, where it states none for this."""
    stated = Counter(each.configured.width for each in layers if each.configured is not None)
    likely = [
        width for width, _ in stated.most_common() if (Pairing.HALVES, width) in layer.weighed
    ]
    if layer.configured is not None or not likely:
        return layer
    return replace(layer, usual=likely[0])


def _decided(layer: LayerEvidence, layers: Sequence[LayerEvidence]) -> LayerPositions:
    others = [each for each in layers if layer.is_beside(each)]
    company = Company.of(others)
    best, odds = likeliest(posterior(layer, others, company))
    likely = max(Pairing, key=lambda each: layer.likelihoods(company)[each])
    rotated = layer.of_pairing(best or likely, company)
    found = Found.UNKNOWN
    if layer.d_head >= 2 * FEWEST_PLANES:
        if best is not None and odds >= SURE:
            found = Found.ROTARY
        elif best is None and _is_plain(layer, odds, others, company):
            found = Found.PLAIN
    nats = layer.likelihoods(company)
    return LayerPositions(
        stack=layer.stack,
        layer=layer.layer,
        d_head=layer.d_head,
        configured=layer.configured,
        found=found,
        rotated=rotated if found is Found.ROTARY else None,
        best=rotated,
        nats=nats[rotated.pairing],
        margin=nats[rotated.pairing] - nats[rotated.pairing.other],
        odds=odds,
        marks=layer.weighed[rotated.pairing, rotated.width],
        balance=layer.balance,
        spread=layer.spread,
        p_value=layer.p_value,
        is_leading=layer.is_leading,
        likeness=None if company is None else company.likeness(layer, rotated.pairing),
    )


def posterior(
    layer: LayerEvidence, others: Sequence[LayerEvidence], company: Company | None
) -> Answers:
    """Return the nats of each answer for a layer, with what the others say.

    Every layer is rotated as its stack is, but for a share of `DEVIANT`. So however sure a layer
    is, what it says of another one is worth two nats at most, and two layers are worth more.
    """
    own = layer.likelihoods(company)
    votes = [each.likelihoods() for each in others]
    found: Answers = {}
    for answer in own:
        by_stack = [
            _given(stack, answer) + sum(_seen(vote, stack) for vote in votes) for stack in own
        ]
        found[answer] = own[answer] + log_sum(by_stack)
    return found


def _given(stack: Pairing | None, answer: Pairing | None) -> float:
    """Return ln of how often a layer is so, where its stack is as said."""
    return math.log(1 - DEVIANT if answer is stack else DEVIANT / 2)


def _seen(vote: Answers, stack: Pairing | None) -> float:
    """Return the nats of a layer's weights, where its stack is as said."""
    return log_sum(_given(stack, answer) + nats for answer, nats in vote.items())


def _is_plain(
    layer: LayerEvidence, odds: float, others: Sequence[LayerEvidence], company: Company | None
) -> bool:
    """Say whether a layer is balanced as training leaves those without a rotation.

    A layer that attends by content alone has few marks of its rotation, and is balanced; so where
    others are rotated, their profile must be missing too. Where none is, a little balance in all
    layers is enough.
    """
    if company is not None:
        is_seen = layer.common >= COMMON_UNLIKE_OTHERS and layer.balance >= BALANCED
        return is_seen and odds >= PLAIN_UNLIKE_OTHERS
    mean = sum(each.balance for each in [layer, *others]) / (1 + len(others))
    together = len(others) > 0 and mean >= BALANCED_TOGETHER
    enough = BALANCED_LIKE_OTHERS if together else BALANCED
    return odds >= PLAIN and layer.balance >= enough
