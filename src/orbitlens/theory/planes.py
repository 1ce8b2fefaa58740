r"""What the weights say of the planes that a rotary encoding turns (theory section 8).

Enters: queries and keys of one layer. Leaves: for a hypothesis (which coordinates are turned, and
which two together) the logarithm of how much likelier it makes the weights than no rotation.

A score depends on a plane's coordinates only through products that the rotation mixes. Training
therefore leaves marks that a permutation of coordinates would destroy:

- *trend*: a plane's energy depends on its frequency, so energies are a smooth function of the
  plane's number;
- *alike*: the two members of a plane carry like energies, e = ln|q|^2 + ln|k|^2;
- *balance*: the score does not change under q -> z q, k -> k / conj(z) for a complex z a plane, and
  under nothing larger. Gradient descent keeps, and weight decay shrinks, the conserved quantity
  |q_1|^2 + |q_2|^2 - |k_1|^2 - |k_2|^2; each member's own imbalance is free. So the imbalances
  ln|q|^2 - ln|k|^2 of the two members are opposite. Without a rotation the symmetry is GL(d_head),
  all of q^T q - k^T k shrinks, and imbalances have no partner;
- *crossed*: products q_1 k_2 and q_2 k_1 within a plane enter the score, those of two planes do
  not, and q_1 k_1 and q_2 k_2 enter it alike.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens.families.architecture import Pairing
from orbitlens.heads.rotary import plane_members

SMALLEST = 1e-30  # of an energy; zeros have a logarithm then
DEGREE = 2  # of the trend
HIGHEST = 0.999  # a correlation
SHARES = (0.25, 0.4, 0.5, 0.75, 1.0)  # of a head that is turned: GPT-NeoX, Phi-2, ...
FEWEST = 8  # coordinates of a part of a head
LEADING_SHARE = 1 / 16  # of the directions of tokens


@dataclass(frozen=True, kw_only=True)
class Energies:
    """What a layer's queries and keys have by coordinate; keys' heads are summed over queries."""

    total: Float[Tensor, "kv_head d_head"]  # ln|q|^2 + ln|k|^2
    imbalance: Float[Tensor, "kv_head d_head"]  # ln|q|^2 - ln|k|^2
    crossed: Float[Tensor, "head d_head d_head"]  # cosines of q_a and k_b
    balance: float  # correlation of q^T q and k^T k off the diagonal: 1 where all is balanced
    spread: float  # variance of `total` in units of that of random weights

    @property
    def d_head(self) -> int:
        """Width of a head."""
        return self.total.shape[1]


def energies(
    w_q: Float[Tensor, "head d_model d_head"], w_k: Float[Tensor, "kv_head d_model d_head"]
) -> Energies:
    """Return the energies of a layer."""
    grouped = w_q.unflatten(0, (len(w_k), -1))
    group = grouped.shape[1]
    gram_q, gram_k = w_q.mT @ w_q, w_k.mT @ w_k
    queries = gram_q.unflatten(0, (len(w_k), group)).sum(dim=1).double()
    keys = gram_k.double()
    of_q, of_k = (
        gram.diagonal(dim1=1, dim2=2).clamp(min=SMALLEST).log() for gram in (queries, keys)
    )
    total = of_q + of_k
    drawn = 2 / w_q.shape[1] * (1 + 1 / group)  # variance of ln chi^2 with d or group * d degrees
    return Energies(
        total=total,
        imbalance=of_q - of_k,
        crossed=_cosines(grouped, w_k, gram_q, gram_k).double(),
        balance=_balance(queries, keys),
        spread=float(_centred(total).square().mean()) / drawn,
    )


def _cosines(
    grouped: Float[Tensor, "kv_head group d_model d_head"],
    w_k: Float[Tensor, "kv_head d_model d_head"],
    gram_q: Float[Tensor, "head d_head d_head"],
    gram_k: Float[Tensor, "kv_head d_head d_head"],
) -> Float[Tensor, "head d_head d_head"]:
    """Return the cosine of every q_a with every k_b, head by head."""
    sizes_q, sizes_k = (gram.diagonal(dim1=1, dim2=2).sqrt() for gram in (gram_q, gram_k))
    sizes = sizes_q.unflatten(0, grouped.shape[:2])[..., None] * sizes_k[:, None, None, :]
    return ((grouped.mT @ w_k[:, None]) / sizes.clamp(min=SMALLEST)).flatten(0, 1)


def _balance(
    queries: Float[Tensor, "kv_head d_head d_head"], keys: Float[Tensor, "kv_head d_head d_head"]
) -> float:
    n = queries.shape[-1]
    above, right = torch.triu_indices(n, n, offset=1)
    a, b = queries[:, above, right], keys[:, above, right]
    size = (a.square().sum() * b.square().sum()).sqrt()
    return float((a * b).sum() / size.clamp(min=SMALLEST))


def leading(
    w_q: Float[Tensor, "head d_model d_head"], w_k: Float[Tensor, "kv_head d_model d_head"]
) -> tuple[Float[Tensor, "head lead d_head"], Float[Tensor, "kv_head lead d_head"]]:
    """Return queries and keys as seen from the directions of tokens that they weigh most.

    What training adds to random weights has few directions; the rest is what they were drawn with.
    """
    n = max(2, round(LEADING_SHARE * w_q.shape[1]))
    sides = [w.transpose(0, 1).flatten(1) / w.norm().clamp(min=SMALLEST) for w in (w_q, w_k)]
    gram = sum(side @ side.T for side in sides)
    axes = torch.linalg.eigh(gram).eigenvectors[:, -n:]
    return axes.T @ w_q, axes.T @ w_k


# --- hypotheses ------------------------------------------------------------------------------


def widths(d_head: int) -> tuple[int, ...]:
    """Return how many coordinates rotations turn: all, or a share that a family of models has.

    >>> widths(64), widths(80), widths(9), widths(4)
    ((16, 26, 32, 48, 64), (20, 32, 40, 60, 80), (8,), (4,))
    """
    whole = d_head // 2 * 2
    shares = {2 * round(share * whole / 2) for share in SHARES}
    return tuple(sorted(width for width in shares if width >= FEWEST or width == whole))


@dataclass(frozen=True, kw_only=True)
class Marks:
    """The evidence for one hypothesis, in nats against no rotation."""

    trend: float  # of energies and of imbalances over planes
    alike: float  # energies of the two members
    balance: float  # imbalances of the two members, opposite
    crossed: float  # products within planes, their sizes and likeness

    @property
    def nats(self) -> float:
        """All of it."""
        return self.trend + self.alike + self.balance + self.crossed


def marks(found: Energies, pairing: Pairing, width: int) -> Marks:
    """Return the evidence that the first `width` coordinates are turned in pairs."""
    first, second = plane_members(pairing, width)
    total, gain_total = _detrended(found.total, first, second)
    imbalance, gain_imbalance = _detrended(found.imbalance, first, second)
    diagonal, _ = _detrended(found.crossed.diagonal(dim1=1, dim2=2), first, second)
    return Marks(
        trend=gain_total + gain_imbalance,
        alike=_pair_nats(total, first, second),
        balance=_pair_nats(imbalance, first, second, opposite=True),
        crossed=_pair_nats(diagonal, first, second)
        + _nats(_crossed_score(found.crossed, first, second)),
    )


# --- other layers ----------------------------------------------------------------------------

Totals = Float[Tensor, "kv_head d_head"]  # as in `Energies`


def profile(total: Totals, pairing: Pairing, width: int) -> Float[Tensor, " _"]:
    """Return the mean energy of each plane, then that of the coordinates that are not turned."""
    first, second = plane_members(pairing, width)
    mean = _centred(total).mean(dim=0)
    planes = (mean[first] + mean[second]) / 2
    return torch.cat([planes, mean[width:].mean().reshape(1)]) if width < len(mean) else planes


def likeness(total: Totals, pairing: Pairing, width: int, other: Float[Tensor, " _"]) -> float:
    """Return the nats by which energies follow the profile of other layers; below 0: against it."""
    first, second = plane_members(pairing, width)
    values = _centred(total)
    template = torch.full_like(values[0], float(other[-1]))
    template[first] = template[second] = other[: len(first)]
    template = template - template.mean()
    mean = values.mean(dim=0)
    size = float(template.square().sum())
    slope = float((mean * template).sum()) / max(size, SMALLEST)
    before = float(values.square().sum())
    after = before - len(values) * slope**2 * size
    gain = 0.5 * values.numel() * math.log(max(before, SMALLEST) / max(after, SMALLEST))
    return math.copysign(gain, slope)


def _detrended(
    values: Float[Tensor, "any d_head"], first: Int[Tensor, " pair"], second: Int[Tensor, " pair"]
) -> tuple[Float[Tensor, "any d_head"], float]:
    """Take a polynomial in the number of the plane away; return what is left, and nats it explains.

    Coordinates that are not turned have a level of their own. A level a head is not counted.
    """
    centred = _centred(values)
    d_head, n_planes = centred.shape[1], len(first)
    place = torch.linspace(-1, 1, n_planes, dtype=torch.float64)
    terms = torch.zeros(d_head, DEGREE + 1, dtype=torch.float64)
    for power in range(DEGREE + 1):
        terms[first, power] = terms[second, power] = place**power
    terms = terms - terms.mean(dim=0)
    wanted = centred.mean(dim=0)
    weights = torch.linalg.lstsq(terms, wanted[:, None], driver="gelsd").solution
    rest = centred - (terms @ weights)[:, 0]
    before, after = float(centred.square().sum()), float(rest.square().sum())
    n_terms = DEGREE + int(2 * n_planes < d_head)
    gain = 0.5 * centred.numel() * math.log(max(before, SMALLEST) / max(after, SMALLEST))
    return rest, max(0.0, gain - 0.5 * n_terms * math.log(d_head))


def _pair_nats(
    values: Float[Tensor, "any d_head"],
    first: Int[Tensor, " pair"],
    second: Int[Tensor, " pair"],
    *,
    opposite: bool = False,
) -> float:
    """Return the evidence that members of planes are alike, or opposite.

    What all heads have in common counts once, not once a head; what each has of its own is
    independent of the others'.
    """
    sign = -1.0 if opposite else 1.0
    common = values.mean(dim=0, keepdim=True)
    shared = sign * _pair_score(common, first, second, len(first))
    if len(values) == 1:
        return _nats(shared)
    own = sign * _pair_score(values - common, first, second, (len(values) - 1) * len(first))
    return _nats(shared) + _nats(own)


def _pair_score(
    values: Float[Tensor, "any d_head"],
    first: Int[Tensor, " pair"],
    second: Int[Tensor, " pair"],
    n_pairs: int,
) -> float:
    """Return how correlated the members of planes are, in standard deviations of chance."""
    a, b = values[:, first], values[:, second]
    size = float(a.square().sum() + b.square().sum())
    r = 2 * float((a * b).sum()) / max(size, SMALLEST) + 1 / (2 * len(first) - 1)
    return math.atanh(max(-HIGHEST, min(HIGHEST, r))) * math.sqrt(max(n_pairs - 3, 0))


def _crossed_score(
    crossed: Float[Tensor, "head d_head d_head"],
    first: Int[Tensor, " pair"],
    second: Int[Tensor, " pair"],
) -> float:
    """Return how much larger products within planes are than others, in deviations of chance."""
    width = 2 * len(first)
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


def _nats(score: float) -> float:
    """Return the evidence of a score in the direction that a rotation has, none in the other."""
    return 0.5 * max(0.0, score) ** 2


def _centred(values: Float[Tensor, "any d_head"]) -> Float[Tensor, "any d_head"]:
    return values - values.mean(dim=1, keepdim=True)
