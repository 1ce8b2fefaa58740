"""Linear attention with diagonal heads on powers of eigenvalues, and its exact expected loss.

Enters: eigenvalues, heads A and B, weights p of places. Leaves: predictions and losses. Tokens are
s_t = lambda^t by coordinates, t = 1 ... T; with C = B^T A the model predicts s_{T+1} by

    out_i = sum_t p_t (sum_k C_ik conj(s_{T-1,k}) s_{t,k}) s_{t,i}.

With angles that are uniform on the circle, out - s_{T+1} is a sum of characters, and characters are
orthonormal: the expected loss is the sum of squares of its coefficients (Parseval), without any
sampling. arXiv 2402.05787.
"""

from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from orbitlens.errors import InputError


class Spectrum(StrEnum):
    """Where eigenvalues come from."""

    CIRCLE = "circle"  # each its own angle: W unitary
    PAIRS = "pairs"  # lambda and its conjugate: W orthogonal


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is predicted from what."""

    spectrum: Spectrum
    d: int  # coordinates
    n_tokens: int  # T

    def __post_init__(self) -> None:
        """Refuse half a pair."""
        if self.spectrum is Spectrum.PAIRS and self.d % 2:
            raise InputError(
                f"{self.d} eigenvalues do not form conjugate pairs; expected an even d."
            )
        if self.n_tokens < 2:
            raise InputError(f"{self.n_tokens} tokens: expected at least 2, for a query and a key.")

    @property
    def owners(self) -> tuple[int, ...]:
        """The angle behind each coordinate."""
        per = 2 if self.spectrum is Spectrum.PAIRS else 1
        return tuple(k // per for k in range(self.d))

    @property
    def signs(self) -> tuple[int, ...]:
        """+1 for an eigenvalue, -1 for a conjugate."""
        pairs = self.spectrum is Spectrum.PAIRS
        return tuple(-1 if pairs and k % 2 else 1 for k in range(self.d))


@dataclass(frozen=True, kw_only=True)
class Characters:
    """Which terms of out - target share a character; for one or more orders of the tokens."""

    ids: Int[Tensor, " terms"]  # ordered by order of tokens, coordinate, place, k; targets last
    n: int
    n_orders: int
    d: int


def in_order(setting: Setting) -> Int[Tensor, "orders tokens"]:
    """Return the tokens' times at their places when nothing is shuffled."""
    return torch.arange(1, setting.n_tokens + 1)[None]


def shuffled_orders(
    setting: Setting, n: int, generator: torch.Generator
) -> Int[Tensor, "orders tokens"]:
    """Return random orders of the times 1 ... T."""
    noise = torch.rand(n, setting.n_tokens, generator=generator)
    return noise.argsort(dim=1) + 1


def characters(setting: Setting, orders: Int[Tensor, "orders tokens"]) -> Characters:
    """Return the characters of all terms; the query is the last token but one of an order."""
    n_orders, n_tokens = orders.shape
    d = setting.d
    owners, signs = torch.tensor(setting.owners), torch.tensor(setting.signs)
    unit = torch.nn.functional.one_hot(owners, max(setting.owners) + 1) * signs[:, None]
    steps = orders - orders[:, -2:-1]
    own = orders[:, None, :, None, None] * unit[None, :, None, None, :]
    other = steps[:, None, :, None, None] * unit[None, None, None, :, :]
    powers = (own + other).expand(n_orders, d, n_tokens, d, unit.shape[1])
    wanted = ((n_tokens + 1) * unit)[None].expand(n_orders, d, unit.shape[1])
    rows = [_named(powers.flatten(2, 3), n_orders, d), _named(wanted[:, :, None], n_orders, d)]
    _, ids = torch.unique(torch.cat(rows), dim=0, return_inverse=True)
    return Characters(ids=ids, n=int(ids.max()) + 1, n_orders=n_orders, d=d)


def expected_loss(
    c: Float[Tensor, "runs d d"], p: Float[Tensor, "runs tokens"], terms: Characters
) -> Float[Tensor, " runs"]:
    """Return the exact mean squared error per coordinate, of every run."""
    runs, d = c.shape[:2]
    one = (c[:, :, None, :] * p[:, None, :, None]).reshape(runs, 1, -1)
    values = one.expand(runs, terms.n_orders, one.shape[-1]).flatten(1)
    targets = -torch.ones(runs, terms.n_orders * d, dtype=c.dtype)
    empty = torch.zeros(runs, terms.n, dtype=c.dtype)
    sums = empty.index_add(1, terms.ids, torch.cat([values, targets], dim=1))
    return sums.square().sum(dim=1) / (terms.n_orders * d)


def eigenvalues(setting: Setting, n: int, generator: torch.Generator) -> Complex[Tensor, "n d"]:
    """Return eigenvalues of n systems, angles uniform on the circle."""
    angles = torch.rand(n, max(setting.owners) + 1, generator=generator, dtype=torch.float64)
    turns = angles[:, list(setting.owners)] * torch.tensor(setting.signs)
    return torch.polar(torch.ones_like(turns), 2 * torch.pi * turns)


def predictions(
    values: Complex[Tensor, "n d"],
    c: Float[Tensor, "d d"],
    p: Float[Tensor, " tokens"],
    order: Int[Tensor, " tokens"],
) -> Complex[Tensor, "n d"]:
    """Return what the model predicts, computed token by token as it is defined."""
    tokens = values[:, None, :] ** order[None, :, None]
    query = tokens[:, -2]
    scores = torch.einsum("ik,nk,ntk->nti", c.to(tokens.dtype), query.conj(), tokens)
    return torch.einsum("t,nti,nti->ni", p.to(tokens.dtype), scores, tokens)


def sampled_loss(
    values: Complex[Tensor, "n d"],
    c: Float[Tensor, "d d"],
    p: Float[Tensor, " tokens"],
    order: Int[Tensor, " tokens"],
) -> Float[Tensor, " n"]:
    """Return the squared error per coordinate of every system: a Monte-Carlo of the same model."""
    target = values ** (len(p) + 1)
    return (predictions(values, c, p, order) - target).abs().square().mean(dim=1)


def closed_form(c: Float[Tensor, "d d"], p: Float[Tensor, " tokens"], *, counted: int = 1) -> float:
    """Return the expected loss per coordinate for free angles and tokens in order.

    It is (d - 2 p_T tr C + |p|^2 |C|^2 + p_{T-1}^2 (sum C^T C - |C|^2)) / d.

    At place T - 1 the powers of the query cancel and all k share a character, so that its squares
    are not those of single entries. With `counted` = 2 these entries are counted again, as in the
    formula of the released code.
    """
    square = float(c.square().sum())
    together = float((c.T @ c).sum()) - (square if counted == 1 else 0.0)
    total = float(p.square().sum()) * square + float(p[-2]) ** 2 * together
    return (len(c) - 2 * float(p[-1]) * float(c.trace()) + total) / len(c)


def _named(powers: Tensor, n_orders: int, d: int) -> Tensor:
    """Return rows of powers that carry their order and their coordinate with them."""
    n = powers.shape[2]
    order = torch.arange(n_orders)[:, None, None, None].expand(n_orders, d, n, 1)
    coordinate = torch.arange(d)[None, :, None, None].expand(n_orders, d, n, 1)
    return torch.cat([order, coordinate, powers], dim=-1).flatten(0, 2)
