"""Distances between predictions, intervals for their means, and fair shares of two mechanisms.

Enters: logits or vectors. Leaves: bits, relative changes, bootstrap intervals, Shapley shares.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

N_RESAMPLES = 1000
INTERVAL = 0.95


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean over samples with its bootstrap interval."""

    mean: float
    low: float
    high: float


def js_bits(
    first: Float[Tensor, "*any outputs"], second: Float[Tensor, "*any outputs"]
) -> Float[Tensor, "*any"]:
    """Return the Jensen-Shannon divergence of two predictions given as logits, in bits.

    JS(p, q) = (KL(p, m) + KL(q, m)) / 2 with m = (p + q) / 2; between 0 and 1. Its square root is
    a metric (Endres & Schindelin 2003), so k steps of at most e bits add up to at most k^2 e.

    >>> js_bits(torch.tensor([0.0, -1e9]), torch.tensor([-1e9, 0.0])).item()
    1.0
    """
    p, q = (x.double().log_softmax(-1) for x in (first, second))
    middle = torch.logaddexp(p, q) - math.log(2.0)
    total = p.exp() * (p - middle) + q.exp() * (q - middle)
    return total.sum(-1).clamp_min(0.0) / (2.0 * math.log(2.0))


def relative_change(
    first: Float[Tensor, "*any outputs"], second: Float[Tensor, "*any outputs"]
) -> Float[Tensor, "*any"]:
    """Return |second - first| / |first|, Euclidean norms."""
    a, b = first.double(), second.double()
    return (b - a).norm(dim=-1) / a.norm(dim=-1).clamp_min(torch.finfo(torch.float64).tiny)


def bootstrap_mean(values: Float[Tensor, " samples"], generator: torch.Generator) -> Mean:
    """Return the mean over samples and its percentile-bootstrap interval (samples resampled).

    Permutations of one sample are not independent of each other, so a value here is the mean over
    the permutations of one sample, and samples are what is resampled.
    """
    if not len(values):
        raise ValueError("no samples to take a mean of")
    picks = torch.randint(len(values), (N_RESAMPLES, len(values)), generator=generator)
    means = values[picks].mean(dim=1)
    edge = (1.0 - INTERVAL) / 2.0
    low, high = torch.quantile(means, torch.tensor([edge, 1.0 - edge], dtype=means.dtype)).tolist()
    return Mean(mean=float(values.mean()), low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class Shapley:
    """What each mechanism adds, on average over the orders of adding them; shares sum to 1."""

    encoding: float  # share, may be negative or above 1 where mechanisms work against each other
    mask: float
    encoding_bits: float
    mask_bits: float


def shapley(*, both: float, encoding_only: float, mask_only: float, neither: float) -> Shapley:
    """Return the Shapley values of encoding and mask for order sensitivity v.

        encoding = ((v(encoding) - v(neither)) + (v(both) - v(mask))) / 2, mask likewise;
        they sum to v(both) - v(neither).

    >>> shapley(both=1.0, encoding_only=0.6, mask_only=0.2, neither=0.0).encoding
    0.7
    """
    encoding = ((encoding_only - neither) + (both - mask_only)) / 2.0
    mask = ((mask_only - neither) + (both - encoding_only)) / 2.0
    total = both - neither
    if total <= 0.0:
        return Shapley(encoding=0.0, mask=0.0, encoding_bits=encoding, mask_bits=mask)
    return Shapley(
        encoding=encoding / total, mask=mask / total, encoding_bits=encoding, mask_bits=mask
    )
