"""Readings as numbers by name, for trackers of experiments.

Enters: a reading. Leaves: a few numbers, and where they go: TensorBoard, MLflow or Weights & Biases
if they are installed, or any function that takes them.
"""

import importlib.util
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orbitlens.errors import InputError, MissingPackageError
from orbitlens.watching.watch_reading import WatchReading

Log = Callable[..., Any]  # (numbers by name, *, step)
TRACKERS = ("tensorboard", "mlflow", "wandb")


def scalars(reading: WatchReading) -> dict[str, float]:
    """Return the largest number of each layer, tokens' C, and the count of alarms, by name."""
    found = {"watch/alarms": float(len(reading.alarms))}
    for name in ("freezing", "score_bound", "score_top"):
        for layer, row in enumerate(reading.heads[name]):
            found[f"watch/{name}/layer_{layer}"] = max(row)
    if reading.tokens is not None:
        for name in ("cosine", "direction_rank", "massive", "block_update"):
            for layer, value in enumerate(getattr(reading.tokens, name)):
                found[f"watch/{name}/layer_{layer}"] = value
    return {name: value for name, value in found.items() if math.isfinite(value)}


def opened_log(name: str, path: Path | None) -> Log:
    """Return a function that logs to a tracker.

    Raises:
        InputError: the tracker is unknown.
        MissingPackageError: it is not installed.
    """
    if name not in TRACKERS:
        raise InputError(f"log={name!r} is unknown. Known: {', '.join(TRACKERS)}, or a function.")
    if importlib.util.find_spec(name) is None:
        raise MissingPackageError(f"logging to {name} needs that package: pip install {name}")
    if name == "tensorboard":
        return _tensorboard(path)
    if name == "mlflow":
        from mlflow import log_metrics

        return log_metrics
    import wandb

    return wandb.log


def _tensorboard(path: Path | None) -> Log:
    from torch.utils.tensorboard import SummaryWriter

    folder = None if path is None else str(path if path.suffix != ".jsonl" else path.parent)
    made: list[Any] = []  # the writer makes a folder, so it waits for the first number

    def log(numbers: Mapping[str, float], *, step: int) -> None:
        if not made:
            made.append(SummaryWriter(folder))
        for name, value in numbers.items():
            made[0].add_scalar(name, value, step)
        made[0].flush()

    return log
