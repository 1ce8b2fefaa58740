"""Training diagonal heads on the exact expected loss, many starts side by side.

Enters: a `Task`, plain enough for another process. Leaves: solutions, the best start of every seed.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.lab.fitting import fit
from orbitlens_papers.autoregression.attention import (
    Characters,
    Setting,
    characters,
    eigenvalues,
    expected_loss,
    in_order,
    sampled_loss,
    shuffled_orders,
)

N_ORDERS = 64  # to train on where tokens are shuffled; ten times as many others to judge
N_SAMPLES = 4096  # sequences a trained model is judged on


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained, and from where."""

    setting: Setting
    n_heads: int
    numbers: tuple[int, ...]  # a seed of starts each
    n_steps: int
    n_starts: int = 4  # a seed, of which the best counts: some end in a local minimum
    rate: float = 0.05
    constant: bool = False  # all places weigh the same
    shuffled: bool = False  # tokens in random orders
    sampled: int = 0  # sequences a step: train on samples, not on the exact loss


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Heads and weights of places, one row a start."""

    a: Float[Tensor, "runs head d"]
    b: Float[Tensor, "runs head d"]
    p: Float[Tensor, "runs places"]  # one place where all weigh the same

    def c(self) -> Float[Tensor, "runs d d"]:
        """Return C = B^T A."""
        return self.b.mT @ self.a


def solve(task: Task) -> list[dict[str, Any]]:
    """Train all starts of all seeds and return the best start of each seed, as plain data."""
    parameters = first_parameters(task)
    generator = torch.Generator().manual_seed(task.numbers[0])
    terms = _terms(task, N_ORDERS, generator)
    optimizer = torch.optim.Adam([parameters.a, parameters.b, parameters.p], lr=task.rate)
    fit(
        lambda step: _loss(task, parameters, terms, generator).sum(),
        optimizer,
        steps=task.n_steps,
        schedule=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, task.n_steps),
    )
    return _best(task, parameters, generator)


def first_parameters(task: Task) -> Parameters:
    """Return random heads and weights of places, by seed."""
    d, n = task.setting.d, task.setting.n_tokens
    rows = []
    for number in task.numbers:
        generator = torch.Generator().manual_seed(number)
        for shape in ((task.n_heads, d), (task.n_heads, d), (1 if task.constant else n,)):
            rows.append(
                torch.randn(task.n_starts, *shape, generator=generator, dtype=torch.float64)
                / shape[-1] ** 0.5
            )
    a, b, p = (torch.cat(rows[k::3]).requires_grad_() for k in range(3))
    return Parameters(a=a, b=b, p=p)


def _places(task: Task, parameters: Parameters) -> Float[Tensor, "runs tokens"]:
    return parameters.p.expand(-1, task.setting.n_tokens)


def _loss(
    task: Task, parameters: Parameters, terms: Characters, generator: torch.Generator
) -> Float[Tensor, " runs"]:
    c, p = parameters.c(), _places(task, parameters)
    if task.sampled:
        values = eigenvalues(task.setting, task.sampled, generator)
        order = in_order(task.setting)[0]
        return torch.stack(
            [sampled_loss(values, *cp, order).mean() for cp in zip(c, p, strict=True)]
        )
    return expected_loss(c, p, terms)


def _terms(task: Task, n_orders: int, generator: torch.Generator) -> Characters:
    """Return the terms of the loss: of tokens in order, or of random orders."""
    orders = in_order(task.setting)
    if task.shuffled:
        orders = shuffled_orders(task.setting, n_orders, generator)
    return characters(task.setting, orders)


def _best(task: Task, parameters: Parameters, generator: torch.Generator) -> list[dict[str, Any]]:
    with torch.no_grad():
        terms = _terms(task, 10 * N_ORDERS, generator)
        c, p = parameters.c(), _places(task, parameters)
        losses = expected_loss(c, p, terms).view(len(task.numbers), -1)
        chosen = [task.n_starts * k + int(row.argmin()) for k, row in enumerate(losses)]
        values = eigenvalues(task.setting, N_SAMPLES, generator)
        order = in_order(task.setting)[0]
        return [
            {
                "loss": float(losses.flatten()[k]),
                "losses": losses[number].tolist(),
                "sampled": float(sampled_loss(values, c[k], p[k], order).mean()),
                "a": parameters.a[k].tolist(),
                "b": parameters.b[k].tolist(),
                "c": c[k].tolist(),
                "p": p[k].tolist(),
            }
            for number, k in enumerate(chosen)
        ]
