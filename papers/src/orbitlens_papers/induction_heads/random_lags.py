"""Claim 7: does an induction head form where no distance helps, and nothing is trained apart?

Enters: a bench. Leaves: outcomes. Two-layer transformers (`two_layers.py`) are trained as a whole
on even lags, drawn anew for every sequence, and judged on fresh sequences, also of odd lags. The
control is a model of one layer, which cannot know what stood in front of a place; the positive
control is one whose weights are set by hand.
"""

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from orbitlens.lab.fitting import fit
from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome
from orbitlens_papers.induction_heads.two_layers import (
    LagSetup,
    Returning,
    TwoLayers,
    accuracy,
    hand_set,
    in_front,
    induction,
    known_loss,
    lags_of,
    returning,
)
from orbitlens_papers.jobs import Arm, Job, run_arms
from orbitlens_papers.trained import judged

LEAST, MOST = 8, 24
RATE, WARMUP, CLIP = 3e-3, 100, 1.0
LOOK_EVERY = 10  # steps
N_LOOK, N_JUDGED = 32, 512  # sequences
HIDDEN = (1, 2, 3, 4)  # distances that the first layer may not see, one at a time

Run = Mapping[str, Any]


def learn(job: Job[LagSetup]) -> dict[str, Any]:
    """Train all weights at once and judge; with a look at both layers every few steps."""
    setup, generator = job.setup, torch.Generator().manual_seed(job.seed)
    model = TwoLayers(setup, int(torch.randint(2**31, (), generator=generator)))
    watched = returning(setup, N_LOOK, generator)
    looks = [_look(model, watched, 0)]

    def loss_at(step: int) -> Tensor:
        return known_loss(model, returning(setup, setup.batch, generator))

    def after(step: int) -> None:
        if step % LOOK_EVERY == 0:
            looks.append(_look(model, watched, step))

    fit(
        loss_at,
        torch.optim.Adam(model.parameters(), lr=RATE),
        steps=setup.steps,
        schedule=lambda step: RATE * min(1.0, (step + 1) / WARMUP),
        clip=CLIP,
        after=after,
    )
    return {**judge(model, setup, generator), "looks": looks}


def _look(model: TwoLayers, drawn: Returning, step: int) -> dict[str, float]:
    # One order for all looks: a curve should not move because the order does.
    same, other = induction(model, drawn, torch.Generator().manual_seed(0))
    return {
        "step": float(step),
        "induction": same - other,
        "in_front": in_front(model, drawn)[0],
        "accuracy": accuracy(model, drawn),
    }


def judge(model: TwoLayers, setup: LagSetup, generator: torch.Generator) -> dict[str, Any]:
    """Return scores on fresh sequences: of the lags trained on, of others, with places hidden."""
    fresh = returning(setup, N_JUDGED, generator)
    others = replace(setup, lags=tuple(lags_of(LEAST, MOST, even=False)))
    same, other = induction(model, fresh, generator)
    by_lag = {
        str(lag): accuracy(model, returning(replace(setup, lags=(lag,)), N_LOOK, generator))
        for lag in range(LEAST, MOST + 1)
    }
    return {
        "same": same,
        "reordered": other,
        "accuracy": accuracy(model, fresh),
        "left_out": accuracy(model, returning(others, N_JUDGED, generator)),
        "by_lag": by_lag,
        "by_distance": in_front(model, fresh),
        "hidden": {str(back): accuracy(model, fresh, hidden=back) for back in HIDDEN},
    }


# --- claims ----------------------------------------------------------------------------------


def setup_of(bench: Bench, *, layers: int = 2) -> LagSetup:
    """Return the setup of a scale."""
    return LagSetup(
        lags=tuple(lags_of(LEAST, MOST, even=True)),
        layers=layers,
        width=bench.pick(16, 32, 64),
        batch=bench.pick(4, 32, 64),
        steps=bench.pick(10, 500, 3000),
    )


def runs(bench: Bench) -> dict[int, list[Run]]:
    """Return the runs by number of layers, one a seed."""

    def make() -> dict[int, list[Run]]:
        seeds = bench.first_seeds(bench.pick(1, 8, 16))
        drawn = [bench.generator("random lags", seed).initial_seed() for seed in seeds]
        few = drawn[: bench.pick(1, 4, 16)]  # the control is far from passing
        arms = {n: Arm(setup=setup_of(bench, layers=n), seeds=s) for n, s in ((2, drawn), (1, few))}
        return {n: list(rows) for n, rows in run_arms(bench, learn, arms).items()}

    return bench.once("random lags", make)


def by_hand(bench: Bench) -> list[Run]:
    """Return what the measurements say of a model whose weights are set by hand, one a seed."""

    def make() -> list[Run]:
        setup = setup_of(bench)
        seeds = bench.first_seeds(bench.pick(1, 8, 16))
        return [judge(hand_set(setup), setup, bench.generator("by hand", s)) for s in seeds]

    return bench.once("by hand", make)


def _score(run: Run) -> float:
    return float(run["same"] - run["reordered"])


def forms(bench: Bench) -> Outcome:
    """7a: the best head's attention behind the earlier occurrence, less the same reordered."""
    by_layers = runs(bench)
    outcome = Outcome(
        result=estimate.mean([_score(run) for run in by_layers[2]]),
        control=estimate.mean([_score(run) for run in by_layers[1]]),
        positive=estimate.mean([_score(run) for run in by_hand(bench)], of="draws"),
        data={
            "runs": {str(n): [_short(run) for run in rows] for n, rows in by_layers.items()},
            "looks": [_columns(run["looks"]) for run in by_layers[2]],
            "trained_on": list(setup_of(bench).lags),
        },
    )
    return judged(bench, outcome)


def predicts(bench: Bench, *, where: str) -> Outcome:
    """7b, 7d: accuracy where the next token is known, at trained lags or at others."""
    by_layers = runs(bench)
    outcome = Outcome(
        result=estimate.mean([run[where] for run in by_layers[2]]),
        control=estimate.mean([run[where] for run in by_layers[1]]),
        positive=estimate.mean([run[where] for run in by_hand(bench)], of="draws"),
    )
    return judged(bench, outcome)


def needs_the_token_in_front(bench: Bench) -> Outcome:
    """7c: accuracy lost when the first layer may not see the token in front.

    Control: another of the next three hidden, the largest loss.
    """

    def lost(run: Run, back: int) -> float:
        return float(run["accuracy"] - run["hidden"][str(back)])

    two = runs(bench)[2]
    outcome = Outcome(
        result=estimate.mean([lost(run, 1) for run in two]),
        control=estimate.mean([max(lost(run, back) for back in HIDDEN[1:]) for run in two]),
        positive=estimate.mean([lost(run, 1) for run in by_hand(bench)], of="draws"),
        data={"lost": {str(back): fmean(lost(run, back) for run in two) for back in HIDDEN}},
    )
    return judged(bench, outcome)


def copies_first(bench: Bench) -> Outcome:
    """7e: share of runs in which the first layer is half-way before the second."""
    times = [
        [half_way(_columns(run["looks"]), name) for name in ("in_front", "induction")]
        for run in runs(bench)[2]
    ]
    outcome = Outcome(
        result=estimate.share(sum(copy < match for copy, match in times), len(times), of="runs"),
        data={"times": times},
    )
    return judged(bench, outcome)


def half_way(columns: Mapping[str, list[float]], name: str) -> float:
    """Return the step of the first look that is half of the way from the first to the last.

    >>> half_way({"step": [0.0, 10.0, 20.0], "x": [0.0, 0.4, 0.6]}, "x")
    10.0
    """
    values = columns[name]
    middle = (values[0] + values[-1]) / 2
    upward = values[-1] >= values[0]
    there = (v >= middle if upward else v <= middle for v in values)
    return next(step for step, reached in zip(columns["step"], there, strict=True) if reached)


def _columns(looks: list[dict[str, float]]) -> dict[str, list[float]]:
    return {name: [round(look[name], 4) for look in looks] for name in looks[0]}


def _short(run: Run) -> dict[str, Any]:
    return {name: value for name, value in run.items() if name != "looks"}
