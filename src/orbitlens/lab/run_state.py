"""The folder of a run: files that are whole or absent, whenever the process is killed.

Enters: the state of a run. Leaves: files. `state.safetensors` holds weights, the optimizer's state
and the losses not yet logged, and in its header the step, the seconds and how long the log was: one
file, written beside and renamed, so that a run killed at any moment continues from one state.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from orbitlens.errors import TrainingError
from orbitlens.files import write_whole

STATE, LOG, RESULT, MODEL = "state.safetensors", "metrics.jsonl", "result.json", "model"


@dataclass(frozen=True, kw_only=True)
class State:
    """Where a run stands after `step` steps."""

    step: int
    seconds: float
    log_bytes: int
    weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    losses: Tensor  # of the steps since the log's last line
    cpu_seconds: float = 0.0


def write_state(folder: Path, state: State) -> None:
    """Replace the state of a run."""
    tensors = {f"weights.{name}": _owned(value) for name, value in state.weights.items()}
    tensors |= {f"moments.{name}": _owned(value) for name, value in state.moments.items()}
    tensors["losses"] = _owned(state.losses)
    names = ("step", "seconds", "cpu_seconds", "log_bytes")
    numbers = {name: getattr(state, name) for name in names}
    write_whole(folder / STATE, save(tensors, {"state": json.dumps(numbers)}), onto_disk=True)


def _owned(value: Tensor) -> Tensor:
    return value.detach().cpu().clone().contiguous()  # tied weights share memory; files may not


def read_state(folder: Path) -> State | None:
    """Return the state of a run; None where there is none yet.

    Raises:
        TrainingError: there is a file, and it is not the state of a run.
    """
    file = folder / STATE
    if not file.is_file():
        return None
    with of_this_run(folder), safe_open(file, framework="pt") as stored:
        numbers = json.loads((stored.metadata() or {})["state"])
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}
        return State(
            step=int(numbers["step"]),
            seconds=float(numbers["seconds"]),
            cpu_seconds=float(numbers["cpu_seconds"]),
            log_bytes=int(numbers["log_bytes"]),
            weights=_under(tensors, "weights."),
            moments=_under(tensors, "moments."),
            losses=tensors["losses"],
        )


@contextmanager
def of_this_run(folder: Path) -> Iterator[None]:
    """Turn what a damaged or strange state raises into an error that says what to do."""
    try:
        yield
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise TrainingError(
            f"{folder / STATE}: this state of a run cannot be read ({error}). Delete it to train "
            "from the beginning."
        ) from error


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def optimizer_moments(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state as named tensors: parameter number, then name."""
    state: dict[int, dict[str, Tensor]] = optimizer.state_dict()["state"]
    return {f"{number}.{name}": v for number, own in state.items() for name, v in own.items()}


def restore_moments(optimizer: torch.optim.Optimizer, moments: dict[str, Tensor]) -> None:
    """Give an optimizer the state that `optimizer_moments` returned."""
    whole = optimizer.state_dict()
    whole["state"] = {}
    for name, value in moments.items():
        number, _, key = name.partition(".")
        whole["state"].setdefault(int(number), {})[key] = value
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for number, own in whole["state"].items():
        sizes = {name: tuple(value.shape) for name, value in own.items() if name != "step"}
        shape = tuple(parameters[number].shape)
        if "step" not in own or sizes != dict.fromkeys(("exp_avg", "exp_avg_sq"), shape):
            raise ValueError(f"the optimizer's state of parameter {number} is not whole")
    optimizer.load_state_dict(whole)


# --- files -----------------------------------------------------------------------------------


def append_line(file: Path, line: dict[str, Any]) -> int:
    """Add a line of JSON and return how long the file now is."""
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line, allow_nan=False) + "\n")
        stream.flush()
        os.fsync(stream.fileno())  # a state must not know of lines that the disk does not have
        return stream.tell()


def read_log(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a log."""
    with file.open(encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def cut_log(file: Path, length: int) -> None:
    """Drop what was logged after the state that a run resumes from."""
    if file.exists() and file.stat().st_size > length:
        with file.open("r+b") as stream:
            stream.truncate(length)
