"""Trace, extremes and nuclear norm of sym(B): exact while that is cheap, else estimated.

Enters: a square matrix B. Leaves: a summary of the spectrum of sym(B). Up to `DENSE_LIMIT` every
eigenvalue is computed; beyond, Lanczos quadrature from random starts gives the nuclear norm with a
standard error (Ubaru, Chen & Saad 2017) and the extremes from inside. The trace is always exact.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

DENSE_LIMIT = 2048  # d x d eigenvalues up to here; they cost d^3
N_STARTS = 6
N_STEPS = 48


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
    matrix: Float[Tensor, "d_model d_model"], *, dense_limit: int | None = DENSE_LIMIT
) -> SymmetricSummary:
    """Summarise the spectrum of (B + B^T) / 2; `dense_limit` None computes it whole at any size."""
    if dense_limit is None or matrix.shape[0] <= dense_limit:
        eigenvalues = torch.linalg.eigvalsh((matrix + matrix.T) / 2)
        return SymmetricSummary(
            smallest=eigenvalues[0].item(),
            largest=eigenvalues[-1].item(),
            trace=matrix.trace().item(),
            nuclear_norm=eigenvalues.abs().sum().item(),
            dimension=matrix.shape[0],
        )
    return _estimate(matrix)


def _estimate(matrix: Tensor) -> SymmetricSummary:
    """Run Lanczos from several random starts; each gives one estimate of the nuclear norm."""
    d = matrix.shape[0]
    trace = matrix.trace().item()
    symmetric = matrix.float()  # single precision is far below the estimate's own error
    symmetric = symmetric.add_(symmetric.T.clone()).mul_(0.5)
    nodes, weights = _lanczos(symmetric)
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


def _lanczos(
    symmetric: Float[Tensor, "d_model d_model"],
) -> tuple[Float[Tensor, "starts steps"], Float[Tensor, "starts steps"]]:
    """Return Gauss nodes and weights of the spectral measure seen from each random start."""
    d = symmetric.shape[0]
    generator = torch.Generator().manual_seed(0)  # the same answer for the same weights
    x = torch.randn(d, N_STARTS, generator=generator).to(symmetric)
    x = x / x.norm(dim=0)
    basis = [x]
    diagonal, beside = [], []
    for _ in range(N_STEPS):
        y = symmetric @ basis[-1]
        diagonal.append((y * basis[-1]).sum(dim=0))
        for _ in range(2):  # twice is enough to stay orthogonal
            for b in basis:
                y = y - b * (b * y).sum(dim=0)
        length = y.norm(dim=0)
        beside.append(length)
        basis.append(y / length.clamp(min=1e-30))
    return _gauss(torch.stack(diagonal, dim=1).double(), torch.stack(beside[:-1], dim=1).double())


def _gauss(diagonal: Tensor, beside: Tensor) -> tuple[Tensor, Tensor]:
    tridiagonal = (
        torch.diag_embed(diagonal)
        + torch.diag_embed(beside, offset=1)
        + torch.diag_embed(beside, offset=-1)
    )
    nodes, vectors = torch.linalg.eigh(tridiagonal)
    return nodes, vectors[:, 0, :].square()
