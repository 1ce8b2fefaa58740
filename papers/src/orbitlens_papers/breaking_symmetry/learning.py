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


def short_runs(bench: Bench, residual: str, position: str = "none") -> list[Trained]:
    """Return two-digit runs of one kind, one a seed; trained when they are first asked for."""

    def make() -> list[Trained]:
        seeds = bench.first_seeds(bench.pick(2, 8, 8))
        return train_all(bench, [short_run(bench, position, residual, seed) for seed in seeds])

    return bench.once(f"residual runs, {position}, {residual}", make)


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
    pairs = (short_runs(bench, "all"), short_runs(bench, kept))
    return estimate.difference(*([score(run) for run in side] for side in pairs))


def _right(run: Trained) -> float:
    return run.result.token_accuracy


def residuals_help_learning(bench: Bench) -> Outcome:
    """6b: token accuracy with all residuals less with none; control: answers to others."""
    runs = {kind: short_runs(bench, kind) for kind in ("all", "none")}
    outcome = Outcome(
        result=_worth(bench, "none", _right),
        control=_worth(bench, "none", right_for_others),
        data={
            "scores": {f"none, {kind}": _scores(rows) for kind, rows in runs.items()},
            "encoded": _encoded(bench),
            "exact": {kind: [r.result.accuracy for r in rows] for kind, rows in runs.items()},
            "losses": {kind: [r.result.loss for r in rows] for kind, rows in runs.items()},
            "steps": runs["all"][0].result.steps,
        },
    )
    return judged(bench, outcome)


def _scores(runs: Sequence[Trained]) -> list[float]:
    return [_right(run) for run in runs]


def _encoded(bench: Bench) -> dict[str, list[float]]:
    """Return scores of models with an encoding: for comparison, at the full scale only."""
    kinds = bench.pick((), (), tuple(product(ENCODINGS[1:], RESIDUALS)))
    return {f"{p}, {kept}": _scores(short_runs(bench, kept, p)) for p, kept in kinds}


def one_residual_suffices(bench: Bench, *, kept: str) -> Outcome:
    """6c, 6d: what is lost when only one kind of residual is kept; positive control: without any.

    Control: judged by the answers to other questions.
    """
    outcome = Outcome(
        result=_worth(bench, kept, _right),
        control=_worth(bench, kept, right_for_others),
        positive=_worth(bench, "none", _right),
        data={"scores": {f"none, {kept}": _scores(short_runs(bench, kept))}},
    )
    return judged(bench, outcome)


# --- claims 5 and 6a: what slices of trained models stand for --------------------------------

Layers = Sequence[float]


def trained_tables(bench: Bench, residual: str) -> list[dict[str, Any]]:
    """Return identity tables, for seeds whose model with all residuals has learnt."""

    def make() -> list[dict[str, Any]]:
        least = bench.pick(0.0, LEARNT, LEARNT)
        learnt = [run.result.accuracy >= least for run in short_runs(bench, "all")]
        runs = zip(short_runs(bench, residual), learnt, strict=True)
        return [_tables(bench, run) for run, has_learnt in runs if has_learnt]

    return bench.once(f"trained tables, {residual}", make)


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
    n = len(trained_tables(bench, "all"))
    if n >= bench.pick(0, FEWEST, FEWEST):
        return None
    total = len(short_runs(bench, "all"))
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
    own, read = trained_tables(bench, "all"), READINGS[over]
    outcome = Outcome(
        result=estimate.mean([read(row["peaks"]) for row in own]),
        control=estimate.mean([read(row["shuffled"]) for row in own]),
        data={
            "note": f"lead {lead_by_layer([row['peaks'] for row in own])}",
            **(_drawn(bench) if over == "last" else {}),
        },
    )
    return judged(bench, outcome)


def _drawn(bench: Bench) -> dict[str, Any]:
    """Return what the figure shows: tables of the first seed, leads of all, with and without."""
    by_kind = {kind: trained_tables(bench, kind) for kind in ("all", "none")}
    return {
        "peaks": {kind: [row["peaks"] for row in rows] for kind, rows in by_kind.items()},
        "tables": {kind: rows[0]["last"] for kind, rows in by_kind.items()},
    }


def residuals_keep_trained_slices(bench: Bench, *, over: str) -> Outcome:
    """6a, 6e: that lead with all residuals, less without any; control: labels shuffled."""
    few = _too_few(bench)
    if few is not None:
        return few
    pairs = list(zip(*(trained_tables(bench, kind) for kind in ("all", "none")), strict=True))
    gaps = {
        kind: [[a - b for a, b in zip(one[kind], other[kind], strict=True)] for one, other in pairs]
        for kind in ("peaks", "shuffled")
    }
    result, control = (
        replace(found, how=f"paired, {found.how}")
        for found in (
            estimate.mean([READINGS[over](row) for row in rows]) for rows in gaps.values()
        )
    )
    data = {"note": f"difference {lead_by_layer(gaps['peaks'])}"}
    return judged(bench, Outcome(result=result, control=control, data=data))
