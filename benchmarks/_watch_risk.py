"""Several numbers joined to one: a logistic regression, learned on half of the settings.

Enters: logged runs and their outcomes. Leaves: a `Risk`: one weight a number, and the course of
the sum. A reading of a failed run up to its onset counts as bad, any reading of a run that went
well as good; a run has the same weight however many readings it has. The same is done with what
every training loop has, loss and gradient, to see what the readings of `Watch` add.
"""

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from _watch_courses import courses_of_steps, finite
from _watch_judging import Course, Outcome
from torch import Tensor

# Numbers without a scale of the model in them; of those with a long tail the logarithm.
LOGARITHMS = ("freezing", "score_bound", "attention_update", "block_update", "massive")
PLAIN = (
    *("stable_rank_qk", "stable_rank_ov", "alignment", "sharpness", "sharpness_mean"),
    *("cosine_mean", "cosine_last", "log_spread", "effective_rank"),
)
RIDGE = 0.01
WATCH, CHEAP = "watch", "loss and gradient"
FIRST = {WATCH: 0, CHEAP: 32}  # step of the first reading: every run begins with a large loss


@dataclass(frozen=True, kw_only=True)
class Risk:
    """A weighted sum of numbers."""

    of: str  # WATCH or CHEAP
    centre: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    bias: float

    def course(self, run: Mapping[str, Any]) -> Course:
        """Return the sum by step: the log-odds of a run that fails; infinite where readings are."""
        rows = FEATURES[self.of](run)
        z = (rows - torch.tensor(self.centre)) / torch.tensor(self.scale)
        logits = z.clamp(-5, 5) @ torch.tensor(self.weights) + self.bias
        values = logits.where(rows.isfinite().all(dim=1), math.inf)
        n_early = sum(at < FIRST[self.of] for at in run["at"])
        return Course(steps=run["at"][n_early:], values=values[n_early:].tolist())


def watch_features(run: Mapping[str, Any]) -> Tensor:
    """Return one row a reading: what `Watch` reads."""
    columns = [
        torch.tensor(finite(run["readings"][name])).clamp(min=1e-12).log() for name in LOGARITHMS
    ]
    columns += [torch.tensor(finite(run["readings"][name])) for name in PLAIN]
    return torch.stack(columns, dim=1)


def cheap_features(run: Mapping[str, Any]) -> Tensor:
    """Return one row a reading: the newest losses and gradients before it."""
    found = courses_of_steps(run)
    columns = []
    for name in ("loss level", "loss rise", "loss spike", "gradient level", "gradient spike"):
        course = found[name]
        last = [bisect.bisect_right(course.steps, at) for at in run["at"]]
        columns.append(
            torch.tensor([course.values[k - 1] if k else course.values[0] for k in last])
        )
    table = torch.stack(columns, dim=1)
    table[:, 3:] = table[:, 3:].clamp(min=1e-6).log()
    return table


FEATURES: dict[str, Callable[[Mapping[str, Any]], Tensor]] = {
    WATCH: watch_features,
    CHEAP: cheap_features,
}


def learn_risk(
    runs: Sequence[Mapping[str, Any]], outcomes: Sequence[Outcome], of: str = WATCH
) -> Risk:
    """Return the weights that tell readings of failed runs from those of others best."""
    rows, labels, shares = [], [], []
    for run, found in zip(runs, outcomes, strict=True):
        last = math.inf if found.onset is None else found.onset
        kept = [FIRST[of] <= at <= last for at in run["at"]]
        x = FEATURES[of](run)[torch.tensor(kept)]
        x = x[x.isfinite().all(dim=1)]
        rows.append(x)
        labels.append(torch.full((len(x),), float(found.failed)))
        shares.append(torch.full((len(x),), 1 / max(len(x), 1)))
    x, y, share = torch.cat(rows), torch.cat(labels), torch.cat(shares)
    centre, scale = x.mean(dim=0), x.std(dim=0).clamp(min=1e-6)
    weights, bias = _descend(((x - centre) / scale).clamp(-5, 5), y, share / share.sum())
    return Risk(
        of=of,
        centre=tuple(centre.tolist()),
        scale=tuple(scale.tolist()),
        weights=tuple(weights.tolist()),
        bias=bias.item(),
    )


def _descend(x: Tensor, y: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.zeros(x.shape[1], requires_grad=True)
    bias = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.LBFGS([weights, bias], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        each = torch.nn.functional.binary_cross_entropy_with_logits(
            x @ weights + bias, y, reduction="none"
        )
        loss = (each * share).sum() + RIDGE * weights.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return weights.detach(), bias.detach()
