"""Claims 2b, 3, 4 and 5: what the designs cost and bring when models are trained.

Enters: a bench. Leaves: outcomes. All gains are differences of pairs: two arms of one number.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from orbitlens.orbit.moto import patches_of
from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench, Scale
from orbitlens_papers.claim import Outcome
from orbitlens_papers.estimate import Estimate
from orbitlens_papers.jobs import Arm, run_arms
from orbitlens_papers.trained import judged
from orbitlens_papers.vision_tokens.claims import IMAGES
from orbitlens_papers.vision_tokens.images import Digits, read_digits
from orbitlens_papers.vision_tokens.training import (
    ImageSetup,
    Row,
    build_model,
    label_loss,
    train_and_judge,
)

WEIGHT = 0.5  # of TokenProp
BOTH: dict[str, Any] = {"modulation": "moto", "token_prop": WEIGHT}
BUDGETS = (200, 400, 1000)  # labels
MAIN = 400
NARROW = 16
ARMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "token norm": {"modulation": "token-norm"},
    "MoTo": {"modulation": "moto", "pictures": True},
    "MoTo, replacing": {"modulation": "moto-replace", "pictures": True},
    "MoTo, random layout": {"modulation": "moto-random"},
    "TokenProp": {"token_prop": WEIGHT},
    "both": BOTH,
    "conv stem": {"stem": "conv"},
    "narrow": {"width": NARROW},
    "narrow, TokenProp": {"width": NARROW, "token_prop": WEIGHT},
    "both, shuffled labels": {"shuffled": True, **BOTH},
}
# Arms that core claims and their parts rest on; of the others half the pairs are trained.
N_SHORT = 24  # pairs of the shorter runs
N_CONTROL = 8  # of their control
CORE_ARMS = ("plain", "both", "MoTo", "TokenProp")
SHUFFLED = f"both, shuffled labels, {MAIN}"
Rows = dict[str, list[Row]]


def data_of(bench: Bench) -> Digits:
    """Return the digits to work with."""
    return read_digits(_file(bench))


def _file(bench: Bench) -> str | None:
    file = bench.data_file(IMAGES)
    return None if file is None else str(file.resolve())


def plain_setup(bench: Bench, **changes: Any) -> ImageSetup:  # noqa: ANN401 - its fields
    """Return the plain model at this scale, changed where asked."""
    sizes: dict[str, Any] = {
        "width": bench.pick(16, 32, 48),
        "layers": bench.pick(1, 2, 4),
        "steps": bench.pick(4, 750, 4000),
        "batch": bench.pick(8, 32, 64),
        "n_judged": bench.pick(100, 3000, 5000),
        "n_decoded": bench.pick(20, 500, 2000),
        "n_labels": MAIN,
        "file": _file(bench),
    }
    return ImageSetup(**(sizes | changes))


def _pair_seeds(bench: Bench) -> list[int]:
    """Return the seed of each pair: a few draws for every seed."""
    draws = range(bench.pick(1, 2, 4))
    return [
        bench.generator(f"pair {k}", seed).initial_seed() for k in draws for seed in bench.seeds
    ]


def setups(bench: Bench) -> dict[str, ImageSetup]:
    """Return what is trained for each pair, by name; the number of labels ends the name."""
    arms = {f"{name}, {MAIN}": plain_setup(bench, **changes) for name, changes in ARMS.items()}
    for n in BUDGETS:
        for name in ("plain", "both"):
            arms[f"{name}, {n}"] = plain_setup(bench, n_labels=n, **ARMS[name])
    return arms


def runs(bench: Bench) -> Rows:
    """Return all runs by name of the arm, one a pair."""

    def make() -> Rows:
        seeds = _pair_seeds(bench)
        arms = {
            name: Arm(setup=setup, seeds=seeds[: _n_pairs(bench, name, len(seeds))])
            for name, setup in setups(bench).items()
        }
        return run_arms(bench, train_and_judge, arms)

    return bench.once("arms", make)


def _n_pairs(bench: Bench, name: str, most: int) -> int:
    few = name.rpartition(", ")[0] not in CORE_ARMS
    return -(-most // 2) if few and bench.scale is not Scale.FULL else most


def _of(rows: Sequence[Row], field: str) -> list[float]:
    return [float(row[field]) for row in rows]


def gain(rows: Rows, name: str, beside: str, field: str = "accuracy") -> Estimate:
    """Return what an arm has more than another, over pairs."""
    n = min(len(rows[name]), len(rows[beside]))
    own, other = (_of(rows[arm][:n], field) for arm in (name, beside))
    return estimate.difference(own, other, of="pairs")


# --- claim 2b: time --------------------------------------------------------------------------


def step_seconds(
    arms: Sequence[ImageSetup], data: Digits, *, rounds: int, steps: int
) -> list[list[float]]:
    """Return processor seconds of a few training steps of each arm, in turns; a list a round."""
    models = [build_model(arm, data).train() for arm in arms]
    labelled = [(data.pool[: a.batch], data.pool_labels[: a.batch]) for a in arms]
    rows = []
    for number in range(rounds + 1):
        row = []
        for model, (images, labels) in zip(models, labelled, strict=True):
            started = time.process_time()
            for _ in range(steps):
                (label_loss(model, images, labels) + model.extra_loss()).backward()
                model.zero_grad(set_to_none=True)
            row.append((time.process_time() - started) / steps)
        if number:  # the first round warms up
            rows.append(row)
    return rows


def quick_steps(bench: Bench) -> Outcome:
    """2b: time of a training step with both designs, over that without; control: twice as deep."""
    plain = plain_setup(bench)
    arms = [plain, plain_setup(bench, **BOTH), plain_setup(bench, layers=2 * plain.layers)]
    data = data_of(bench)
    rows = step_seconds(arms, data, rounds=bench.pick(2, 20, 40), steps=bench.pick(2, 25, 50))
    both, deep = ([row[k] / row[0] for row in rows] for k in (1, 2))
    outcome = Outcome(
        result=estimate.mean(both, of="rounds"),
        control=estimate.mean(deep, of="rounds"),
        data={
            "milliseconds": [1e3 * sum(x) / len(rows) for x in zip(*rows, strict=True)],
            "source": data.source,
        },
    )
    return judged(bench, outcome)


# --- claims 3 and 5: accuracy ----------------------------------------------------------------


def gains_accuracy(bench: Bench, *, name: str, beside: str) -> Outcome:
    """3, 5: accuracy of an arm less another's; control: both designs, shuffled labels."""
    rows = runs(bench)
    outcome = Outcome(
        result=gain(rows, name, beside),
        control=gain(rows, SHUFFLED, beside),
        data={
            "by_labels_of_others": gain(rows, name, beside, "by_others").to_json(),
            "accuracies": {arm: _of(rows[arm], "accuracy") for arm in (name, beside)},
            "looks": {arm: [row["looks"] for row in rows[arm]] for arm in (name, beside)},
            "source": data_of(bench).source,
        },
    )
    return judged(bench, outcome)


def gains_at_main(bench: Bench) -> Outcome:
    """3b: as 3a, with what the figures need of all arms."""
    by_arm = runs(bench)
    outcome = gains_accuracy(bench, name=f"both, {MAIN}", beside=f"plain, {MAIN}")
    more = {
        "arms": {name: _of(rows, "accuracy") for name, rows in by_arm.items()},
        "r2": {name: _of(rows, "r2") for name, rows in by_arm.items()},
        "losses": {name: _of(rows, "loss") for name, rows in by_arm.items()},
        "pictures": {
            name: {key: rows[0][key] for key in ("image", "layout", "spectra")}
            for name, rows in by_arm.items()
            if "layout" in rows[0]
        },
    }
    return _with(outcome, more)


def _with(outcome: Outcome, more: dict[str, Any]) -> Outcome:
    return replace(outcome, data={**outcome.data, **more})


def labels_teach(bench: Bench) -> Outcome:
    """3h: accuracy behind shuffled training labels; control: true ones."""
    rows = runs(bench)
    outcome = Outcome(
        result=estimate.mean(_of(rows[SHUFFLED], "accuracy"), of="pairs"),
        control=estimate.mean(_of(rows[f"both, {MAIN}"], "accuracy"), of="pairs"),
        data={"source": data_of(bench).source},
    )
    return judged(bench, outcome)


# --- claim 7: more pairs, shorter runs --------------------------------------------------------


def short_runs(bench: Bench) -> Rows:
    """Return pairs of shorter runs: with both designs and without, at every number of labels."""

    def make() -> Rows:
        first = bench.seeds.start
        n = bench.pick(1, N_SHORT, N_SHORT)
        seeds = [bench.generator("short", first + k).initial_seed() for k in range(n)]
        steps = {"steps": bench.pick(2, 200, 1000), "n_decoded": 0}
        arms = {
            f"{name}, {labels}": Arm(
                setup=plain_setup(bench, n_labels=labels, **steps, **ARMS[name]), seeds=seeds
            )
            for labels in BUDGETS
            for name in ("plain", "both")
        }
        mixed = plain_setup(bench, **steps, **ARMS["both, shuffled labels"])
        arms[SHUFFLED] = Arm(setup=mixed, seeds=seeds[:N_CONTROL])
        return run_arms(bench, train_and_judge, arms)

    return bench.once("short arms", make)


def gains_early(bench: Bench, *, labels: int) -> Outcome:
    """7: accuracy with both designs less without; control: both designs, shuffled labels."""
    rows, names = short_runs(bench), (f"both, {labels}", f"plain, {labels}")
    outcome = Outcome(
        result=gain(rows, *names),
        control=gain(rows, SHUFFLED, names[1]),
        data={
            "accuracies": {name: _of(rows[name], "accuracy") for name in names},
            "source": data_of(bench).source,
        },
    )
    return judged(bench, outcome)


# --- claim 4: TokenProp ----------------------------------------------------------------------


def keeps_pixels(bench: Bench) -> Outcome:
    """4a: R^2 of patches with TokenProp less that without; control: tokens of other patches."""
    data = data_of(bench)
    rows, names = runs(bench), (f"narrow, TokenProp, {MAIN}", f"narrow, {MAIN}")
    numbers: dict[str, Any] = {"r2": {name: _of(rows[name], "r2") for name in names}}
    numbers |= {"best": best_r2(data, NARROW), "source": data.source}
    if data.n_pixels <= NARROW:
        reason = (
            f"patches of {data.n_pixels} pixels fit into tokens of {NARROW} numbers as a whole, "
            "so that there is nothing to raise (claim 4c)"
        )
        return Outcome(obstacle=f"{reason}; give a folder with MNIST", data=numbers)
    outcome = Outcome(
        result=gain(rows, *names, "r2"), control=gain(rows, *names, "r2_others"), data=numbers
    )
    return judged(bench, outcome)


def best_r2(data: Digits, width: int) -> float:
    """Return the R^2 of the best linear tokens of a width: that of principal components."""
    rows = patches_of(data.judged, data.patch).double().flatten(0, 1)
    values = torch.linalg.eigvalsh(torch.cov(rows.T)).flip(0)
    return float(values[:width].sum() / values.sum())


def costs_no_accuracy(bench: Bench) -> Outcome:
    """4b: accuracy with TokenProp less that without; control: both designs, shuffled labels."""
    rows, plain = runs(bench), f"plain, {MAIN}"
    outcome = Outcome(
        result=gain(rows, f"TokenProp, {MAIN}", plain),
        control=gain(rows, SHUFFLED, plain),
        data={"source": data_of(bench).source},
    )
    return judged(bench, outcome)
