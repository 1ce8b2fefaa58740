r"""What weights have by coordinate of a head, and which rotations turn which (theory section 8).

Enters: queries and keys of one layer. Leaves: energies and products of coordinates, in which a
rotation leaves marks (`theory/plane_evidence.py` weighs them).

A score depends on a plane's coordinates only through products that the rotation mixes. Training
therefore leaves marks that a permutation of coordinates would destroy:

- *energy*: what a plane carries depends on its frequency, so ln|q|^2 + ln|k|^2 is a smooth function
  of the plane's number, alike in its two members;
- *opposite*: the score does not change under q -> z q, k -> k / conj(z) for a complex z a plane,
  and under nothing larger. Gradient descent keeps, and weight decay shrinks, the conserved quantity
  |q_1|^2 + |q_2|^2 - |k_1|^2 - |k_2|^2; each member's own imbalance is free. So the imbalances
  ln|q|^2 - ln|k|^2 of the two members are opposite. Without a rotation the symmetry is GL(d_head),
  all of q^T q - k^T k shrinks, and imbalances have no partner;
- *balance*: planes that hardly turn within a context have nearly that larger symmetry among
  themselves, fast ones do not, so how well rows of q^T q and k^T k agree depends on the frequency;
- *crossed*: products q_1 k_2 and q_2 k_1 within a plane enter the score, those of two planes do
  not, and *products* q_1 k_1 and q_2 k_2 enter it alike.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.families.architecture import Pairing
from orbitlens.heads.rotary import plane_members

SMALLEST = 1e-30  # of an energy; zeros have a logarithm then
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
    balances: Float[Tensor, "kv_head d_head"]  # of q^T q and k^T k in one row (arctanh)
    balance: float  # correlation of q^T q and k^T k off the diagonal: 1 where all is balanced
    common: float  # size of what q^T q and k^T k share there, in units of their diagonals
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
    balance, common = _balance(queries, keys)
    drawn = 2 / w_q.shape[1] * (1 + 1 / group)  # variance of ln chi^2 with d or group * d degrees
    return Energies(
        total=total,
        imbalance=of_q - of_k,
        crossed=_cosines(grouped, w_k, gram_q, gram_k).double(),
        balances=_balances(queries, keys),
        balance=balance,
        common=common,
        spread=float(centred(total).square().mean()) / drawn,
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
) -> tuple[float, float]:
    """Return the correlation of two Gram matrices off their diagonals, and the size of its cause.

    Random weights have products of random signs there; what training adds to both is `common`.
    """
    n = queries.shape[-1]
    above, right = torch.triu_indices(n, n, offset=1)
    a, b = queries[:, above, right], keys[:, above, right]
    size = (a.square().sum() * b.square().sum()).sqrt()
    shared = (a * b).sum()
    levels = [gram.diagonal(dim1=1, dim2=2).mean() for gram in (queries, keys)]
    ratio = shared / a.numel() / (levels[0] * levels[1]).clamp(min=SMALLEST)
    return float(shared / size.clamp(min=SMALLEST)), float(ratio.clamp(min=0).sqrt())


def _balances(
    queries: Float[Tensor, "kv_head d_head d_head"], keys: Float[Tensor, "kv_head d_head d_head"]
) -> Float[Tensor, "kv_head d_head"]:
    """Return the same correlation for every coordinate: its products with all others."""
    others = 1 - torch.eye(queries.shape[-1], dtype=torch.float64)
    a, b = queries * others, keys * others
    size = (a.square().sum(dim=-1) * b.square().sum(dim=-1)).sqrt()
    r = (a * b).sum(dim=-1) / size.clamp(min=SMALLEST)
    return r.clamp(min=-HIGHEST, max=HIGHEST).atanh()


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


# --- other layers ----------------------------------------------------------------------------

Totals = Float[Tensor, "kv_head d_head"]  # as in `Energies`


def profile(total: Totals, pairing: Pairing, width: int) -> Float[Tensor, " _"]:
    """Return the mean energy of each plane, then that of the coordinates that are not turned."""
    first, second = plane_members(pairing, width)
    mean = centred(total).mean(dim=0)
    planes = (mean[first] + mean[second]) / 2
    return torch.cat([planes, mean[width:].mean().reshape(1)]) if width < len(mean) else planes


def centred(values: Float[Tensor, "any d_head"]) -> Float[Tensor, "any d_head"]:
    """Take the level of every head away."""
    return values - values.mean(dim=1, keepdim=True)
