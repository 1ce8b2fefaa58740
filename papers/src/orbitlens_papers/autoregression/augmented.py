"""Claim 5: attention on tokens (0, s_t, s_{t-1}) as one step of gradient descent.

Enters: a bench. Leaves: outcomes. A step from zero on sum_t |s_{t+1} - W s_t|^2 / 2, of length eta,
gives W_1 = eta sum_t s_{t+1} s_t^T; applied to s_T it predicts eta sum_t s_{t+1} <s_t, s_T>.
*Structured* attention reads s_t into values, s_{t-1} into keys and s_T into the query, diagonal in
the basis that all W share, or d x d where there is none; *free* attention has all 3d x 3d entries.
"""

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.lab.fitting import fit
from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome
from orbitlens_papers.jobs import Arm, Job, run_arms
from orbitlens_papers.trained import judged

SETTINGS = ("commuting", "not commuting")
KINDS = ("structured", "free")
BATCH, RATE = 512, 0.01


@dataclass(frozen=True, kw_only=True)
class StepSetup:
    """One model on one kind of systems."""

    setting: str  # of SETTINGS
    kind: str  # of KINDS
    n_steps: int
    n_tokens: int = 12
    d: int = 4
    pool: int = 2**14  # sequences to train on
    broken: bool = False  # keys belong to other moments than values


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """Sequences s_0 ... s_{T+1} of systems s_{t+1} = W s_t, and the basis their W share."""

    s: Float[Tensor, "n times d"]
    basis: Float[Tensor, "d d"]


def rotations(setup: StepSetup, n: int, generator: torch.Generator) -> Float[Tensor, "n d d"]:
    """Return turns by angles that are uniform on the circle, one a plane."""
    angles = 2 * torch.pi * torch.rand(n, setup.d // 2, generator=generator, dtype=torch.float64)
    w = torch.zeros(n, setup.d, setup.d, dtype=torch.float64)
    for k in range(setup.d // 2):
        i, j = 2 * k, 2 * k + 1
        w[:, i, i] = w[:, j, j] = angles[:, k].cos()
        w[:, j, i] = angles[:, k].sin()
        w[:, i, j] = -angles[:, k].sin()
    return w


def haar(n: int, d: int, generator: torch.Generator) -> Float[Tensor, "n d d"]:
    """Return orthogonal matrices, uniform over their group."""
    q, r = torch.linalg.qr(torch.randn(n, d, d, generator=generator, dtype=torch.float64))
    return q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]


def sequences(
    setup: StepSetup, n: int, generator: torch.Generator, basis: Float[Tensor, "d d"] | None = None
) -> Sequences:
    """Return sequences from random unit vectors; commuting systems share one basis."""
    shared = haar(1, setup.d, generator)[0] if basis is None else basis
    if setup.setting == "commuting":
        w = shared @ rotations(setup, n, generator) @ shared.T
    else:
        w = haar(n, setup.d, generator)
    s = torch.randn(n, setup.d, generator=generator, dtype=torch.float64)
    states = [s / s.norm(dim=-1, keepdim=True)]
    for _ in range(setup.n_tokens + 1):
        states.append(torch.einsum("nij,nj->ni", w, states[-1]))
    return Sequences(s=torch.stack(states, dim=1), basis=shared)


def gradient_step(s: Float[Tensor, "n times d"]) -> Float[Tensor, "n d"]:
    """Return sum_t s_{t+1} <s_t, s_T> over t = 0 ... T - 1; the last time is the target's."""
    known, last = s[:, :-1], s[:, -2]
    return torch.einsum("ntd,ntk,nk->nd", known[:, 1:], known[:, :-1], last)


def best_length(step: Float[Tensor, "n d"], target: Float[Tensor, "n d"]) -> float:
    """Return the eta that makes eta * step nearest to the target."""
    return float((step * target).sum() / step.square().sum())


# --- models ----------------------------------------------------------------------------------


def first_weights(setup: StepSetup, generator: torch.Generator) -> dict[str, Tensor]:
    """Return small random weights: of values, and of scores between keys and the query."""
    sizes: dict[str, tuple[int, ...]] = {"value": (setup.d, setup.d), "score": (setup.d, setup.d)}
    if setup.kind == "free":
        sizes = {"value": (setup.d, 3 * setup.d), "score": (3 * setup.d, 3 * setup.d)}
    elif setup.setting == "commuting":
        # real and imaginary part for each plane: what commutes with all turns of it
        sizes = {"value": (setup.d // 2, 2), "score": (setup.d // 2, 2)}
    return {
        name: (0.3 * torch.randn(*size, generator=generator, dtype=torch.float64)).requires_grad_()
        for name, size in sizes.items()
    }


def predict(
    setup: StepSetup, weights: dict[str, Tensor], values: Tensor, keys: Tensor, basis: Tensor
) -> Float[Tensor, "n d"]:
    """Return sum_t V(token_t) score(token_t, token_T) from s_1 ... s_T and s_0 ... s_{T-1}."""
    if setup.kind == "free":
        zeros = torch.zeros_like(values)
        tokens = torch.cat([zeros, values, keys], dim=-1)
        scores = torch.einsum("ntk,kl,nl->nt", tokens, weights["score"], tokens[:, -1])
        return torch.einsum("nt,ntk,dk->nd", scores, tokens, weights["value"])
    value, score = (_in_basis(setup, weights[name], basis) for name in ("value", "score"))
    scores = torch.einsum("ntk,kl,nl->nt", keys, score, values[:, -1])
    return torch.einsum("nt,ntk,dk->nd", scores, values, value)


def _in_basis(setup: StepSetup, weight: Tensor, basis: Tensor) -> Tensor:
    """Return a d x d map: as it is, or scaled turns of the planes of the shared basis."""
    if setup.setting != "commuting":
        return weight
    blocks = [torch.stack([torch.stack([x, -y]), torch.stack([y, x])]) for x, y in weight]
    return basis @ torch.block_diag(*blocks) @ basis.T


def aligned(setup: StepSetup, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights whose values do not turn their planes; the scores turn by as much more.

    In the basis that all W share, only the product of a plane's value and score enters the term
    that predicts; how the turn is split between them the loss does not tell.
    """
    if setup.kind != "structured" or setup.setting != "commuting":
        return weights
    value, score = (torch.view_as_complex(weights[name].detach()) for name in ("value", "score"))
    phase = value / value.abs()
    parts = {"value": value / phase, "score": score * phase}
    return {name: torch.view_as_real(part) for name, part in parts.items()}


def train(job: Job[StepSetup]) -> dict[str, Any]:
    """Train one model; return its error beside that of a gradient step, and their cosine."""
    setup, generator = job.setup, torch.Generator().manual_seed(job.seed)
    pool = sequences(setup, setup.pool, generator)
    weights = first_weights(setup, generator)

    def loss_at(step: int) -> Tensor:
        s = pool.s[torch.randint(len(pool.s), (BATCH,), generator=generator)]
        out = predict(setup, weights, *_read(setup, s, generator), pool.basis)
        return (out - s[:, -1]).square().sum(dim=-1).mean()

    optimizer = torch.optim.Adam(weights.values(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, setup.n_steps)
    fit(loss_at, optimizer, steps=setup.n_steps, schedule=schedule)
    return _judge(setup, pool, weights, generator)


def _read(setup: StepSetup, s: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return what values and keys read: s_1 ... s_T and s_0 ... s_{T-1}."""
    values, keys = s[:, 1:-1], s[:, :-2]
    if setup.broken:
        keys = keys[:, torch.randperm(keys.shape[1], generator=generator)]
    return values, keys


def _judge(
    setup: StepSetup, pool: Sequences, weights: dict[str, Tensor], generator: torch.Generator
) -> dict[str, Any]:
    fresh = sequences(setup, 4096, generator, pool.basis).s
    eta = best_length(gradient_step(pool.s), pool.s[:, -1])
    step, target = eta * gradient_step(fresh), fresh[:, -1]
    read = _read(setup, fresh, generator)
    with torch.no_grad():
        out = predict(setup, weights, *read, pool.basis)
        turned = predict(setup, aligned(setup, weights), *read, pool.basis)
    return {
        "mse": _error(out, target),
        "aligned_mse": _error(turned, target),
        "step_mse": _error(step, target),
        "cosine": _cosine(out, step),
        "aligned": _cosine(turned, step),
        "eta": eta,
        "weights": {name: weight.detach().tolist() for name, weight in weights.items()},
    }


def _error(out: Tensor, target: Tensor) -> float:
    return float((out - target).square().sum(dim=-1).mean())


def _cosine(out: Tensor, step: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(out, step, dim=-1).mean())


# --- claims ----------------------------------------------------------------------------------

Runs = dict[str, list[dict[str, Any]]]


def runs(bench: Bench, kind: str) -> Runs:
    """Return the runs of a kind, such as "commuting, free" and "commuting, free, broken"."""
    return bench.once(f"augmented, {kind}", lambda: _runs(bench, kind))


def _runs(bench: Bench, kind: str) -> Runs:
    arms = {}
    for setting, broken in product(SETTINGS, (False, True)):
        setup = StepSetup(
            setting=setting,
            kind=kind,
            n_steps=bench.pick(10, 1500, 6000),
            n_tokens=bench.pick(12, 12, 50),
            d=bench.pick(4, 4, 6),
            pool=bench.pick(2**9, 2**14, 2**14),
            broken=broken,
        )
        # Four seeds left 5b undecided; its control is so far off that four will do.
        own = kind == "structured" and not broken
        numbers = bench.first_seeds(bench.pick(3, 8, 8)) if own else bench.seeds
        seeds = [bench.generator(f"augmented {setting}", s).initial_seed() for s in numbers]
        arms[_name(setting, kind, broken=broken)] = Arm(setup=setup, seeds=seeds)
    return run_arms(bench, train, arms)


def _name(setting: str, kind: str, *, broken: bool = False) -> str:
    return f"{setting}, {kind}{', broken' if broken else ''}"


def direction(bench: Bench, *, kind: str, what: str) -> Outcome:
    """5a, 5c, 5f: cosine with the gradient step, the least setting; control: broken pairs.

    `what` is "aligned" or, as trained, "cosine".
    """
    by_name = runs(bench, kind)
    outcome = Outcome(
        result=estimate.mean(_over(by_name, kind, what, least=True)),
        control=estimate.mean(_over(by_name, kind, what, least=False, broken=True)),
        data={
            "runs": {name: [_short(run) for run in rows] for name, rows in by_name.items()},
            "by_length": by_length(bench),
        }
        if (kind, what) == ("structured", "aligned")
        else {"settings": {s: [run[what] for run in by_name[_name(s, kind)]] for s in SETTINGS}},
    )
    return judged(bench, outcome)


def error(bench: Bench, *, kind: str, both_sides: bool) -> Outcome:
    """5b, 5d, 5e: error over that of the gradient step, or its distance from 1."""
    by_name = runs(bench, kind)

    def number(name: str) -> list[float]:
        ratios = [run["mse"] / run["step_mse"] for run in by_name[name]]
        return [abs(ratio - 1.0) for ratio in ratios] if both_sides else ratios

    own = [number(_name(setting, kind)) for setting in SETTINGS]
    broken = [number(_name(setting, kind, broken=True)) for setting in SETTINGS]
    outcome = Outcome(
        result=estimate.mean([max(pair) for pair in zip(*own, strict=True)]),
        control=estimate.mean([min(pair) for pair in zip(*broken, strict=True)]),
        data={"numbers": dict(zip(SETTINGS, own, strict=True))},
    )
    return judged(bench, outcome)


def _over(by_name: Runs, kind: str, what: str, *, least: bool, broken: bool = False) -> list[float]:
    columns = [
        [run[what] for run in by_name[_name(setting, kind, broken=broken)]] for setting in SETTINGS
    ]
    return [(min if least else max)(pair) for pair in zip(*columns, strict=True)]


def _short(run: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in run.items() if key != "weights"}


def by_length(bench: Bench) -> dict[str, Any]:
    """Return the error of the best gradient step by the number of tokens, for each setting."""
    lengths = [2, 4, 8, 16, 32, 64]
    setup = StepSetup(setting="commuting", kind="structured", n_steps=0)
    result: dict[str, Any] = {"lengths": lengths}
    for setting in SETTINGS:
        generator = bench.generator(f"by length {setting}")
        rows = []
        for length in lengths:
            one = replace(setup, setting=setting, n_tokens=length)
            s = sequences(one, bench.pick(200, 4096, 2**14), generator).s
            step, target = gradient_step(s), s[:, -1]
            eta = best_length(step, target)
            rows.append(float((eta * step - target).square().sum(dim=-1).mean()))
        result[setting] = rows
    return result
