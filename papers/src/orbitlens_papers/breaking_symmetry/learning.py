"""Claims 3 and 6: which mechanisms let a model learn addition, and do residuals help?

Enters: a bench. Leaves: outcomes. Addition needs order: 12 + 30 and 21 + 03 have the same tokens.
The order-blind ceiling is exact, by enumerating all pairs.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean
from typing import Any

import torch

from orbitlens.lab.run import RunConfig, run_config, task_of
from orbitlens.lab.tasks.base import NOT_JUDGED
from orbitlens.running.model import load
from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench, Scale
from orbitlens_papers.breaking_symmetry.slices import (
    identity_table,
    lead_by_layer,
    peak,
    rounded,
    states_of,
)
from orbitlens_papers.claim import Outcome
from orbitlens_papers.trained import Trained, judged, train_all

RESIDUALS = ("all", "attention", "mlp", "none")
ENCODINGS = ("none", "learned", "rotary")
LEARNT = 0.99  # of whole answers: models that claims 5 and 6a look into
FEWEST = 6  # of eight models that must have learnt so much, or these claims are not testable
ADDITION = {"layers": 3, "heads": 4, "width": 64}  # that learns three digits


def run_of(
    bench: Bench, *, position: str, mask: str, residual: str = "all", seed: int = 0
) -> RunConfig:
    """Return a run on the long task: three digits (one at smoke)."""
    # With an encoding fewer steps are enough; without one models hesitate for a thousand.
    enough = {"learned": 600, "rotary": 1200}.get(position, 2000)
    steps = bench.pick(6, enough, 2 * enough)
    sizes = {"layers": 2, "heads": 2, "width": 16} if bench.scale is Scale.SMOKE else ADDITION
    return run_config(
        {
            "task": "addition",
            "digits": bench.pick(1, 3, 3),
            "position": position,
            "mask": mask,
            "residual": residual,
            "steps": steps,
            "batch": bench.pick(16, 128, 128),
            "lr": 3e-3,
            "warmup": min(100, steps // 2),
            "judged": bench.pick(64, 2048, 4096),
            "seed": seed,
        }
        | sizes
    )


def short_run(bench: Bench, position: str, residual: str, seed: int) -> RunConfig:
    """Return a run on the short task: two digits, a small model; for many settings."""
    # Three digits at width 64 take four times as long a step: eight seeds would not fit.
    long = run_of(bench, position=position, mask="causal", residual=residual, seed=seed)
    steps = bench.pick(6, 2000, 3000)
    return replace(
        long,
        options={"digits": bench.pick(1, 2, 3)},
        layers=2 if bench.scale is Scale.SMOKE else 3,
        heads=2,
        width=bench.pick(16, 32, 64),
        steps=steps,
        batch=bench.pick(16, 64, 256),
        warmup=max(1, steps // 10),
    )


# --- claim 3: addition -----------------------------------------------------------------------

CELLS = (("none", "causal"), ("none", "full"), ("learned", "causal"), ("rotary", "causal"))


def long_runs(bench: Bench) -> dict[str, list[Trained]]:
    """Return the runs by cell, such as "none, causal"."""

    def make() -> dict[str, list[Trained]]:
        seeds = list(bench.seeds)[: bench.pick(2, 3, 8)]
        cells = bench.pick(CELLS[:2], CELLS[:3], CELLS)
        # Those with an encoding are for comparison only: no claim rests on them.
        places = [(c, s) for c in cells for s in (seeds if c[0] == "none" else seeds[:2])]
        configs = [run_of(bench, position=p, mask=m, seed=s) for (p, m), s in places]
        by_cell: dict[str, list[Trained]] = {f"{p}, {m}": [] for p, m in cells}
        for ((p, m), _), run in zip(places, train_all(bench, configs), strict=True):
            by_cell[f"{p}, {m}"].append(run)
        return by_cell

    return bench.once("addition", make)


def _ceiling(bench: Bench) -> float:
    ceiling = task_of(run_of(bench, position="none", mask="full")).ceiling
    assert ceiling is not None  # known up to three digits
    return ceiling.exact_match


def mask_is_enough(bench: Bench) -> Outcome:
    """3a: exact match of causal models without encoding; control: full attention."""
    runs = long_runs(bench)
    scores = {name: [run.result.accuracy for run in trained] for name, trained in runs.items()}
    outcome = Outcome(
        result=estimate.mean(scores["none, causal"]),
        control=estimate.mean(scores["none, full"]),
        data={
            "scores": scores,
            "ceiling": _ceiling(bench),
            "digits": bench.pick(1, 3, 3),
            "curves": {name: [_points(run) for run in trained] for name, trained in runs.items()},
        },
    )
    return judged(bench, outcome)


def _points(run: Trained) -> dict[str, list[float]]:
    return {
        "step": [float(look.step) for look in run.curve],
        "accuracy": [round(look.accuracy, 4) for look in run.curve],
    }


def full_meets_ceiling(bench: Bench) -> Outcome:
    """3b: exact match of full models without encoding, less the order-blind ceiling.

    Control: a causal mask.
    """
    runs, ceiling = long_runs(bench), _ceiling(bench)
    blind, seeing = (
        [run.result.accuracy - ceiling for run in runs[name]]
        for name in ("none, full", "none, causal")
    )
    outcome = Outcome(result=estimate.mean(blind), control=estimate.mean(seeing))
    return judged(bench, outcome)


# --- claims 5 and 6: residuals ---------------------------------------------------------------


def short_runs(bench: Bench) -> dict[str, list[Trained]]:
    """Return two-digit runs by encoding and residuals, such as "none, all"; a list over seeds."""

    def make() -> dict[str, list[Trained]]:
        seeds = bench.first_seeds(bench.pick(2, 8, 8))
        # Claims are about models without encoding; the others are for comparison.
        encodings = bench.pick(("none",), ("none",), ENCODINGS)
        places = list(product(encodings, RESIDUALS, seeds))
        by_cell: dict[str, list[Trained]] = {f"{p}, {r}": [] for p, r, _ in places}
        runs = train_all(bench, [short_run(bench, *place) for place in places])
        for (p, r, _), run in zip(places, runs, strict=True):
            by_cell[f"{p}, {r}"].append(run)
        return by_cell

    return bench.once("residual runs", make)


def right_for_others(run: Trained) -> float:
    """Return the token accuracy of a model judged by the answers to other questions."""
    config = run.result.config
    batch = task_of(config).batch("test", 0, config.judged, 0)
    wanted = batch.targets[batch.targets != NOT_JUDGED].view(len(batch.targets), -1)
    model = load(run.model).module
    with torch.no_grad():
        predicted = model(input_ids=batch.inputs, targets=batch.targets).logits.argmax(dim=-1)
    return float((predicted.view_as(wanted) == wanted.roll(1, dims=0)).double().mean())


def _worth(bench: Bench, kept: str, score: Callable[[Trained], float]) -> estimate.Estimate:
    """Return a score with all residuals less that with some; same seeds, data and order."""
    runs = short_runs(bench)
    pairs = (runs["none, all"], runs[f"none, {kept}"])
    return estimate.difference(*([score(run) for run in side] for side in pairs))


def _right(run: Trained) -> float:
    return run.result.token_accuracy


def residuals_help_learning(bench: Bench) -> Outcome:
    """6b: token accuracy with all residuals less with none; control: answers to others."""
    runs = short_runs(bench)
    outcome = Outcome(
        result=_worth(bench, "none", _right),
        control=_worth(bench, "none", right_for_others),
        data={
            "scores": {name: [_right(r) for r in rows] for name, rows in runs.items()},
            "exact": {name: [r.result.accuracy for r in rows] for name, rows in runs.items()},
            "losses": {name: [r.result.loss for r in rows] for name, rows in runs.items()},
            "curves": {name: [_points(r) for r in rows] for name, rows in runs.items()},
            "steps": runs["none, all"][0].result.steps,
        },
    )
    return judged(bench, outcome)


def one_residual_suffices(bench: Bench, *, kept: str) -> Outcome:
    """6c, 6d: what is lost when only one kind of residual is kept; positive control: without any.

    Control: judged by the answers to other questions.
    """
    outcome = Outcome(
        result=_worth(bench, kept, _right),
        control=_worth(bench, kept, right_for_others),
        positive=_worth(bench, "none", _right),
    )
    return judged(bench, outcome)


# --- claims 5 and 6a: what slices of trained models stand for --------------------------------

Layers = Sequence[float]


def trained_tables(bench: Bench) -> dict[str, list[dict[str, Any]]]:
    """Return identity tables by residuals, for seeds whose model with all of them has learnt."""

    def make() -> dict[str, list[dict[str, Any]]]:
        runs = short_runs(bench)
        least = bench.pick(0.0, LEARNT, LEARNT)
        kept = [k for k, run in enumerate(runs["none, all"]) if run.result.accuracy >= least]
        names = [f"none, {residual}" for residual in RESIDUALS]
        return {name: [_tables(bench, runs[name][k]) for k in kept] for name in names}

    return bench.once("trained tables", make)


def _tables(bench: Bench, run: Trained) -> dict[str, Any]:
    """Return tables of the digits of the question, which are independent of each other."""
    config = run.result.config
    task = task_of(config)
    n = bench.pick(120, 600, 2000)
    items = task.batch("test", 0, n, config.seed).inputs
    digits = items.shape[1] // 3  # a question of 2 d + 2 tokens and d of the answer's d + 1
    places = torch.tensor([*range(digits), *range(digits + 1, 2 * digits + 1)])
    model = load(run.model).module
    generator = bench.generator("trained identity", config.seed)
    layers = [layer[:, places] for layer in states_of(model, items)]
    names = items[:, places]
    tables = [identity_table(layer, names, generator) for layer in layers]
    noise = [identity_table(layer, names, generator, shuffled=True) for layer in layers]
    return {
        "peaks": [peak(table) for table in tables],
        "last": rounded(tables[-1]),
        "shuffled": [peak(table) for table in noise],
    }


def _last(layers: Layers) -> float:
    return layers[-1]


def _mean(layers: Layers) -> float:
    return fmean(layers[1:])  # without the embedding, which holds its token anyway


def _least(layers: Layers) -> float:
    return min(layers[1:])


READINGS: dict[str, Callable[[Layers], float]] = {"last": _last, "mean": _mean, "least": _least}


def _too_few(bench: Bench) -> Outcome | None:
    n = len(trained_tables(bench)["none, all"])
    if n >= bench.pick(0, FEWEST, FEWEST):
        return None
    total = len(short_runs(bench)["none, all"])
    return Outcome(
        obstacle=f"{n} of {total} models were trained to {LEARNT:.0%} of answers right; at least "
        f"{FEWEST} are needed"
    )


def trained_slices(bench: Bench, *, over: str) -> Outcome:
    """5a, 5b, 5d: lead of the own digit in trained models; control: labels shuffled.

    `over` says what becomes of the layers: the last, their mean, or the least.
    """
    few = _too_few(bench)
    if few is not None:
        return few
    tables, read = trained_tables(bench), READINGS[over]
    own = tables["none, all"]
    peaks = {name: [row["peaks"] for row in rows] for name, rows in tables.items()}
    data: dict[str, Any] = {"note": f"lead {lead_by_layer(peaks['none, all'])}"}
    if over == "last":
        data |= {
            "peaks": peaks,
            "tables": {name: rows[0]["last"] for name, rows in tables.items()},
        }
    outcome = Outcome(
        result=estimate.mean([read(row["peaks"]) for row in own]),
        control=estimate.mean([read(row["shuffled"]) for row in own]),
        data=data,
    )
    return judged(bench, outcome)


def residuals_keep_trained_slices(bench: Bench, *, over: str) -> Outcome:
    """6a, 6e: that lead with all residuals, less without any; control: labels shuffled."""
    few = _too_few(bench)
    if few is not None:
        return few
    tables, read = trained_tables(bench), READINGS[over]
    gaps = {
        kind: [
            [a - b for a, b in zip(one[kind], other[kind], strict=True)]
            for one, other in zip(tables["none, all"], tables["none, none"], strict=True)
        ]
        for kind in ("peaks", "shuffled")
    }
    result, control = (
        replace(found, how=f"paired, {found.how}")
        for found in (estimate.mean([read(row) for row in rows]) for rows in gaps.values())
    )
    data = {"note": f"difference {lead_by_layer(gaps['peaks'])}"}
    return judged(bench, Outcome(result=result, control=control, data=data))
