"""Linear probes by closed-form ridge regression: what can be read off a hidden state.

Enters: states of many inputs and what they should tell. Leaves: scores on inputs held out, beside
the same with shuffled labels and what guessing would give.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

RIDGE = 1e-2  # penalty, relative to the features' mean variance
TRAIN_SHARE = 2 / 3


@dataclass(frozen=True, kw_only=True)
class ProbeScore:
    """How well a probe does on inputs it has not seen."""

    score: float  # accuracy, or R^2 for positions
    control: float  # the same probe trained on shuffled labels
    chance: float  # the most frequent label; 0 for R^2


def split_samples(n_samples: int) -> int:
    """Return how many of the samples train; the rest is held out, whole inputs at a time."""
    return max(1, min(n_samples - 1, round(TRAIN_SHARE * n_samples)))


def classify(
    train: Float[Tensor, "rows d_model"],
    train_labels: Int[Tensor, " rows"],
    test: Float[Tensor, "others d_model"],
    test_labels: Int[Tensor, " others"],
    *,
    generator: torch.Generator,
) -> ProbeScore:
    """Return the held-out accuracy of a ridge classifier on one-hot labels."""
    classes, codes = torch.unique(train_labels, return_inverse=True)
    guess = classes[codes.bincount().argmax()]
    shuffled = codes[torch.randperm(len(codes), generator=generator)]
    features, others = _standard(train, test)
    targets = torch.cat([_one_hot(codes, len(classes)), _one_hot(shuffled, len(classes))], dim=1)
    real, control = (others @ _ridge(features, targets)).split(len(classes), dim=1)
    return ProbeScore(
        score=_accuracy(classes[real.argmax(1)], test_labels),
        control=_accuracy(classes[control.argmax(1)], test_labels),
        chance=_accuracy(guess.expand_as(test_labels), test_labels),
    )


def regress(
    train: Float[Tensor, "rows d_model"],
    train_values: Float[Tensor, " rows"],
    test: Float[Tensor, "others d_model"],
    test_values: Float[Tensor, " others"],
    *,
    generator: torch.Generator,
) -> ProbeScore:
    """Return the held-out R^2 of a ridge regression."""
    shuffled = train_values[torch.randperm(len(train_values), generator=generator)]
    features, others = _standard(train, test)
    weights = _ridge(features, torch.stack([train_values, shuffled], dim=1))
    predicted = others @ weights
    spread = (test_values - test_values.mean()).square().sum()
    real, control = (1.0 - (predicted - test_values[:, None]).square().sum(0) / spread).tolist()
    return ProbeScore(score=real, control=control, chance=0.0)


def adjacency(states: Float[Tensor, "samples items d_model"]) -> float:
    """Return how often a neighbour's state is the closer one: cos(h_i, h_i+-1) > cos(h_i, h_j).

    Over all i, both neighbours and all j with |i - j| > 1; ties count half, so chance is 1/2.
    """
    unit = torch.nn.functional.normalize(states.double(), dim=-1)
    cosines = unit @ unit.transpose(1, 2)
    n_items = states.shape[1]
    places = torch.arange(n_items)
    far = (places[:, None] - places[None, :]).abs() > 1
    wins, total = 0.0, 0
    for step in (-1, 1):
        rows = places[1:] if step == -1 else places[:-1]
        near = cosines[:, rows, rows + step][:, :, None]
        others = cosines[:, rows]
        better = (near > others).double() + 0.5 * (near == others).double()
        wins += float((better * far[rows]).sum())
        total += int(far[rows].sum()) * len(states)
    return wins / total if total else 0.5


def _standard(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    mean, spread = train.mean(0), train.std(0).clamp_min(1e-12)
    parts = [(x - mean) / spread for x in (train, test)]
    ones = [torch.ones(len(x), 1, dtype=x.dtype) for x in parts]
    first, second = (torch.cat([x, one], dim=1) for x, one in zip(parts, ones, strict=True))
    return first, second


def _ridge(features: Tensor, targets: Tensor) -> Tensor:
    """Return (F'F + c I)^-1 F'T, or the same as F'(FF' + c I)^-1 T where rows are fewer."""
    n_rows, n_features = features.shape
    penalty = RIDGE * features.square().sum(0).mean()
    gram = features @ features.T if n_rows < n_features else features.T @ features
    gram.diagonal().add_(penalty)
    if n_rows < n_features:
        return features.T @ torch.linalg.solve(gram, targets)
    return torch.linalg.solve(gram, features.T @ targets)


def _one_hot(codes: Tensor, n_classes: int) -> Tensor:
    return torch.nn.functional.one_hot(codes, n_classes).double()


def _accuracy(predicted: Tensor, labels: Tensor) -> float:
    return float((predicted == labels).double().mean())
