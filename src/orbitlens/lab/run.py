"""RunConfig: everything that one training run depends on; its hash; its result.

Enters: settings by name. Leaves: frozen dataclasses. Two configs with one hash train the same
weights, bit by bit, on the same machine. A text or image file counts by its content, not its path.
"""

import difflib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from orbitlens.errors import InputError
from orbitlens.lab.tasks import Task, build_task, check_options, task_options
from orbitlens.orbit.switches import SWITCHES, Switches
from orbitlens.results.codec import encode

VERSION = 1  # of the trainer; another version trains anew
# Refinements that were something else under the same name in earlier runs.
REVISED = {"diagonal": "diagonal on slices, from 0.05"}
# Settings of tasks that the defaults below do not suit.
RECIPES: dict[str, dict[str, Any]] = {
    "text": {"batch": 32, "steps": 1500},
    "digits": {"batch": 64, "steps": 600},
}


@dataclass(frozen=True, kw_only=True)
class RunConfig(Switches):
    """One run: task, switches of the model, its size, and how it is trained."""

    task: str = "addition"
    options: Mapping[str, int | str | bool | None] = field(default_factory=dict)  # of the task
    layers: int = 3
    heads: int = 4
    width: int = 64
    inner: int = 0  # width of the MLP; 0: four times the model's
    steps: int = 2000
    batch: int = 128
    lr: float = 3e-3
    warmup: int = 100  # steps
    weight_decay: float = 0.01
    clip: float = 1.0  # largest norm of the gradient
    init: float = 0.1  # deviation of the first weights: small models learn late from 0.02
    judged: int = 2048  # held-out examples at the end
    measure: bool = False  # whether tokens converge in the trained model
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse values of the wrong kind or out of range; pairs are the model's own to check."""
        for setting in fields(self):
            _check_kind(setting.name, getattr(self, setting.name))
        for name, switch in SWITCHES.items():
            switch.check(getattr(self, name))
        for name in ("layers", "heads", "width", "steps", "batch", "judged"):
            _check_least(name, getattr(self, name), 1)
        for name in ("inner", "warmup", "seed", "weight_decay"):
            _check_least(name, getattr(self, name), 0)
        for name in ("lr", "clip", "init"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name}={getattr(self, name)}: expected a positive number.")

    @property
    def switches(self) -> dict[str, Any]:
        """The switches of the model, as its config takes them."""
        chosen = {name: getattr(self, name) for name in SWITCHES}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in chosen.items()}

    @property
    def adds_loss(self) -> bool:
        """Whether the model adds something to the loss of the task."""
        return self.refinement == "penalty" or self.token_prop > 0

    def to_json(self) -> dict[str, Any]:
        """Return the config as plain data."""
        return asdict(self) | {"options": dict(self.options)} | self.switches


_OF_TYPES: dict[Any, tuple[type, ...]] = {
    int: (int,),
    float: (float, int),
    str: (str,),
    bool: (bool,),
    str | tuple[int, ...]: (str, tuple),
}
KINDS = {each.name: _OF_TYPES.get(each.type, (Mapping,)) for each in fields(RunConfig)}


def _check_kind(name: str, value: object) -> None:
    kinds = KINDS[name]
    is_bool = isinstance(value, bool)
    if not isinstance(value, kinds) or (is_bool and bool not in kinds):
        words = {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}
        expected = words.get(kinds[0], "something else")
        raise InputError(f"{name}={value!r}: expected {expected}.")


def _check_least(name: str, value: float | int, least: int) -> None:
    if value < least:
        raise InputError(f"{name}={value}: expected at least {least}.")


def run_config(settings: Mapping[str, Any]) -> RunConfig:
    """Return the config of flat settings: fields of `RunConfig` and options of its task.

    Raises:
        InputError: a name is unknown, or a value is out of range.
    """
    task = settings.get("task", RunConfig.task)
    known = task_options(task)
    given = RECIPES.get(task, {}) | dict(settings)
    options = {name: given.pop(name) for name in list(given) if name in known}
    check_options(task, options)
    _check_names(given, known)
    for name, value in given.items():
        if isinstance(value, list) and tuple in KINDS[name]:
            value = given[name] = tuple(value)
        _check_kind(name, value)
        if float in KINDS[name] and type(value) is int:  # 1 in a file means 1.0
            given[name] = float(value)
    return RunConfig(options=options, **given)


def _check_names(given: Iterable[str], options: Iterable[str]) -> None:
    """Refuse settings that neither a run nor its task has."""
    names = {setting.name for setting in fields(RunConfig)} - {"options"}
    for name in given:
        if name not in names:
            close = difflib.get_close_matches(name, [*names, *options], n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise InputError(
                f"the setting {name!r} is unknown.{hint} Known: {', '.join(sorted(names))}; of the "
                f"task: {', '.join(options)}."
            )


def task_of(config: RunConfig) -> Task:
    """Return the task of a run; the last few are kept, as long as their files do not change."""
    file = config.options.get("file")
    stamp = None
    if isinstance(file, str) and Path(file).is_file():
        status = os.stat(file)  # noqa: PTH116 - one call
        stamp = (status.st_size, status.st_mtime_ns)
    return _task(config.task, json.dumps(dict(config.options), sort_keys=True), stamp)


@lru_cache(maxsize=4)
def _task(name: str, options: str, stamp: tuple[int, int] | None) -> Task:
    return build_task(name, json.loads(options))


def run_hash(config: RunConfig) -> str:
    """Return the name of a run's folder: a hash of all that its weights depend on."""
    what = config.to_json() | {"task": task_of(config).name}
    what["refinement"] = REVISED.get(config.refinement, config.refinement)
    del what["options"]  # the task's name holds them, and the content of a file
    for name, switch in SWITCHES.items():
        if switch.later and what[name] == switch.default:
            del what[name]
    text = json.dumps([VERSION, what], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of one run, evaluated on held-out examples."""

    config: RunConfig
    seed: int
    loss: float  # nats a token
    accuracy: float  # share of answers that are right as a whole; of characters for a text
    token_accuracy: float
    steps: int
    seconds: float  # of the training steps
    parameters: int
    measured: dict[str, Any] | None = None  # of `convergence`
    cpu_seconds: float = 0.0  # of the same steps, by the processor's clock: for busy machines

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data, which `decode` of `results/codec.py` reads."""
        data: dict[str, Any] = encode(self)
        return data
