"""What each certificate claims, as a slack: how far a trajectory is from breaking it.

Enters: an `Episode` (a system's maps, moments of its trajectory with velocities and attention
weights) and the numbers of a certificate. Leaves: the smallest slack, negative where the claim is
broken; None where this episode cannot tell. Written from docs/certificates.md, in NumPy.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from orbitlens.verifying.reference import Array, Maps

GATHERED = 1e-2  # distance of directions that counts as gathered after a long time
STILL = 1e-8  # speed, relative to the system's own, of tokens that no longer move
NEAR = 1e-6  # distances below are not compared: the integrator's error
ROUNDED = 1e-9  # relative error of sums of products that nearly cancel


@dataclass(frozen=True, kw_only=True)
class Episode:
    """A system on its way."""

    maps: Maps
    times: Array  # in the system's own time; one moment alone where it was not integrated
    tokens: Array  # times x n x d
    velocities: Array
    weights: Array  # times x heads x n x n
    late: tuple[Array, float] | None  # directions after a long time, and their speed

    @property
    def units(self) -> Array:
        """Directions of the tokens."""
        lengths = np.linalg.norm(self.tokens, axis=-1, keepdims=True)
        return np.asarray(self.tokens / np.maximum(lengths, 1e-300))

    @property
    def score(self) -> Array:
        """W of the first head, where no encoding makes it depend on positions."""
        return self.maps.pair[0, 0, 0]

    @property
    def value(self) -> Array:
        """The sum of the value maps."""
        return np.asarray(self.maps.value.sum(axis=0))


Claim = dict[str, float]
Slack = float | None


def pairs_keep_order(episode: Episode, claim: Claim) -> Slack:
    """T1: 2 d^T A d' >= -slack d^T |A| d for all pairs, relative to |A| |d| |d'|."""
    a = _alignment(episode)
    if claim["sign"] * np.trace(episode.maps.value[0].T @ episode.score) <= 0:
        return -1.0
    size = float(np.linalg.norm(a, 2))
    centred = episode.tokens - episode.tokens.mean(axis=1, keepdims=True)
    inside = np.linalg.norm(centred, axis=-1).max(axis=-1) <= claim["radius"]
    gaps = _differences(episode.tokens[inside])
    moves = _differences(episode.velocities[inside])
    change = 2 * np.einsum("tpa,ab,tpb->tp", gaps, a, moves)
    length = np.linalg.norm(gaps, axis=-1)
    allowed = claim["slack"] * size * length**2
    scale = size * length * np.linalg.norm(moves, axis=-1)
    return _least((change + allowed)[scale > 0] / (scale + allowed)[scale > 0])


def energy_keeps_sign(episode: Episode, claim: Claim) -> Slack:
    """T2: dE/dt > 0 for E = sum x_i^T A x_i, A of the claimed sign, while a token is outside."""
    a = _alignment(episode)
    if claim["sign"] * np.trace(a) <= 0:
        return -1.0
    x, moves = episode.tokens, episode.velocities
    outside = np.linalg.norm(x, axis=-1).max(axis=-1) > claim["within"]
    change = np.einsum("tia,ab,tib->t", x, a, moves)
    lengths = np.linalg.norm(x, axis=-1) * np.linalg.norm(moves, axis=-1)
    scale = float(np.linalg.norm(a, 2)) * lengths.sum(axis=-1)
    good = outside & (scale > 0)
    return _least(change[good] / scale[good])


def every_token_grows(episode: Episode, claim: Claim) -> Slack:
    """T3: |x_i| >= start exp(rate t), as the logarithm of the ratio."""
    lengths = np.linalg.norm(episode.tokens, axis=-1).min(axis=-1)
    return _least(_log(lengths) - math.log(claim["start"]) - claim["rate"] * episode.times)


def leader_follows(episode: Episode, claim: Claim) -> Slack:
    """T4: |x_1| + less >= start exp(rate t); or the first token ends at the resting point."""
    if "rate" in claim:
        lengths = np.linalg.norm(episode.tokens[:, 0], axis=-1) + claim["less"]
        return _least(_log(lengths) - math.log(claim["start"]) - claim["rate"] * episode.times)
    v = episode.value
    rest = -np.linalg.solve(v, episode.maps.drift)
    away = episode.tokens[0, 0] - rest
    slowest = -float(np.linalg.eigvals(v).real.max())
    if slowest <= 0 or not away.any():
        return -1.0 if slowest <= 0 else None
    left = expm(60 / slowest * v) @ away
    return 1e-3 - float(np.linalg.norm(left) / np.linalg.norm(away))


def growth_is_bounded(episode: Episode, claim: Claim) -> Slack:
    """T5: max |x_i| <= exp(L t) max |x_i(0)| + |b| (exp(L t) - 1) / L."""
    lengths = np.linalg.norm(episode.tokens, axis=-1).max(axis=-1)
    rate, times = claim["rate"], episode.times
    grown = np.expm1(rate * times) / rate if rate > 0 else times
    bound = np.exp(rate * times) * lengths[0] + claim["drift"] * grown
    good = lengths > 0
    return _least(_log(bound[good]) - _log(lengths[good]))


def directions_gather(episode: Episode, claim: Claim) -> Slack:
    """N1, N1c: distances shrink as claimed, or are small after a long time."""
    y = episode.units
    if "pull" in claim:
        b = episode.maps.drift / np.linalg.norm(episode.maps.drift)
        least = np.tanh(claim["pull"] * episode.times + math.atanh(min(claim["cosine"], 1 - 1e-15)))
        return _least((y @ b).min(axis=-1) - least)
    if "rate" not in claim:
        return _gathered(episode, None)
    gaps = np.linalg.norm(_differences(y), axis=-1).max(axis=-1, initial=0.0)
    return _below(gaps, claim, episode.times)


def leader_turns(episode: Episode, claim: Claim) -> Slack:
    """N2: the first token nears an eigenvector of the largest real part as claimed."""
    values, vectors = np.linalg.eig(episode.value)
    v = vectors[:, int(np.argmax(values.real))].real
    v = v / np.linalg.norm(v)
    y = episode.units[:, 0]
    gaps = np.minimum(np.linalg.norm(y - v, axis=-1), np.linalg.norm(y + v, axis=-1))
    if "rate" in claim:
        return _below(gaps, claim, episode.times)
    if episode.late is None:
        return None
    return _settled(
        float(min(np.linalg.norm(episode.late[0][0] - s * v) for s in (1, -1))), episode
    )


def all_follow(episode: Episode, claim: Claim) -> Slack:
    """N3: after a long time all tokens have the first one's direction."""
    return _gathered(episode, episode.units[0, 0])


def attention_stays_soft(episode: Episode, claim: Claim) -> Slack:
    """N4: weights and entropies are above their floors, relative to them."""
    seen = np.isfinite(episode.maps.bias)
    weights = episode.weights
    least = _least(weights[:, seen] / claim["weight"] - 1)
    everything = seen.all(axis=-1)  # rows that see all tokens
    entropy = -(weights * _log(weights)).sum(axis=-1)[:, everything]
    lowest = _least(entropy / claim["entropy"] - 1) if entropy.size else None
    return min(s for s in (least, lowest) if s is not None)


def cosines_agree(episode: Episode, claim: Claim) -> Slack:
    """N5: all cosines are within the tolerance of the equiangular equation's solution."""
    n = episode.tokens.shape[1]
    v = np.array([m[0, 0] for m in episode.maps.value])
    b = np.array([m[0, 0, 0, 0] for m in episode.maps.pair])

    def pace(_: float, c: Array) -> Array:
        pull = 2 * v / (np.exp(b * (1 - c[0])) + n - 1)
        return np.array([pull.sum() * (1 - c[0]) * (1 + (n - 1) * c[0])])

    if len(episode.times) < 2:
        return None
    span = (0.0, float(episode.times[-1]))
    solved = solve_ivp(
        pace, span, [claim["cosine"]], "DOP853", episode.times, rtol=1e-11, atol=1e-13
    )
    gram = np.einsum("tid,tjd->tij", episode.units, episode.units)
    off = np.abs(gram - solved.y[0][:, None, None])[:, ~np.eye(n, dtype=bool)].max(axis=-1)
    allowed = claim["tolerance"] * np.exp(np.minimum(claim["growth"] * episode.times, 600.0))
    return _least(1 - off / (allowed + NEAR))


def energy_never_turns(episode: Episode, claim: Claim) -> Slack:
    """N6: sign d/dt sum_ij exp(y_i^T W y_j) >= -loss, relative to the size of its terms."""
    w, y, moves = episode.score, episode.units, episode.velocities
    scores = np.einsum("tid,de,tje->tij", y, w, y)
    weights = np.exp(scores - scores.max())
    change = np.einsum("tij,tid,de,tje->t", weights, moves, w, y)
    change += np.einsum("tij,tid,de,tje->t", weights, y, w, moves)
    size = float(np.linalg.norm(w, 2)) * np.linalg.norm(moves, axis=-1).max(axis=-1)
    scale = 2 * size * weights.sum(axis=(1, 2))
    allowed = claim["loss"] * weights.sum(axis=(1, 2))
    good = scale > STILL * episode.maps.speed * weights.sum(axis=(1, 2))
    return _least((claim["sign"] * change + allowed)[good] / scale[good])


STATEMENTS: dict[str, Callable[[Episode, Claim], Slack]] = {
    "T1": pairs_keep_order,
    "T2": energy_keeps_sign,
    "T3": every_token_grows,
    "T4": leader_follows,
    "T5": growth_is_bounded,
    "N1": directions_gather,
    "N1c": directions_gather,
    "N2": leader_turns,
    "N3": all_follow,
    "N4": attention_stays_soft,
    "N5": cosines_agree,
    "N6": energy_never_turns,
}
# By how much rounding and the integrator may make a slack negative.
TOLERANCE = {"T1": ROUNDED, "T2": ROUNDED, "N4": ROUNDED, "N6": ROUNDED}
INTEGRATED = 1e-6


def tolerance(name: str) -> float:
    """Return how far below 0 the slack of a certificate is not a violation."""
    return TOLERANCE.get(name, INTEGRATED)


# --- parts -----------------------------------------------------------------------------------


def _alignment(episode: Episode) -> Array:
    """Return a symmetric A with A V = W: W V+ on V's range, and what symmetry makes of it."""
    w, v = episode.score, episode.maps.value[0]
    back = np.linalg.pinv(v, rcond=1e-10)
    a = w @ back + (w @ back).T - v @ back @ w @ back
    return np.asarray((a + a.T) / 2)


def _differences(x: Array) -> Array:
    """Return x_i - x_k for all pairs i < k: times x pairs x d."""
    first, second = np.triu_indices(x.shape[1], 1)
    return x[:, first] - x[:, second]


def _log(x: Array) -> Array:
    return np.asarray(np.log(np.maximum(x, 1e-300)))


def _least(x: Array) -> Slack:
    return float(x.min()) if x.size else None


def _below(gaps: Array, claim: Claim, times: Array) -> Slack:
    """Return the logarithm of spread exp(-rate t) over what it bounds, where that is not small."""
    good = gaps > NEAR
    bound = math.log(max(claim["spread"], 1e-300)) - claim["rate"] * times
    return _least(bound[good] - _log(gaps[good]))


def _gathered(episode: Episode, target: Array | None) -> Slack:
    if episode.late is None:
        return None
    y = episode.late[0]
    centre = y[0] if target is None else target
    return _settled(float(np.linalg.norm(y - centre, axis=-1).max()), episode)


def _settled(gap: float, episode: Episode) -> Slack:
    """Compare a distance after a long time; tokens that still move say nothing."""
    assert episode.late is not None
    if gap < GATHERED:
        return GATHERED - gap
    return -gap if episode.late[1] < STILL * episode.maps.speed else None
