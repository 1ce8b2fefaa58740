"""Ranks and anisotropy of a cloud, from singular values: of the tokens, or of their second moment.

Enters: singular values s (in any order). Leaves: numbers, each a pure function with its formula.
`moment_spectrum` gives s from sums that were accumulated batch by batch.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens._types import Spectrum


def moment_spectrum(second_moment: Float[Tensor, "width width"]) -> Spectrum:
    """Return s_k / sqrt(n), the singular values of the tokens, from the mean of x x^T.

    Squaring halves the digits: values below about 3e-4 of the largest are rounding where the
    moments were summed in float32, and below 1e-8 in float64.
    """
    return torch.linalg.eigvalsh(second_moment.double()).clamp(min=0).sqrt().flip(0)


def entropy_rank(s: Spectrum) -> float:
    """Return exp(H(s / sum s)), the effective rank of Roy & Vetterli (2007); 0 for no tokens."""
    total = s.sum()
    if total == 0:
        return 0.0
    return torch.exp(torch.special.entr(s / total).sum()).item()


def stable_rank(s: Spectrum) -> float:
    """Return |X|_F^2 / |X|_2^2 = sum s^2 / max s^2 (Rudelson & Vershynin 2007); 0 for no tokens."""
    largest = s.max().square() if s.numel() else s.new_zeros(())
    return (s.square().sum() / largest).item() if largest > 0 else 0.0


def participation_ratio(variances: Spectrum) -> float:
    """Return (sum l)^2 / sum l^2 of a covariance's eigenvalues l: how many directions vary."""
    total = variances.square().sum()
    return (variances.sum().square() / total).item() if total > 0 else 0.0


def anisotropy(variances: Spectrum) -> float:
    """Return the share of the variance in the leading direction, max l / sum l (arXiv 2311.05928).

    1 for tokens on a line, 1/d for an isotropic cloud, 0 for tokens that are all one.
    """
    total = variances.sum()
    return (variances.max() / total).item() if total > 0 else 0.0
