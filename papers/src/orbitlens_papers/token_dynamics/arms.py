"""Claims 6 and 7 of the arms as released: judged from runs that are stored with the package.

Enters: a bench. Leaves: outcomes with paired differences of held-out losses. A run takes minutes
and an arm five of them, so that they were trained once (docs/make_arms.py, plans in experiments/,
orderings fixed before the first run) and are kept in `arms.json`: at the default scale they are
read, at full scale trained anew. The control is the same comparison where there is nothing to
learn; the positive control is a model that is known to lose, in which every head averages.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from orbitlens.lab.run import RunConfig, run_config
from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench, Scale
from orbitlens_papers.claim import Outcome
from orbitlens_papers.token_dynamics.training import noise_file, obstacle
from orbitlens_papers.trained import judged, train_all

STORED = "arms.json"
THREE = ("plain", "released-negative", "released-positive")
COMPARED: Mapping[str, tuple[str, ...]] = {  # plan -> the arms that core claims speak of
    "arms-narrow": THREE,
    "arms-mnist": THREE,
    "arms-rotary": ("plain", "diagonal"),
}
HURT = "averaging"  # known to lose
NOISE_STEPS = 1000
IMAGES, MNIST = "arms-mnist", "t10k-images-idx3-ubyte.gz"
NARROW = ("arms-narrow", IMAGES)  # weights that start with a deviation of 0.02
Losses = dict[str, list[float]]  # arm -> loss by seed
Arm = TypeVar("Arm", str, tuple[str, str])  # by name; or with the plan it is of


@cache
def stored() -> Mapping[str, Any]:
    """Return the stored losses: plan -> arm -> seed -> loss, and `noise` with the same."""
    text = files("orbitlens_papers.token_dynamics").joinpath(STORED).read_text(encoding="utf-8")
    losses: Mapping[str, Any] = json.loads(text)
    return losses


def run_of(plan: str, arm: str, seed: int, file: str | None) -> RunConfig:
    """Return the config of one run of a plan: what experiments/PLAN.toml says."""
    settings: dict[str, int | float | str | bool] = {
        "task": "digits" if plan == IMAGES else "text",
        "position": "rotary" if plan == "arms-rotary" else "sinusoidal",
        "norm": "post",
        "layers": 6,
        "heads": 4,
        "width": 64,
        "measure": True,
        "steps": 5000,
        "lr": 1e-3,
        "warmup": 500,
        "seed": seed,
        "refinement": "none" if arm == "plain" else arm,
    }
    settings |= {"batch": 16, "mask": "full"} if plan == IMAGES else {"batch": 8, "context": 64}
    settings |= {"init": 0.02} if plan in NARROW else {}
    return run_config(settings if file is None else {**settings, "file": file})


def losses(bench: Bench, plan: str, *, noise: bool = False) -> Losses:
    """Return held-out losses of the arms of a plan by seed: stored ones, or trained now."""
    if bench.scale is Scale.DEFAULT:
        return paired((stored()["noise"] if noise else stored())[plan], _needed(plan, noise))
    return bench.once(f"arms {plan} {noise}", lambda: _trained(bench, plan, noise))


def _needed(plan: str, noise: bool) -> tuple[str, ...]:
    return (*COMPARED[plan], *(() if noise else (HURT,)))


def paired(
    arms: Mapping[Arm, Mapping[str, float]], needed: Sequence[Arm]
) -> dict[Arm, list[float]]:
    """Return the losses of the seeds that all needed arms have, of every arm that has them.

    >>> paired({"a": {"0": 1.0, "1": 2.0}, "b": {"1": 3.0}, "c": {"0": 4.0}}, ["a", "b"])
    {'a': [2.0], 'b': [3.0]}
    """
    seeds = sorted(set.intersection(*(set(arms[arm]) for arm in needed)))
    whole = {arm: own for arm, own in arms.items() if set(seeds) <= set(own)}
    return {arm: [own[seed] for seed in seeds] for arm, own in whole.items()}


def _trained(bench: Bench, plan: str, noise: bool) -> Losses:
    arms = _needed(plan, noise)
    seeds = list(bench.seeds)[: bench.pick(2, 5, 1000)]
    places = [(arm, seed) for arm in arms for seed in seeds]
    file = _file(bench, plan, noise)
    configs = [_sized(bench, run_of(plan, *place, file), noise) for place in places]
    trained = train_all(bench, configs, part="noise" if noise else "")
    found: Losses = {arm: [] for arm in arms}
    for (arm, _), run in zip(places, trained, strict=True):
        found[arm].append(run.result.loss)
    return found


def _file(bench: Bench, plan: str, noise: bool) -> str | None:
    if noise:
        return str(noise_file(bench, "mnist" if plan == IMAGES else "text"))
    if plan != IMAGES:
        return bench.settings.text
    images = bench.data_file(MNIST)
    return None if images is None else str(images)


def _sized(bench: Bench, config: RunConfig, noise: bool) -> RunConfig:
    if bench.scale is Scale.SMOKE:
        return replace(config, steps=2, warmup=1, layers=2, width=16, heads=2, judged=32)
    return replace(config, steps=NOISE_STEPS) if noise else config


def compare(bench: Bench, *, plan: str, worse: str, better: str) -> Outcome:
    """6, 7: by how much the first arm's loss is above the second's, paired over seeds."""
    reason = _obstacle(bench, plan)
    if reason:
        return Outcome(obstacle=reason)
    own, noise = losses(bench, plan), losses(bench, plan, noise=True)
    return judged(
        bench,
        Outcome(
            positive=estimate.difference(own[HURT], own["plain"]),
            result=estimate.difference(own[worse], own[better]),
            control=estimate.difference(noise[worse], noise[better]),
            data={"losses": own, "noise": noise, "against_none": _against_plain(own)},
        ),
    )


def across(bench: Bench, *, worse: tuple[str, str], better: tuple[str, str]) -> Outcome:
    """A side claim between two plans (each a plan and an arm), paired over seeds; stored runs."""
    if bench.scale is not Scale.DEFAULT:
        return Outcome(obstacle="judged from stored runs, at the default scale alone")
    sides = {place: stored()[place[0]][place[1]] for place in (worse, better)}
    both = paired(sides, [worse, better])
    return Outcome(result=estimate.difference(both[worse], both[better]))


def _obstacle(bench: Bench, plan: str) -> str:
    if bench.scale is not Scale.FULL:  # a few steps on what the package has, or stored runs
        return ""
    if plan != IMAGES:
        return obstacle(bench, "text")
    there = bench.data_file(MNIST) is not None
    return "" if there else f"images are those of MNIST: give a folder of data that has {MNIST}"


def _against_plain(own: Losses) -> dict[str, Any]:
    return {
        arm: estimate.difference(values, own["plain"]).to_json()
        for arm, values in own.items()
        if arm != "plain"
    }
