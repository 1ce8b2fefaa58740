"""Raw distances by sampling: attention exactly as it is, on contexts made from a model of tokens.

Enters: a layer's weights, and the statistics of its tokens on one text. Leaves: predictions like
those of `closures.py`. Each model keeps a little more of what real tokens have; where a head does
one thing to the surrogate and another to the real text, what the model left out is why.

    gaussian    independent draws from N(mean, covariance): T7 at its true n, without asymptotics
    points      each position has its own mean and size (sinks are positions), content is Gaussian
    neighbours  points, and every principal direction has its real autocorrelation along a context

Three apply the layer to states that the model computed, so that the model has already run: they are
resampled measurements and the ceiling, not predictions from weights.

    words       points, and content is drawn from the real tokens: a mixture of one point a token
    chunks      points, and content is drawn in runs of neighbouring real tokens (Kuensch 1989)
    itself      the contexts it is fitted on, as they are: the ceiling of all of them

Everything they need is taken from the text they are fitted on. A run is at most a quarter of a
context, so that what a head does is never merely copied.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens._types import Tokens
from orbitlens.heads.attention import attention_pattern
from orbitlens.heads.layers import AttentionLayer
from orbitlens.tracing.closures import ClosurePrediction
from orbitlens.tracing.patterns import sharpness
from orbitlens.tracing.tally import LayerTally

CHUNK = 8  # tokens in a run of real neighbours, at most
Contexts = Float[Tensor, "batch tokens d_model"]


def sampled_closure(
    tally: LayerTally, kind: str, *, generator: torch.Generator
) -> ClosurePrediction:
    """Return what attention does to contexts drawn from a model of tokens, as many as were kept."""
    contexts = SURROGATES[kind](tally, len(tally.kept), generator)
    return exact_changes(tally.layer, contexts)


def exact_changes(layer: AttentionLayer, contexts: Contexts) -> ClosurePrediction:
    """Return the log-changes and the sharpness of a layer on given contexts, head by head."""
    heads = list(layer)
    first = moved_all = 0.0
    moved = [0.0] * len(heads)
    focus = torch.zeros(len(heads), dtype=torch.float64)
    for x in contexts:
        seen = layer.normalise(x)
        pattern = attention_pattern(layer, seen)
        focus += sharpness(pattern) / len(contexts)
        first += _scatter(x)
        total = x
        for h, head in enumerate(heads):
            w_v, w_o = head.value_factors
            values = seen @ w_v + head.b_v
            if head.clip is not None:
                values = values.clamp(-head.clip, head.clip)
            part = pattern[h] @ values @ w_o
            moved[h] += _scatter(x + part)
            total = total + part
        moved_all += _scatter(total)
    return ClosurePrediction(
        log_change=math.log(moved_all / first),
        heads=tuple(math.log(part / first) for part in moved),
        sharpness=tuple(focus.tolist()),
    )


def _scatter(x: Tokens) -> float:
    return (x - x.mean(dim=0)).square().sum().item()


# --- models of tokens ------------------------------------------------------------------------


def _gaussian(tally: LayerTally, count: int, generator: torch.Generator) -> Contexts:
    n = tally.kept[0].shape[0]
    root = _root(tally.before.covariance.value)
    draws = torch.randn(count, n, root.shape[0], generator=generator, dtype=torch.float64)
    return tally.before.mean + draws @ root


def _points(tally: LayerTally, count: int, generator: torch.Generator) -> Contexts:
    residuals = _Residuals(tally)
    shape = (count, residuals.n, residuals.mean.shape[-1])
    draws = torch.randn(shape, generator=generator, dtype=torch.float64)
    return residuals.placed(draws @ _root(residuals.covariance))


def _neighbours(tally: LayerTally, count: int, generator: torch.Generator) -> Contexts:
    residuals = _Residuals(tally)
    size, axes = torch.linalg.eigh(residuals.covariance)
    coordinates = residuals.whitened @ axes
    # The mean power of each direction at each frequency: a stationary Gaussian process has it too.
    power = torch.fft.rfft(coordinates, dim=1).abs().square().mean(dim=0)
    power = power / _full_sum(power, residuals.n).clamp(min=1e-300) * residuals.n
    shape = (count, residuals.n, coordinates.shape[-1])
    white = torch.fft.rfft(torch.randn(shape, generator=generator, dtype=torch.float64), dim=1)
    draws = torch.fft.irfft(white * power.sqrt(), n=residuals.n, dim=1)
    return residuals.placed((draws * size.clamp(min=0).sqrt()) @ axes.T)


def _full_sum(power: Tensor, n: int) -> Tensor:
    """Sum a one-sided spectrum over all n frequencies."""
    weight = torch.full((power.shape[0], 1), 2.0, dtype=power.dtype)
    weight[0] = 1.0
    if n % 2 == 0:
        weight[-1] = 1.0
    return (weight * power).sum(dim=0)


def _words(tally: LayerTally, count: int, generator: torch.Generator) -> Contexts:
    return _resampled(tally, count, generator, run=1)


def _chunks(tally: LayerTally, count: int, generator: torch.Generator) -> Contexts:
    return _resampled(tally, count, generator, run=CHUNK)


def _resampled(tally: LayerTally, count: int, generator: torch.Generator, run: int) -> Contexts:
    """Return contexts whose content comes in runs of real tokens, each run from anywhere."""
    residuals = _Residuals(tally)
    pool = residuals.whitened[:, residuals.varies]
    n, width = residuals.n, pool.shape[1]
    run = max(1, min(run, n // 4, width))
    n_runs = -(-n // run)
    which = torch.randint(pool.shape[0], (count, n_runs), generator=generator)
    start = torch.randint(width - run + 1, (count, n_runs), generator=generator)
    places = start[..., None] + torch.arange(run)
    drawn = pool[which[..., None], places].flatten(1, 2)[:, :n]
    return residuals.placed(drawn)


def _itself(tally: LayerTally, count: int, generator: torch.Generator) -> Contexts:
    first = tally.kept[0]
    return torch.stack([c for c in tally.kept if c.shape == first.shape][:count])


class _Residuals:
    """What is left of the kept contexts when each position's mean and size are taken out."""

    def __init__(self, tally: LayerTally) -> None:
        first = tally.kept[0]
        self.n = first.shape[0]
        self.mean, variance = _by_position(tally)
        typical = variance.mean().clamp(min=1e-300)
        self.size = (variance / typical).sqrt()  # 0 where a position always has the same token
        self.varies = self.size > 1e-3
        contexts = torch.stack([c for c in tally.kept if c.shape == first.shape])
        shrink = 1 / self.size.clamp(min=1e-3)
        centred = (contexts - self.mean) * torch.where(self.varies, shrink, 0.0)[:, None]
        self.whitened = centred
        self.covariance = self._content(tally, typical)

    def _content(self, tally: LayerTally, typical: Tensor) -> Tensor:
        """Return the covariance of content: all of it but what positions account for."""
        gaps = self.mean - self.mean.mean(dim=0)
        rest = tally.before.covariance.value - gaps.T @ gaps / (self.n - 1)
        size, axes = torch.linalg.eigh((rest + rest.T) / 2)
        size = size.clamp(min=0)
        return (axes * (size * typical / size.sum().clamp(min=1e-300))) @ axes.T

    def placed(self, content: Contexts) -> Contexts:
        """Return content put at its positions."""
        return self.mean + content * self.size[:, None]


def _by_position(tally: LayerTally) -> tuple[Tensor, Tensor]:
    """Return mean and variance at each position; of one context alone, the same at all of them."""
    if tally.positions.count > 1:
        return tally.positions.mean, tally.positions.variance
    n = tally.kept[0].shape[0]
    variance = tally.before.covariance.value.trace()
    return tally.before.mean.expand(n, -1), variance.expand(n)


def _root(covariance: Tensor) -> Tensor:
    size, axes = torch.linalg.eigh((covariance + covariance.T) / 2)
    return axes * size.clamp(min=0).sqrt() @ axes.T


SURROGATES: dict[str, Callable[[LayerTally, int, torch.Generator], Contexts]] = {
    "gaussian": _gaussian,
    "points": _points,
    "neighbours": _neighbours,
    "words": _words,
    "chunks": _chunks,
    "itself": _itself,
}
