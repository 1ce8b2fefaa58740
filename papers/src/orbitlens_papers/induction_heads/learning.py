"""One model, trained in three stages or all at once, and judged on sequences it never saw.

Enters: a job. Leaves: plain data: what was selected, where
heads look, how a grew, and losses beside those of counting. A stage is gradient descent on one part
of the weights, on all contexts. Selector and copier take normalised steps, the path of gradient
flow at another pace. The classifier has one number, and steps of one length would make it grow
where there is nothing to learn: it takes plain ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.lab.fitting import NormalizedDescent, fit
from orbitlens_papers.induction_heads.chains import (
    Chain,
    Counts,
    Draw,
    counting_loss,
    counts_of,
    draw,
    shuffled,
    true_loss,
    window_ids,
)
from orbitlens_papers.induction_heads.model import (
    Weights,
    features,
    first_weights,
    head_sets,
    lag_weights,
    mean_loss,
    shares,
    similarity,
)
from orbitlens_papers.jobs import Job

RATES = {"c": 0.004, "w": 0.1, "a": 0.5}  # of the stages; for a, times the gradient
LOOKS = 60  # points of a curve that are kept
LONG, LESS_FIXED = 400, 0.3  # context and alpha that no model was trained on


@dataclass(frozen=True, kw_only=True)
class ChainSetup:
    """What is trained, on what, and for how long."""

    chain: Chain
    degree: int  # at most so many heads in a set
    n_train: int
    n_test: int
    steps: tuple[int, int, int]  # of the selector, the copier, the classifier
    context: str = "kept"  # or "shuffled": in training and in testing
    alike: bool = False  # heads that start alike
    joint: int = 0  # steps with all weights at once, instead of stages

    @property
    def sets(self) -> tuple[tuple[int, ...], ...]:
        """The sets of heads that have a feature."""
        return head_sets(self.chain.window, self.degree)


@dataclass(frozen=True, kw_only=True)
class Look:
    """The state of a model before one step."""

    loss: float
    shares: list[float]
    own_lags: list[float]  # what head h has on lag h
    a: float


def learn(job: Job[ChainSetup]) -> dict[str, Any]:
    """Train in three stages and judge; the looks of all stages follow each other."""
    setup, generator = job.setup, torch.Generator().manual_seed(job.seed)
    counts = _contexts(setup, draw(setup.chain, setup.n_train, generator), generator)
    weights = first_weights(setup.chain, setup.degree, alike=setup.alike)
    looks: list[list[Look]] = []
    begun = lag_weights(weights.w)
    for part, steps in zip(("c", "w", "a"), setup.steps, strict=True):
        rates = [RATES[part]] * steps
        weights, seen = descend(setup, weights, counts, (part,), rates, plain=part == "a")
        looks.append(seen)
    return {
        "shares": shares(weights.c).tolist(),
        "lags_before": begun.tolist(),
        "lags": lag_weights(weights.w).tolist(),
        "growth": growth([look.a for look in looks[2]]),
        "stages": [_thin(seen) for seen in looks],
        "parents_share": _parents_share(setup, shares(weights.c)),
        "copied": _copied(setup, lag_weights(weights.w)),
        **_judged(setup, weights, generator),
    }


def select(job: Job[ChainSetup]) -> float:
    """Train the selector alone; return the share of the parents' set."""
    setup, generator = job.setup, torch.Generator().manual_seed(job.seed)
    counts = _contexts(setup, draw(setup.chain, setup.n_train, generator), generator)
    weights = first_weights(setup.chain, setup.degree, alike=setup.alike)
    weights, _ = descend(setup, weights, counts, ("c",), [RATES["c"]] * setup.steps[0])
    return _parents_share(setup, shares(weights.c))


def learn_at_once(job: Job[ChainSetup]) -> dict[str, Any]:
    """Train all weights at once; return when each part was done, in steps."""
    setup, generator = job.setup, torch.Generator().manual_seed(job.seed)
    counts = _contexts(setup, draw(setup.chain, setup.n_train, generator), generator)
    weights = first_weights(setup.chain, setup.degree)
    rates = joint_rates(setup.joint)
    weights, looks = descend(setup, weights, counts, ("w", "c", "a"), rates)
    place = setup.sets.index(setup.chain.parents)
    selected = [look.shares[place] for look in looks]
    copied = [min(look.own_lags[lag - 1] for lag in setup.chain.parents) for look in looks]
    return {
        "selected": _thinned(selected),
        "copied": _thinned(copied),
        "a": _thinned([look.a for look in looks]),
        "step": _thinned([float(k) for k in range(len(looks))]),
        "times": [
            first_time(selected, 0.8),
            first_time(copied, 0.95),
            first_time([look.a for look in looks], 1.0),
        ],
    }


def joint_rates(n_steps: int) -> list[float]:
    """Return lengths of steps, growing from a fraction of the first c to that of the slow a."""
    top, bottom = 0.02, 0.002
    return [bottom * (top / bottom) ** (k / max(1, n_steps - 1)) for k in range(n_steps)]


def descend(
    setup: ChainSetup,
    weights: Weights,
    counts: Counts,
    parts: Sequence[str],
    rates: Sequence[float],
    *,
    plain: bool = False,
) -> tuple[Weights, list[Look]]:
    """Return weights whose named parts went down the loss, and a look before each step."""
    leaves = {part: getattr(weights, part).clone().requires_grad_() for part in parts}
    moving = replace(weights, **leaves)
    looks: list[Look] = []

    def loss_at(step: int) -> Tensor:
        loss = mean_loss(setup.chain, moving, setup.degree, counts)
        looks.append(_look(moving, float(loss.detach())))
        return loss

    descent = torch.optim.SGD if plain else NormalizedDescent
    fit(
        loss_at,
        descent(leaves.values(), lr=rates[0] if rates else 0.0),
        steps=len(rates),
        schedule=lambda step: rates[step],
    )
    return replace(weights, **{name: leaf.detach() for name, leaf in leaves.items()}), looks


# --- what is read off ------------------------------------------------------------------------


def growth(a: Sequence[float]) -> float:
    """Return how many times larger a became; 0 if it ever fell.

    >>> growth([0.01, 0.2, 1.0]), growth([0.01, 1.0, 0.5])
    (100.0, 0.0)
    """
    fell = any(later < earlier for earlier, later in pairwise(a))
    return 0.0 if fell else a[-1] / a[0]


def first_time(values: Sequence[float], level: float) -> int:
    """Return the first place above a level, or -1.

    >>> first_time([0.1, 0.9], 0.8), first_time([0.1], 0.8)
    (1, -1)
    """
    return next((k for k, value in enumerate(values) if value > level), -1)


def _look(weights: Weights, loss: float) -> Look:
    with torch.no_grad():
        own = lag_weights(weights.w).diagonal().tolist()
        return Look(loss=loss, shares=shares(weights.c).tolist(), own_lags=own, a=float(weights.a))


def _parents_share(setup: ChainSetup, p: Float[Tensor, " sets"]) -> float:
    """Return the share of the parents' set; 0 where the degree is too small to hold it."""
    if setup.chain.parents not in setup.sets:
        return 0.0
    return float(p[setup.sets.index(setup.chain.parents)])


def _copied(setup: ChainSetup, lags: Float[Tensor, "head lags"]) -> float:
    return min(float(lags[lag - 1, lag - 1]) for lag in setup.chain.parents)


def _contexts(setup: ChainSetup, sample: Draw, generator: torch.Generator) -> Counts:
    if setup.context == "shuffled":
        return counts_of(setup.chain, shuffled(sample.tokens, generator), sample.tokens)
    return counts_of(setup.chain, sample.tokens)


def _judged(setup: ChainSetup, weights: Weights, generator: torch.Generator) -> dict[str, Any]:
    """Return held-out losses as trained, in a longer context, and with less fixed laws."""
    sample = draw(setup.chain, setup.n_test, generator)
    long, less = replace(setup.chain, length=LONG), replace(setup.chain, alpha=LESS_FIXED)
    return {
        "test": _losses(setup, weights, sample, generator),
        "long": _losses(
            replace(setup, chain=long), weights, draw(long, setup.n_test, generator), generator
        ),
        "less_fixed": _losses(
            replace(setup, chain=less), weights, draw(less, setup.n_test, generator), generator
        ),
        "example": _example(setup, weights, sample),
    }


def _losses(
    setup: ChainSetup, weights: Weights, sample: Draw, generator: torch.Generator
) -> dict[str, float]:
    """Return the model's loss beside those of counting on the context in its own order."""
    chain, ordered = setup.chain, counts_of(setup.chain, sample.tokens)
    mixed = counts_of(chain, shuffled(sample.tokens, generator), sample.tokens)
    given = mixed if setup.context == "shuffled" else ordered
    with torch.no_grad():
        return {
            "model": float(mean_loss(chain, weights, setup.degree, given)),
            "shuffled": float(mean_loss(chain, weights, setup.degree, mixed)),
            "ngram": float(counting_loss(chain, ordered, chain.parents).mean()),
            "unigram": float(counting_loss(chain, ordered, ()).mean()),
            "law": float(true_loss(chain, sample).mean()),
        }


def _example(setup: ChainSetup, weights: Weights, sample: Draw) -> dict[str, Any]:
    """Return where the second layer looks in one context, and which places match the parents."""
    chain, tokens = setup.chain, sample.tokens[:1]
    ids = window_ids(chain, tokens)[0]
    table = similarity(shares(weights.c), features(chain, weights.w, setup.sets))
    weight = torch.exp(weights.a * (table[ids[-1], ids[:-1]] - 1.0))
    row = tokens[0].tolist()
    places = range(chain.window, chain.length)
    match = [all(row[t - k] == row[chain.length - k] for k in chain.parents) for t in places]
    return {
        "tokens": row,
        "first": chain.window,
        "attention": (weight / weight.sum()).tolist(),
        "match": match,
    }


def _thin(looks: Sequence[Look]) -> dict[str, Any]:
    return {
        "step": _thinned([float(k) for k in range(len(looks))]),
        "loss": _thinned([look.loss for look in looks]),
        "shares": _thinned([look.shares for look in looks]),
        "own_lags": _thinned([look.own_lags for look in looks]),
        "a": _thinned([look.a for look in looks]),
    }


def _thinned(values: Sequence[Any]) -> list[Any]:
    """Return at most `LOOKS` of the values, the first and the last among them."""
    n = len(values)
    if n <= LOOKS:
        return list(values)
    return [values[round(k * (n - 1) / (LOOKS - 1))] for k in range(LOOKS)]
