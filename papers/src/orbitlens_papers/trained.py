"""Training runs for studies: side by side, kept by their hash, each with its curve.

Enters: configs of the lab. Leaves: results and validation curves. A run that is done is read, not
repeated, also by another claim or a changed study: its name depends on nothing but its config.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orbitlens.lab.run import RunConfig, RunResult, run_hash
from orbitlens.lab.run_state import LOG, MODEL
from orbitlens.lab.training import train
from orbitlens_papers.bench import Bench, Scale
from orbitlens_papers.claim import Outcome

SMOKE = "at smoke scale models train for a few steps, to see that they do; run the default scale"


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look at the valid split."""

    step: int
    loss: float
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A finished run: what came out, its curve, and where its model lies."""

    result: RunResult
    curve: tuple[Look, ...]
    model: Path


def train_all(bench: Bench, configs: Sequence[RunConfig], *, part: str = "") -> list[Trained]:
    """Train what is not there yet; results in the order of the configs."""
    folder = (bench.folder / part).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return bench.map(run_one, [(config, folder) for config in configs])


def run_one(job: tuple[RunConfig, Path]) -> Trained:
    """Train one config in a folder; a top-level function, so that processes can be given it."""
    from orbitlens.running.loading import quiet_transformers

    config, folder = job
    with quiet_transformers():
        result = train(config, folder)
    place = folder / run_hash(config)
    return Trained(result=result, curve=_curve(place / LOG), model=place / MODEL)


def judged(bench: Bench, outcome: Outcome) -> Outcome:
    """Return an outcome of training, or at smoke scale its data without a verdict."""
    if bench.scale is Scale.SMOKE:
        return Outcome(obstacle=SMOKE, data=outcome.data)
    return outcome


def _curve(file: Path) -> tuple[Look, ...]:
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line]
    return tuple(
        Look(step=line["step"], loss=line["valid_loss"], accuracy=line["valid_accuracy"])
        for line in lines
        if "valid_loss" in line
    )
