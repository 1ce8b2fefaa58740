"""Readings of `Watch` joined to one number: a logistic regression, learned on half of the settings.

Enters: logged runs and their outcomes. Leaves: a `Risk`: one weight a reading, and the course of
its sum. A reading of a failed run up to its onset counts as bad, any reading of a run that went
well as good; a run has the same weight however many readings it has.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from _watch_courses import finite
from _watch_judging import Course, Outcome
from torch import Tensor

# Numbers without a scale of the model in them; of those with a long tail the logarithm.
LOGARITHMS = ("freezing", "score_bound", "attention_update", "block_update", "massive")
PLAIN = (
    *("stable_rank_qk", "stable_rank_ov", "alignment", "sharpness", "sharpness_mean"),
    *("cosine_mean", "cosine_last", "log_spread", "effective_rank"),
    *("freezing_growth", "top_q_growth", "top_k_growth", "top_v_growth", "top_o_growth"),
)
RIDGE = 0.01


@dataclass(frozen=True, kw_only=True)
class Risk:
    """A weighted sum of readings."""

    centre: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    bias: float

    def course(self, run: Mapping[str, Any]) -> Course:
        """Return the sum by step: the log-odds of a run that fails; infinite where readings are."""
        rows = features(run)
        z = (rows - torch.tensor(self.centre)) / torch.tensor(self.scale)
        logits = z.clamp(-5, 5) @ torch.tensor(self.weights) + self.bias
        values = logits.where(rows.isfinite().all(dim=1), math.inf)
        return Course(steps=run["at"], values=values.tolist())


def features(run: Mapping[str, Any]) -> Tensor:
    """Return one row a reading."""
    columns = [
        torch.tensor(finite(run["readings"][name])).clamp(min=1e-12).log() for name in LOGARITHMS
    ]
    columns += [torch.tensor(finite(run["readings"][name])) for name in PLAIN]
    return torch.stack(columns, dim=1)


def learn_risk(runs: Sequence[Mapping[str, Any]], outcomes: Sequence[Outcome]) -> Risk:
    """Return the weights that tell readings of failed runs from those of others best."""
    rows, labels, shares = [], [], []
    for run, found in zip(runs, outcomes, strict=True):
        kept = [at <= (math.inf if found.onset is None else found.onset) for at in run["at"]]
        x = features(run)[torch.tensor(kept)]
        x = x[x.isfinite().all(dim=1)]
        rows.append(x)
        labels.append(torch.full((len(x),), float(found.failed)))
        shares.append(torch.full((len(x),), 1 / max(len(x), 1)))
    x, y, share = torch.cat(rows), torch.cat(labels), torch.cat(shares)
    centre, scale = x.mean(dim=0), x.std(dim=0).clamp(min=1e-6)
    weights, bias = _descend(((x - centre) / scale).clamp(-5, 5), y, share / share.sum())
    return Risk(
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
