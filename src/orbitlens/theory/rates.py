"""Rates: what a head or a layer does to a cloud of tokens (theory section 3, T6).

Enters: heads, and the tokens' covariance where there is one. Leaves: the eigenvalues of sym(B),
B = sum_h V_h S W_h^T, with S the covariance (S = I: the weights-only reading). Token differences
obey d/dt delta = B delta: exact for Gaussian tokens and many of them, a closure otherwise.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens._types import Covariance, HeadMatrix, Spectrum
from orbitlens.errors import InputError
from orbitlens.heads.head import Head
from orbitlens.theory.maps import HeadMaps, matrix_root
from orbitlens.theory.spectrum import (
    DENSE_LIMIT,
    SymmetricSummary,
    is_estimated,
    summarise_symmetric,
    symmetric_eigenvalues,
)

ROUNDING = 1e-9  # a rate this small beside the largest counts as zero


class Regime(StrEnum):
    """The signs of the rates."""

    DIVERGING = "diverging"  # none is negative
    CONVERGING = "converging"  # none is positive
    MIXED = "mixed"


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The rates of a head or a layer, per unit of depth, over all d_model directions."""

    smallest: float
    mean: float  # trace of B over d_model: half the growth rate of squared pair distance, S = I
    largest: float
    size: float  # sum of the moduli of all rates, the nuclear norm of sym(B)
    expansion_index: float  # trace / size, in [-1, 1]
    regime: Regime
    relative_error: float = 0.0  # of `size`, where it was estimated; 0 where it is exact

    @classmethod
    def from_summary(cls, summary: SymmetricSummary) -> "Rates":
        """Read a spectrum's summary as rates."""
        size = summary.nuclear_norm
        floor = ROUNDING * max(abs(summary.smallest), abs(summary.largest))
        index = summary.trace / size if size > 0 else 0.0
        return cls(
            smallest=summary.smallest,
            mean=summary.trace / summary.dimension,
            largest=summary.largest,
            size=size,
            expansion_index=min(1.0, max(-1.0, index)),
            regime=_regime(summary.smallest, summary.largest, floor),
            relative_error=summary.relative_error,
        )


def _regime(smallest: float, largest: float, floor: float) -> Regime:
    if smallest >= -floor and largest > floor:
        return Regime.DIVERGING
    if largest <= floor and smallest < -floor:
        return Regime.CONVERGING
    return Regime.MIXED


def core(maps: HeadMaps, covariance: Covariance | None = None) -> HeadMatrix:
    """Return C = U^T S R, the r x r middle of B = O C L^T."""
    if covariance is None:
        return maps.value_right
    if covariance.shape != (maps.d_model, maps.d_model):
        raise InputError(
            f"the covariance has shape {list(covariance.shape)}; this head acts on tokens of width "
            f"{maps.d_model}, so {maps.d_model} x {maps.d_model} was expected."
        )
    return maps.value.T @ (covariance.to(maps.value) @ maps.right)


def rate_spectrum(maps: HeadMaps, covariance: Covariance | None = None) -> Spectrum:
    """Return the rates of a head that its rank does not force to zero, in ascending order."""
    c = core(maps, covariance)
    if 2 * maps.left.shape[1] >= maps.d_model:
        drift = maps.out @ c @ maps.left.T
        return symmetric_eigenvalues((drift + drift.T) / 2)
    return cored_spectrum(c, maps.out_out, maps.out_left, maps.left_left)


def cored_spectrum(
    c: Float[Tensor, "width width"],
    out_out: Float[Tensor, "width width"],
    out_left: Float[Tensor, "width width"],
    left_left: Float[Tensor, "width width"],
) -> Spectrum:
    """Return the eigenvalues of sym(O C L^T) from C and the Gram blocks of O and L.

    sym(O C L^T) = G K G^T with G = [O, L] and K = [[0, C], [C^T, 0]] / 2, so the eigenvalues that
    are not forced to zero are those of F^T K F with F F^T = G^T G (theory section 3, "Cost").
    """
    # O and L may differ by orders of magnitude. Balanced, the Gram matrix is as well conditioned
    # as it can be, and the product is unchanged.
    sizes = out_out.trace().item(), left_left.trace().item()
    balance = (sizes[0] / sizes[1]) ** 0.5 if min(sizes) > 0 else 1.0
    half = matrix_root(_blocks(out_out / balance, out_left, left_left * balance))
    width = c.shape[0]
    product = half[:width].T @ (c @ half[width:])  # F^T K F is its symmetric part
    return symmetric_eigenvalues((product + product.T) / 2)


def _blocks(first: Tensor, corner: Tensor, second: Tensor) -> Tensor:
    top = torch.cat([first, corner], dim=1)
    bottom = torch.cat([corner.T, second], dim=1)
    return torch.cat([top, bottom])


def head_rates(head: Head | HeadMaps, covariance: Covariance | None = None) -> Rates:
    """Return the rates of one head: weights-only, or data-aware with the tokens' covariance.

    >>> from orbitlens.heads.head import make_head
    >>> eye = torch.eye(4, dtype=torch.float64)
    >>> head_rates(make_head(eye, eye, eye, eye, scale=1.0)).expansion_index
    1.0
    >>> head_rates(make_head(eye, eye, eye, -eye, scale=1.0)).regime.value
    'converging'
    """
    maps = head if isinstance(head, HeadMaps) else HeadMaps.of(head)
    return rates_of_spectrum(rate_spectrum(maps, covariance), maps.d_model)


def rates_of_spectrum(spectrum: Spectrum, d_model: int) -> Rates:
    """Return rates from their non-zero part; the other directions are not moved at all."""
    full = spectrum if spectrum.numel() >= d_model else torch.cat([spectrum, spectrum.new_zeros(1)])
    return Rates.from_summary(
        SymmetricSummary(
            smallest=full.min().item(),
            largest=full.max().item(),
            trace=spectrum.sum().item(),
            nuclear_norm=spectrum.abs().sum().item(),
            dimension=d_model,
        )
    )


class LayerDrift:
    """The sum over heads of B_h, built up one head at a time.

    A layer whose heads together are narrower than half the tokens stays in factors; any other
    becomes one d x d matrix, into which each head is added by one thin product. Where that matrix
    is so wide that its spectrum is only estimated, in float32, it is summed in float32, too: in
    float64 it would be larger than the weights of the layer. Its trace is summed in float64.
    """

    def __init__(self, d_model: int, total_width: int, *, exact: bool = False) -> None:
        """Make room for heads of `total_width` columns altogether; wide ones too, if `exact`."""
        self.d_model = d_model
        self._limit = None if exact else DENSE_LIMIT
        self._trace = 0.0
        self._low_rank = 2 * total_width < d_model
        self._factors: list[tuple[Tensor, Tensor, Tensor]] = []
        self._dense: Tensor | None = None

    def add(self, maps: HeadMaps, covariance: Covariance | None = None) -> None:
        """Add one head's B = O C L^T."""
        c = core(maps, covariance)
        if self._low_rank:
            self._factors.append((maps.out, c, maps.left))
            return
        single = is_estimated(self.d_model, self._limit)
        if self._dense is None:
            dtype = torch.float32 if single else maps.out.dtype
            self._dense = maps.out.new_zeros(self.d_model, self.d_model, dtype=dtype)
        out, left = maps.out @ c, maps.left
        if single:
            self._trace += (out * left).sum().item()
            # All of the size is put into one factor, so that neither leaves the range of float32.
            size = left.abs().max().clamp(min=torch.finfo(torch.float64).tiny)
            out, left = (out * size).float(), (left / size).float()
        self._dense.addmm_(out, left.T)

    def rates(self) -> Rates:
        """Return the layer's rates; those of a wide layer are estimated unless asked exactly."""
        if self._dense is None:
            out, c, left = _side_by_side(self._factors)
            spectrum = cored_spectrum(c, out.T @ out, out.T @ left, left.T @ left)
            return rates_of_spectrum(spectrum, self.d_model)
        trace = self._trace if self._dense.dtype == torch.float32 else None
        return Rates.from_summary(
            summarise_symmetric(self._dense, dense_limit=self._limit, overwrite=True, trace=trace)
        )


def _side_by_side(
    factors: list[tuple[Tensor, Tensor, Tensor]],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (O, C, L) of several heads at once: factors beside each other, cores on a diagonal."""
    outs, cores, lefts = zip(*factors, strict=True)
    return torch.cat(outs, dim=1), torch.block_diag(*cores), torch.cat(lefts, dim=1)


def layer_rates(
    heads: Iterable[Head], covariance: Covariance | None = None, *, exact: bool = True
) -> Rates:
    """Return the rates of a layer, B summed over its heads."""
    listed = _at_least_one(heads)
    drift = LayerDrift(listed[0].d_model, sum(head.d_head for head in listed), exact=exact)
    for head in listed:
        drift.add(HeadMaps.of(head), covariance)
    return drift.rates()


def predicted_log_change(
    heads: Iterable[Head], covariance: Covariance, *, residual: bool = True
) -> float:
    """Return ln of the factor by which attention changes the mean squared pair distance (T6).

    ln( tr((I + B) S (I + B)^T) / tr S ) with B summed over the heads; without a residual
    connection, ln( tr(B S B^T) / tr S ).
    """
    s = covariance.double()
    listed = [HeadMaps.of(head) for head in _at_least_one(heads)]
    out, c, left = _side_by_side([(maps.out, core(maps, s), maps.left) for maps in listed])
    moved = s @ left
    total = ((c @ (left.T @ moved) @ c.T) * (out.T @ out)).sum()
    if residual:
        total = total + s.trace() + 2 * (c * (out.T @ moved)).sum()
    return torch.log(total / s.trace()).item()


def _at_least_one(heads: Iterable[Head]) -> list[Head]:
    listed = list(heads)
    if not listed:
        raise InputError("a layer without heads has no rates; expected at least one head.")
    return listed
