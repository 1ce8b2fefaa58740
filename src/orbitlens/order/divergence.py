"""Distances between predictions, intervals for their means, and fair shares of two mechanisms.

Enters: logits or vectors. Leaves: bits, relative changes, bootstrap intervals, Shapley shares.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

N_RESAMPLES = 1000
INTERVAL = 0.95
AT_ONCE = 1 << 17  # logits compared at once: in large pieces most time goes into fresh memory
SLACK = 1e-9  # a Shapley value this little below 0, in bits, is rounding


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean over samples with its bootstrap interval."""

    mean: float
    low: float
    high: float


def js_bits(
    first: Float[Tensor, "*#any outputs"], second: Float[Tensor, "*any outputs"]
) -> Float[Tensor, "*any"]:
    """Return the Jensen-Shannon divergence of two predictions given as logits, in bits.

    A prediction of `first` may stand beside a row of `second`, (samples, 1, outputs) beside
    (samples, rows, outputs): then it is made a distribution once.

    JS(p, q) = (KL(p, m) + KL(q, m)) / 2 with m = (p + q) / 2; between 0 and 1. Its square root is
    a metric (Endres & Schindelin 2003), so k steps of at most e bits add up to at most k^2 e.

    >>> js_bits(torch.tensor([0.0, -1e9]), torch.tensor([-1e9, 0.0])).item()
    1.0
    """
    n_rows = max(1, AT_ONCE // second.shape[-1])
    if first.ndim == 3 and first.shape[1] == 1 < second.shape[1]:
        rows = zip(first, second, strict=True)
        beside = [(_Shares.of(one), some) for one, some in rows]
        parts = [_js_bits(p, _Shares.of(q)) for p, some in beside for q in some.split(n_rows)]
    else:
        flat = (x.reshape(-1, x.shape[-1]).split(n_rows) for x in (first, second))
        pairs = zip(*flat, strict=True)
        parts = [_js_bits(_Shares.of(p), _Shares.of(q)) for p, q in pairs]
    return torch.cat(parts).reshape(second.shape[:-1])


@dataclass(frozen=True)
class _Shares:
    """Distributions, one a row, and their logarithms."""

    share: Float[Tensor, "rows outputs"]
    log: Float[Tensor, "rows outputs"]

    @classmethod
    def of(cls, logits: Float[Tensor, "rows outputs"]) -> "_Shares":
        """Return the softmax of logits in float64; each exponential is taken once."""
        below = logits.double()
        below = below - below.amax(dim=-1, keepdim=True)
        share = below.exp()
        total = share.sum(dim=-1, keepdim=True)
        return cls(share / total, below - total.log())


def _js_bits(p: _Shares, q: _Shares) -> Tensor:
    # Where both are 0 the logarithm is one of a number, so that nothing becomes NaN.
    middle = ((p.share + q.share) / 2).clamp_min(torch.finfo(torch.float64).tiny).log()
    total = (p.share * (p.log - middle)).add_(q.share * (q.log - middle))
    return total.sum(-1).clamp_min(0.0) / (2.0 * math.log(2.0))


def relative_change(
    first: Float[Tensor, "*#any outputs"], second: Float[Tensor, "*any outputs"]
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
    means = values[_resampled(len(values), generator)].mean(dim=1)
    return _within(float(values.mean()), means)


def _resampled(n_samples: int, generator: torch.Generator) -> Int[Tensor, "resamples samples"]:
    return torch.randint(n_samples, (N_RESAMPLES, n_samples), generator=generator)


def _within(mean: float, resampled: Float[Tensor, " resamples"]) -> Mean:
    edge = (1.0 - INTERVAL) / 2.0
    ends = torch.tensor([edge, 1.0 - edge], dtype=resampled.dtype)
    low, high = torch.quantile(resampled, ends).tolist()
    return Mean(mean=mean, low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class Effects:
    """What encoding and mask bring alone, and what they bring together beyond the sum of these.

    With v the order sensitivity: v(encoding) - v(neither), v(mask) - v(neither), and the
    interaction v(both) - v(encoding) - v(mask) + v(neither).
    """

    encoding: Mean
    mask: Mean
    interaction: Mean  # negative: one undoes what the other brings


@dataclass(frozen=True, kw_only=True)
class Shapley:
    """What each mechanism brings, half of the interaction included, as shares that sum to 1."""

    encoding: float  # between 0 and 1
    mask: float
    encoding_interval: tuple[float, float]  # an end beyond 0 or 1: interaction is not excluded
    mask_interval: tuple[float, float]
    encoding_bits: float
    mask_bits: float


def split_order(
    *,
    both: Float[Tensor, " samples"],
    encoding_only: Float[Tensor, " samples"],
    mask_only: Float[Tensor, " samples"],
    neither: Float[Tensor, " samples"],
    generator: torch.Generator,
) -> tuple[Effects, Shapley | None]:
    """Return what encoding and mask bring to order sensitivity v, and their shares of it.

        encoding = ((v(encoding) - v(neither)) + (v(both) - v(mask))) / 2, mask likewise;
        they sum to v(both) - v(neither).

    A value below 0 is no share of a whole (the other would be above 1): then there are no shares,
    and the interaction says by how much one mechanism undoes the other. Arguments hold one value a
    sample, of the same samples, which are resampled together.

    >>> cells = [torch.full((3,), value) for value in (1.0, 0.6, 0.2, 0.0)]
    >>> names = ("both", "encoding_only", "mask_only", "neither")
    >>> source = torch.Generator().manual_seed(0)
    >>> effects, shares = split_order(**dict(zip(names, cells)), generator=source)
    >>> round(effects.interaction.mean, 6), round(shares.encoding, 6), round(shares.mask, 6)
    (0.2, 0.7, 0.3)
    """
    cells = torch.stack([both, encoding_only, mask_only, neither]).double()
    picks = _resampled(cells.shape[1], generator)
    points, drawn = _parts(cells.mean(dim=1)), _parts(cells[:, picks].mean(dim=2))
    found = {name: _within(float(points[name]), drawn[name]) for name in points}
    effects = Effects(**{name: found[name] for name in ("encoding", "mask", "interaction")})
    least = min(float(points[name]) for name in ("encoding_bits", "mask_bits"))
    if float(points["total"]) <= 0.0 or least < -SLACK:
        return effects, None
    first, second = found["encoding_share"], found["mask_share"]
    return effects, Shapley(
        encoding=first.mean,
        mask=second.mean,
        encoding_interval=(first.low, first.high),
        mask_interval=(second.low, second.high),
        encoding_bits=found["encoding_bits"].mean,
        mask_bits=found["mask_bits"].mean,
    )


def _parts(cells: Tensor) -> dict[str, Tensor]:
    """Return effects, Shapley values and shares of v(both), v(encoding), v(mask), v(neither)."""
    both, encoding_only, mask_only, neither = cells
    total, first, second = both - neither, encoding_only - neither, mask_only - neither
    interaction = total - first - second
    encoding, mask = first + interaction / 2.0, second + interaction / 2.0
    size = torch.where(total > 0.0, total, torch.ones_like(total))
    return {
        "total": total,
        "encoding": first,
        "mask": second,
        "interaction": interaction,
        "encoding_bits": encoding,
        "mask_bits": mask,
        "encoding_share": encoding / size,
        "mask_share": mask / size,
    }
