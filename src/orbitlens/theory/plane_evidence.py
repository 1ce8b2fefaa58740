r"""How much likelier planes that a rotation turns make weights than no rotation: Bayes factors.

Enters: what a layer has by coordinate (`theory/planes.py`), a pairing and a width. Leaves: nats.

Without a rotation coordinates of a head are exchangeable: they were drawn alike, and training does
not tell them apart. So values v by head h and coordinate c are noise around a level a head. With
one, plane k of c matters,

    v = level_h + f(k) + g_h(k) + p_hk + noise,

f and g_h smooth (a plane's energy depends on its frequency, which is smooth in k; f is common to
heads), p_hk what a plane has by itself in one head, the same in both members, or opposite in the
two. All are Gaussian; their variances, in units of the noise, are averaged over a grid, and the
noise is whatever fits best on either side. The two members' sums and differences are independent,
and K, the covariance of smooth curves, has the same eigenvectors in all of the grid, so that no
matrix is inverted.

Each kind of value may also have nothing to say of planes: half of the prior is for that, so that a
silent kind costs ln 2 and no more. The mean of a Bayes factor over exchangeable weights is 1, so
that by chance it is above e^x in fewer than e^-x of layers.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.families.architecture import Pairing
from orbitlens.heads.rotary import plane_members
from orbitlens.theory.planes import SMALLEST, Energies, Totals, centred

ByCoordinate = Float[Tensor, "any d_head"]
LENGTHS = (0.7, 1.4)  # over which curves are smooth; planes lie from -1 to 1
COMMON = (0.0, 0.3, 1.0, 3.0, 10.0, 30.0)  # variance of f, in units of the noise
OWN = (0.0, 0.5, 5.0)  # of each g_h
SINGLE = (0.0, 0.3, 1.0, 3.0, 10.0)  # of p_hk, in a sum or difference of members
FACTOR, FACTOR_SPREAD = 0.8, 0.5  # of others' profile in a rotated layer: median, deviation of ln
SCORE = 5.0  # how many deviations of chance a score is off by, where there are planes


@dataclass(frozen=True, kw_only=True)
class Marks:
    """The evidence for one hypothesis, in nats against no rotation, by kind of value."""

    energy: float  # ln|q|^2 + ln|k|^2: smooth over planes, members alike
    opposite: float  # ln|q|^2 - ln|k|^2: members opposite
    product: float  # cosines of q and k of one coordinate: members alike
    balance: float  # of q^T q and k^T k, by coordinate: slow planes are balanced, fast ones not
    crossed: float  # cosines of q of one member and k of the other, larger than between planes

    @property
    def nats(self) -> float:
        """All of it."""
        return self.energy + self.opposite + self.product + self.balance + self.crossed


def marks(found: Energies, pairing: Pairing, width: int) -> Marks:
    """Return the evidence that the first `width` coordinates are turned in pairs.

    Coordinates of much energy have larger products and are better balanced, rotated or not: what
    energies say already is taken away from these.
    """
    products = found.crossed.diagonal(dim1=1, dim2=2)
    products = products.unflatten(0, (len(found.total), -1)).mean(dim=1)
    return Marks(
        energy=plane_nats(found.total, pairing, width),
        opposite=plane_nats(found.imbalance, pairing, width, opposite=True),
        product=plane_nats(beyond(products, found.total), pairing, width),
        balance=plane_nats(beyond(found.balances, found.total), pairing, width),
        crossed=_score_nats(_crossed_score(found.crossed, pairing, width)),
    )


def beyond(values: ByCoordinate, known: ByCoordinate) -> ByCoordinate:
    """Return what of some values, levels of heads off, does not follow from others by a line.

    One slope for all heads; no coordinate is special to it, so that exchangeable ones stay so.
    """
    values, known = centred(values), centred(known)
    size = known.square().sum().clamp(min=SMALLEST)
    return values - (values * known).sum() / size * known


def either(nats: float, other: float = 0.0, share: float = 0.5) -> float:
    """Return the evidence for one of two accounts, the first of so large a share beforehand.

    >>> either(0.0), round(either(100.0), 2), round(either(-100.0), 2)
    (0.0, 99.31, -0.69)
    >>> round(either(-100.0, share=0.95), 2)
    -3.0
    """
    first, second = nats + math.log(share), other + math.log1p(-share)
    high, low = max(first, second), min(first, second)
    return high + math.log1p(math.exp(low - high))


# --- values by coordinate ---------------------------------------------------------------------


def plane_nats(
    values: ByCoordinate, pairing: Pairing, width: int, *, opposite: bool = False
) -> float:
    """Return the evidence that values follow planes, their members alike or opposite."""
    values = centred(values)
    n_heads, d_head = values.shape
    parts = _parts(values, pairing, width)
    n_free = n_heads * (d_head - 1)
    null = 0.5 * n_free * math.log(max(float(values.square().sum()), SMALLEST))
    logs = []
    for length in LENGTHS:
        size, spread = _fit(parts, length, opposite=opposite)
        logs.append(-0.5 * n_free * size.clamp(min=SMALLEST).log() - 0.5 * spread)
    found = torch.cat(logs)
    return either(float(found.logsumexp(0)) - math.log(len(found)) + null)


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """Values in coordinates that are independent of each other."""

    sums: Float[Tensor, "head plane"]  # of the members of planes, over sqrt 2
    differences: float  # sum of their squares
    step: Float[Tensor, " head"] | None  # level of turned coordinates above that of the others
    rest: float  # sum of squares of the others about their level


def _parts(values: ByCoordinate, pairing: Pairing, width: int) -> _Parts:
    first, second = plane_members(pairing, width)
    a, b = values[:, first], values[:, second]
    sums, rest, step = (a + b) / math.sqrt(2), values[:, width:], None
    left = 0.0
    n_rest = rest.shape[1]
    if n_rest:
        level = rest.mean(dim=1)
        left = float((rest - level[:, None]).square().sum())
        step = (a.mean(dim=1) + b.mean(dim=1) - 2 * level) / 2
        step = step * math.sqrt(width * n_rest / (width + n_rest))
    return _Parts(sums=sums, differences=float((a - b).square().sum()) / 2, step=step, rest=left)


def _fit(
    parts: _Parts, length: float, *, opposite: bool
) -> tuple[Float[Tensor, " grid"], Float[Tensor, " grid"]]:
    """Return squares in units of their variances, and logarithms of variances, for all the grid."""
    n_heads, n_planes = parts.sums.shape
    common, own, single = _grid()
    alike, unlike = (torch.zeros_like(single), single) if opposite else (single, 0 * single)
    sizes, axes = _curves(n_planes, length)
    along = parts.sums @ axes
    of_mean = n_heads * along.mean(dim=0).square()
    of_own = along.square().sum(dim=0) - of_mean
    in_mean = 1 + 2 * sizes * (common + own)[:, None] + alike[:, None]
    in_own = 1 + 2 * sizes * own[:, None] + alike[:, None]
    size = (of_mean / in_mean).sum(1) + (of_own / in_own).sum(1)
    spread = in_mean.log().sum(1) + (n_heads - 1) * in_own.log().sum(1)
    size = size + parts.differences / (1 + unlike) + parts.rest
    spread = spread + n_heads * n_planes * unlike.log1p()
    if parts.step is not None:
        of_mean = n_heads * parts.step.mean().square()
        of_own = parts.step.square().sum() - of_mean
        size = size + of_mean / (1 + 2 * (common + own)) + of_own / (1 + 2 * own)
        spread = spread + (2 * (common + own)).log1p() + (n_heads - 1) * (2 * own).log1p()
    return size, spread


@lru_cache(maxsize=1)
def _grid() -> tuple[Tensor, ...]:
    axes = [torch.tensor(values, dtype=torch.float64) for values in (COMMON, OWN, SINGLE)]
    return tuple(axis.flatten() for axis in torch.meshgrid(*axes, indexing="ij"))


@lru_cache(maxsize=64)
def _curves(n_planes: int, length: float) -> tuple[Tensor, Tensor]:
    """Return the covariance of smooth curves without a level: eigenvalues and eigenvectors."""
    place = torch.linspace(-1, 1, n_planes, dtype=torch.float64)
    covariance = (-0.5 * ((place[:, None] - place) / length).square()).exp()
    level = torch.full((n_planes, 1), 1 / math.sqrt(n_planes), dtype=torch.float64)
    free = torch.linalg.qr(torch.cat([level, torch.eye(n_planes, dtype=torch.float64)], 1)).Q[:, 1:]
    sizes, axes = torch.linalg.eigh(free.T @ covariance @ free)
    return sizes.clamp(min=0), free @ axes


# --- products of two coordinates --------------------------------------------------------------


def _crossed_score(
    crossed: Float[Tensor, "head d_head d_head"], pairing: Pairing, width: int
) -> float:
    """Return how much larger products within planes are than others, in deviations of chance."""
    first, second = plane_members(pairing, width)
    squares = crossed[:, :width, :width].square()
    others = torch.ones(width, width, dtype=torch.bool).fill_diagonal_(False)
    others[first, second] = others[second, first] = False
    rest = squares[:, others]
    if rest.numel() == 0:
        return 0.0
    within = torch.cat([squares[:, first, second], squares[:, second, first]])
    mean = float(rest.mean())
    if mean < SMALLEST:
        return 0.0
    deviation = float(rest.std()) / mean / math.sqrt(within.numel())
    return math.log(max(float(within.mean()) / mean, SMALLEST)) / max(deviation, SMALLEST)


def _score_nats(score: float) -> float:
    """Return the evidence of a score that planes make positive, by some `SCORE` deviations."""
    share = SCORE**2 / (1 + SCORE**2)
    below = 0.5 * math.erfc(-score * math.sqrt(share / 2))
    return either(
        0.5 * share * score**2 - 0.5 * math.log1p(SCORE**2) + math.log(2 * below + SMALLEST)
    )


# --- other layers -----------------------------------------------------------------------------


def likeness(total: Totals, pairing: Pairing, width: int, other: Float[Tensor, " _"]) -> float:
    """Return the evidence that energies follow the profile of other layers, by some factor.

    The logarithm of the factor is normal: a layer that is rotated as the others has about as much
    of the profile as they (`FACTOR`, `FACTOR_SPREAD`). So a layer in which the factor is zero, to
    within a small error, has evidence *against*, without a bound.
    """
    first, second = plane_members(pairing, width)
    values = centred(total)
    template = torch.full_like(values[0], float(other[-1]))
    template[first] = template[second] = other[: len(first)]
    template = template - template.mean()
    n_heads, n_free = len(values), len(values) * (values.shape[1] - 1)
    before = max(float(values.square().sum()), SMALLEST)
    along = n_heads * float((values.mean(dim=0) * template).sum()) / before
    size = n_heads * float(template.square().sum()) / before
    places = torch.linspace(-4, 4, 81, dtype=torch.float64)
    factor = (math.log(FACTOR) + FACTOR_SPREAD * places).exp()
    left = (1 - 2 * along * factor + size * factor.square()).clamp(min=SMALLEST)
    weights = (-0.5 * places.square()).log_softmax(0)
    return float((weights - 0.5 * n_free * left.log()).logsumexp(0))
