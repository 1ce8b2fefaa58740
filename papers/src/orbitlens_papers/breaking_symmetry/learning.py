"""Claims 3 and 6: which mechanisms let a model learn addition, and do residuals help?

Enters: a bench. Leaves: outcomes. Addition needs order: 12 + 30 and 21 + 03 have the same tokens.
The order-blind ceiling is exact, by enumerating all pairs.
"""

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
from orbitlens_papers.breaking_symmetry.slices import identity_table, peak, rounded, states_of
from orbitlens_papers.claim import Outcome
from orbitlens_papers.trained import Trained, judged, train_all

RESIDUALS = ("all", "attention", "mlp", "none")
ENCODINGS = ("none", "learned", "rotary")
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
    long = run_of(bench, position=position, mask="causal", residual=residual, seed=seed)
    steps = bench.pick(6, 400, 3000)
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
    """Return two-digit runs by encoding and residuals, such as "learned, all"."""

    def make() -> dict[str, list[Trained]]:
        seeds = list(bench.seeds)[: bench.pick(2, 3, 8)]
        encodings = bench.pick(("none",), ("none", "learned"), ENCODINGS)
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


def _residuals_kept(bench: Bench, kept: str) -> Outcome:
    """Return what all residuals are worth beside some; control: answers to other questions."""
    runs = short_runs(bench)
    own, other = runs["none, all"], runs[f"none, {kept}"]
    return Outcome(
        result=estimate.difference(*([r.result.token_accuracy for r in x] for x in (own, other))),
        control=estimate.difference(*([right_for_others(r) for r in x] for x in (own, other))),
    )


def residuals_help_learning(bench: Bench) -> Outcome:
    """6b: token accuracy with all residuals less that with none."""
    runs = short_runs(bench)
    scores = {name: [r.result.token_accuracy for r in trained] for name, trained in runs.items()}
    losses = {name: [r.result.loss for r in trained] for name, trained in runs.items()}
    outcome = replace(_residuals_kept(bench, "none"), data={"scores": scores, "losses": losses})
    return judged(bench, outcome)


def one_residual_suffices(bench: Bench, *, kept: str) -> Outcome:
    """6c, 6d: what is lost when only one kind of residual is kept."""
    return judged(bench, _residuals_kept(bench, kept))


def trained_tables(bench: Bench) -> dict[str, list[dict[str, Any]]]:
    """Return identity tables of trained models by residuals; a list over seeds."""

    def make() -> dict[str, list[dict[str, Any]]]:
        runs = short_runs(bench)
        names = [name for name in runs if name.startswith("none, ")]
        return {name: [_tables(bench, run) for run in runs[name]] for name in names}

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
    noise = identity_table(layers[1], names, generator, shuffled=True)
    return {
        "peaks": [peak(table) for table in tables],
        "middle": rounded(tables[len(tables) // 2]),
        "shuffled": peak(noise),
    }


def trained_slices(bench: Bench) -> Outcome:
    """5b: lead of the own token in trained models, mean over layers; control: labels shuffled."""
    tables = trained_tables(bench)
    own = tables["none, all"]
    outcome = Outcome(
        result=estimate.mean([fmean(row["peaks"][1:]) for row in own]),
        control=estimate.mean([row["shuffled"] for row in own]),
        data={
            "peaks": {name: [row["peaks"] for row in rows] for name, rows in tables.items()},
            "tables": {name: rows[0]["middle"] for name, rows in tables.items()},
        },
    )
    return judged(bench, outcome)
