"""Trace, extremes and nuclear norm of sym(B): exact while that is cheap, else estimated.

Enters: a square matrix B. Leaves: a summary of the spectrum of sym(B). Up to `DENSE_LIMIT` every
eigenvalue is computed; beyond, Lanczos quadrature from random starts gives the nuclear norm with a
standard error (Ubaru, Chen & Saad 2017) and the extremes from inside. The trace is always exact.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from orbitlens.errors import CheckpointError

DENSE_LIMIT = 2048  # d x d eigenvalues up to here; they cost d^3
N_STARTS = 6
N_STEPS = 48
TILE = 512  # side of the blocks in which a matrix is symmetrised
SMALL, LARGE = 1e-30, 1e30  # sizes of matrices between which LAPACK needs no help
TURNS = 4  # bases tried where eigenvalues do not converge
EXHAUSTED = 1e-5  # a new direction this short beside the matrix is rounding: the start has ended


@dataclass(frozen=True, kw_only=True)
class SymmetricSummary:
    """What the rates need to know of a symmetric matrix."""

    smallest: float
    largest: float
    trace: float
    nuclear_norm: float
    dimension: int
    relative_error: float = 0.0  # standard error of the nuclear norm; 0: exact


def summarise_symmetric(
    matrix: Float[Tensor, "d_model d_model"],
    *,
    dense_limit: int | None = DENSE_LIMIT,
    overwrite: bool = False,
    trace: float | None = None,
) -> SymmetricSummary:
    """Summarise the spectrum of (B + B^T) / 2; `dense_limit` None computes it whole at any size.

    With `overwrite` the matrix may be left symmetrised, which saves a copy of it. A `trace` that is
    known better than the matrix holds it, which may be of float32, is taken in its place.
    """
    trace = matrix.trace().item() if trace is None else trace
    if is_estimated(matrix.shape[0], dense_limit):
        is_ours = overwrite and matrix.dtype == torch.float32
        # Float32 is far more precise than the estimate itself.
        return _estimate(matrix if is_ours else matrix.to(torch.float32, copy=True), trace)
    values = symmetric_eigenvalues(_symmetrise(matrix if overwrite else matrix.clone()))
    return SymmetricSummary(
        smallest=values[0].item(),
        largest=values[-1].item(),
        trace=trace,
        nuclear_norm=values.abs().sum().item(),
        dimension=matrix.shape[0],
    )


def is_estimated(d_model: int, dense_limit: int | None = DENSE_LIMIT) -> bool:
    """Say whether a spectrum of that size is estimated, in float32, and not computed whole."""
    return dense_limit is not None and d_model > dense_limit


def symmetric_eigenvalues(matrix: Float[Tensor, "d d"]) -> Float[Tensor, " d"]:
    """Return the eigenvalues of a symmetric matrix of numbers of any size, in ascending order.

    LAPACK does not converge on some matrices of very small or large numbers, as products of small
    or large weights are. Those are first brought to size 1 by a power of two, which rounds nothing.
    """
    scale = _power_of_two(matrix)
    if scale is None:
        return torch.linalg.eigvalsh(matrix)
    return torch.linalg.eigvalsh(matrix * scale) / scale


def eigenvalues(matrix: Float[Tensor, "d d"]) -> Complex[Tensor, " d"]:
    """Return the eigenvalues of a square matrix of numbers of any size (see above).

    Raises:
        CheckpointError: they cannot be computed.
    """
    scale = _power_of_two(matrix) or 1.0
    scaled = matrix * scale
    for seed in range(TURNS):
        try:
            return torch.linalg.eigvals(scaled) / scale
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined] # it is documented
            # LAPACK gives up on some matrices of very low rank. In another basis the same map has
            # the same eigenvalues, and they are found.
            scaled = _turned(scaled, seed)
    raise CheckpointError(
        "the eigenvalues of a value map cannot be computed: LAPACK does not converge. The weights "
        "are damaged or training diverged."
    )


def _turned(matrix: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    square = torch.randn(matrix.shape, generator=generator, dtype=torch.float64).to(matrix)
    basis, _ = torch.linalg.qr(square)
    return basis.T @ matrix @ basis


def _power_of_two(matrix: Tensor) -> float | None:
    """Return what brings a matrix to size 1; None where its size is nothing special."""
    size = matrix.abs().max().item() if matrix.numel() else 0.0
    if size == 0 or SMALL < size < LARGE:
        return None
    return 2.0 ** max(-1000, min(1000, -math.frexp(size)[1]))


def _estimate(matrix: Tensor, trace: float) -> SymmetricSummary:
    """Run Lanczos from several random starts; each gives one estimate of the nuclear norm."""
    d = matrix.shape[0]
    nodes, weights = _lanczos(_symmetrise(matrix))
    norms = d * (weights * nodes.abs()).sum(dim=-1)
    mean = norms.mean().item()
    error = norms.std().item() / len(norms) ** 0.5
    return SymmetricSummary(
        smallest=nodes.min().item(),
        largest=nodes.max().item(),
        trace=trace,
        nuclear_norm=mean,
        dimension=d,
        relative_error=error / mean if mean > 0 else 0.0,
    )


def _symmetrise(matrix: Float[Tensor, "d_model d_model"]) -> Float[Tensor, "d_model d_model"]:
    """Turn B into (B + B^T) / 2 where it lies, tile by tile: no copy, and tiles fit the cache."""
    tiles = [slice(start, start + TILE) for start in range(0, matrix.shape[0], TILE)]
    for i, rows in enumerate(tiles):
        for columns in tiles[: i + 1]:
            mean = (matrix[rows, columns] + matrix[columns, rows].T) / 2
            matrix[rows, columns], matrix[columns, rows] = mean, mean.T
    return matrix


def _lanczos(
    symmetric: Float[Tensor, "d_model d_model"],
) -> tuple[Float[Tensor, "starts steps"], Float[Tensor, "starts steps"]]:
    """Return Gauss nodes and weights of the spectral measure seen from each random start."""
    d = symmetric.shape[0]
    generator = torch.Generator().manual_seed(0)  # the same answer for the same weights
    x = torch.randn(d, N_STARTS, generator=generator).T.to(symmetric)
    x = x / x.norm(dim=1, keepdim=True)
    basis = x.new_zeros(N_STARTS, N_STEPS, d)
    diagonal, beside = x.new_zeros(N_STARTS, N_STEPS), x.new_zeros(N_STARTS, N_STEPS)
    scale, runs = x.new_zeros(N_STARTS), torch.ones_like(x[:, 0], dtype=torch.bool)
    for step in range(N_STEPS):
        basis[:, step] = x
        y = x @ symmetric  # starts as rows: twice as fast as starts as columns
        scale = torch.maximum(scale, y.norm(dim=1))
        # Past its end a start repeats its first entry, uncoupled: a node inside and of no weight.
        diagonal[:, step] = torch.where(runs, (y * x).sum(dim=1), diagonal[:, 0])
        earlier = basis[:, : step + 1]
        for _ in range(2):  # twice is enough to stay orthogonal
            shares = torch.bmm(earlier, y[:, :, None])
            y = y - torch.bmm(shares.mT, earlier)[:, 0]
        length = y.norm(dim=1)
        runs = length > EXHAUSTED * scale
        beside[:, step] = torch.where(runs, length, 0.0)
        x = torch.where(runs[:, None], y / length[:, None], 0.0)
    return _gauss(diagonal.double(), beside[:, :-1].double())


def _gauss(diagonal: Tensor, beside: Tensor) -> tuple[Tensor, Tensor]:
    tridiagonal = (
        torch.diag_embed(diagonal)
        + torch.diag_embed(beside, offset=1)
        + torch.diag_embed(beside, offset=-1)
    )
    nodes, vectors = torch.linalg.eigh(tridiagonal)
    return nodes, vectors[:, 0, :].square()
