"""Small runs that go well or wrong, logged densely enough to time a warning.

Enters: a `RunConfig` and what is done to it on the way. Leaves: a `Logged` run: loss and norm of
the gradient at every step, and every few steps the readings of `_slow_readings.py` and of
`Watch`, each as one number a model. The loop is the lab's own (`fit`), its recipe that of
`orbitlens train`; a run is a function of its config.
"""

import copy
import itertools
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from _slow_readings import slow_readings
from torch import Tensor

from orbitlens.errors import TrainingError
from orbitlens.lab.fitting import fit
from orbitlens.lab.recipe import build_model, learning_rate, make_optimizer, training_batch
from orbitlens.lab.run import RunConfig, task_of
from orbitlens.orbit import OrbitForCausalLM
from orbitlens.watching.api import Watch
from orbitlens.watching.record import plain_data
from orbitlens.watching.watch_reading import ByHead, TokenReading, WatchReading

EVERY = 8  # steps between readings
PROBE = 2  # held-out sequences that readings run the model on
SMALLEST = {"entropy_floor", "stable_rank_qk", "stable_rank_ov"}  # heads with little are the news

Plant = Callable[[OrbitForCausalLM, int], None]  # what is done to the model after a step


@dataclass
class Logged:
    """What a run left behind."""

    config: RunConfig
    losses: list[float] = field(default_factory=list)  # by step; the last may be infinite
    unigram: list[float] = field(default_factory=list)  # the same batch's, of a unigram model
    gradients: list[float] = field(default_factory=list)  # norm before it is clipped
    readings: dict[str, list[float]] = field(default_factory=dict)  # one value a reading
    at: list[int] = field(default_factory=list)  # steps taken before each reading
    watched: list[dict[str, Any]] = field(default_factory=list)  # the readings of `Watch`, whole
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain data, rounded to what a plot could show."""
        return {
            "config": self.config.to_json(),
            "losses": [rounded(v) for v in self.losses],
            "unigram": [rounded(v) for v in self.unigram],
            "gradients": [rounded(v) for v in self.gradients],
            "readings": {k: [rounded(v) for v in vs] for k, vs in self.readings.items()},
            "at": self.at,
            "watched": self.watched,
            "seconds": round(self.seconds, 2),
        }


def rounded(value: float) -> float | None:
    """Return four digits; None for what is not finite."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


@dataclass(frozen=True, kw_only=True)
class State:
    """Where a run stood after some steps."""

    step: int
    weights: dict[str, Tensor]
    moments: dict[str, Any]  # of the optimizer, by parameter


def train_logged(
    config: RunConfig,
    *,
    plant: Plant | None = None,
    keep_states: bool = False,
    until: int | None = None,
) -> tuple[Logged, list[State]]:
    """Train one run to its end, to the first loss that is not finite, or until before a step.

    States are those after every `EVERY` steps.
    """
    model = build_model(config, task_of(config)).train()
    run = _Run(config, model)
    run.end = config.steps if until is None else until - 1
    run.go(plant, keep_states=keep_states)
    return run.logged, run.states


def train_on(config: RunConfig, state: State) -> Logged:
    """Go on from a state to the end, with the model and the rates of another config.

    Parameters that the state does not know start as in a fresh model.
    """
    model = build_model(config, task_of(config)).train()
    known = model.state_dict() | state.weights
    model.load_state_dict(known)
    run = _Run(config, model)
    for name, parameter in model.named_parameters():
        if name in state.moments:
            run.optimizer.state[parameter] = copy.deepcopy(state.moments[name])
    run.first = state.step
    run.go(None, keep_states=False)
    return run.logged


class _Run:
    """One run in this process."""

    def __init__(self, config: RunConfig, model: OrbitForCausalLM) -> None:
        self.config, self.model, self.task = config, model, task_of(config)
        self.optimizer = make_optimizer(model, config)
        self.optimizer.register_step_pre_hook(self._clip)
        self.probe = self.task.batch("valid", 0, PROBE, 0)
        self.nats = unigram_nats(config)
        self.watch = Watch(every=1, tokens_every=1)
        self.logged, self.first, self.end = Logged(config), 0, config.steps
        self.states: list[State] = []

    def go(self, plant: Plant | None, *, keep_states: bool) -> None:
        started = time.process_time()
        self._after(plant, keep_states, 0)
        try:
            fit(
                self._loss,
                self.optimizer,
                steps=self.end - self.first,
                schedule=lambda step: learning_rate(self.config, self.first + step),
                after=partial(self._after, plant, keep_states),
            )
        except TrainingError:
            assert not math.isfinite(self.logged.losses[-1])  # the only reason to stop early
        self.logged.seconds = time.process_time() - started

    def _loss(self, step: int) -> Tensor:
        batch = training_batch(self.config, self.task, self.first + step)
        loss: Tensor = self.model(input_ids=batch.inputs, targets=batch.targets).loss
        self.logged.losses.append(loss.item())
        self.logged.unigram.append(self.nats[batch.targets].mean().item())
        return loss

    def _clip(self, *unused: Any) -> None:
        norm = torch.nn.utils.clip_grad_norm_(
            list(self.model.parameters()), self.config.clip, foreach=True
        )
        self.logged.gradients.append(norm.item())

    def _after(self, plant: Plant | None, keep_states: bool, taken: int) -> bool:
        step = self.first + taken
        if taken and not math.isfinite(self.logged.losses[-1]):
            return True
        if plant is not None and taken:
            with torch.no_grad():
                plant(self.model, step)
        if step % EVERY == 0:
            self._read(step)
        if keep_states and step % EVERY == 0:
            self.states.append(self._state(step))
        return False

    def _state(self, step: int) -> State:
        known = {n: self.optimizer.state[p] for n, p in self.model.named_parameters()}
        return State(
            step=step,
            weights={k: v.clone() for k, v in self.model.state_dict().items()},
            moments={n: copy.deepcopy(dict(kept)) for n, kept in known.items() if kept},
        )

    def _read(self, step: int) -> None:
        found = slow_readings(self.model, self.probe.inputs)
        reading = self.watch(self.model, step, self.probe.inputs)
        assert reading is not None
        found |= watch_numbers(reading)
        self.logged.watched.append(plain_data(reading))
        self.logged.at.append(step)
        for name, value in found.items():
            self.logged.readings.setdefault(name, []).append(value)


# --- readings --------------------------------------------------------------------------------


def watch_numbers(reading: WatchReading) -> dict[str, float]:
    """Return one number a quantity of a reading of `Watch`: the extreme over layers and heads.

    Infinite where the model has values that are not finite.
    """
    found = {f"{name}": _extreme(rows, name) for name, rows in reading.heads.items()}
    found |= {f"{name}_growth": _extreme(rows, "") for name, rows in reading.growth.items()}
    found |= _token_numbers(reading.tokens)
    return dict.fromkeys(found, math.inf) if reading.broken else found


def _extreme(rows: ByHead, name: str) -> float:
    values = [value for row in rows for value in row if not math.isnan(value)]
    if not values:
        return 0.0  # a rate before there are two readings
    return min(values) if name in SMALLEST else max(values)


TOKENS = (
    *("cosine", "cosine_mean", "cosine_last", "log_spread"),
    *("effective_rank", "direction_rank", "massive"),
)
UPDATES = ("attention_update", "block_update", "block_update_least")
OF_HEADS = ("sharpness", "sharpness_mean", "largest_score", "written_least")


def _token_numbers(tokens: TokenReading | None) -> dict[str, float]:
    if tokens is None:  # states that are not finite
        return dict.fromkeys((*TOKENS, *UPDATES, *OF_HEADS), math.inf)
    behind = tokens.cosine[1:]  # in front of the first layer tokens are as their embeddings are
    sharpness = [value for row in tokens.sharpness for value in row]
    numbers = (
        max(behind),
        sum(behind) / len(behind),
        behind[-1],
        min(tokens.log_spread[1:]),
        min(tokens.effective_rank[1:]),
        min(tokens.direction_rank[1:]),
        max(tokens.massive),
        max(tokens.attention_update),
        max(tokens.block_update),
        min(tokens.block_update),
        max(sharpness),
        sum(sharpness) / len(sharpness),
        max(value for row in tokens.largest_score for value in row),
        min(value for row in tokens.written for value in row),
    )
    return dict(zip((*TOKENS, *UPDATES, *OF_HEADS), numbers, strict=True))


# --- settings --------------------------------------------------------------------------------

Choices = dict[str, tuple[Any, ...]]  # a value that stands twice is drawn twice as often


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that are drawn alike."""

    name: str
    choices: Choices
    n_settings: int
    seeds: tuple[int, ...]
    first: int  # number of the first setting

    def settings(self) -> dict[int, dict[str, Any]]:
        """Return the first settings that differ, by number."""
        found: dict[int, dict[str, Any]] = {}
        numbers = itertools.count(self.first)
        while len(found) < self.n_settings:
            number = next(numbers)
            chance = random.Random(f"watch/{number}")
            drawn = {name: chance.choice(values) for name, values in self.choices.items()}
            if drawn not in found.values():
                found[number] = drawn
        return found


LEARNED = Group(  # thresholds are learned on these
    name="learn",
    choices={
        "lr": (1e-2, 2e-2, 3e-2, 5e-2, 8e-2, 1.5e-1, 3e-1),
        "width": (32, 48),
        "layers": (2, 2, 3, 4),
        "norm": ("pre", "post"),
        "qk_norm": (False, False, True),
        "init": (0.02, 0.05, 0.1, 0.2),
        "warmup": (8, 64, 104, 144),
    },
    n_settings=100,
    seeds=(0, 1),
    first=0,
)
JUDGED = Group(  # and judged on these: no number but the depths is one of those above
    name="judge",
    choices={
        "lr": (1.5e-2, 2.5e-2, 4e-2, 6e-2, 0.1, 0.2, 0.4),
        "width": (40, 64),
        "layers": (2, 3, 5),
        "norm": ("pre", "post"),
        "qk_norm": (False, False, True),
        "init": (0.03, 0.08, 0.15),
        "warmup": (4, 32, 80, 120),
        "context": (24, 40),
    },
    n_settings=200,
    seeds=(2, 3),
    first=100_000,
)
GROUPS = {group.name: group for group in (LEARNED, JUDGED)}
STEPS, BATCH, CONTEXT = 144, 4, 32


def run_config(chosen: dict[str, Any], seed: int, text: str | None) -> RunConfig:
    """Return the run of a setting and a seed."""
    model = dict(chosen)
    options: dict[str, Any] = {"context": model.pop("context", CONTEXT)}
    options |= {"file": text} if text else {}
    return RunConfig(
        task="text",
        options=options,
        heads=4,
        steps=STEPS,
        batch=BATCH,
        seed=seed,
        **model,
    )


def unigram_nats(config: RunConfig) -> Tensor:
    """Return -ln of each character's share of the training text: what knowing no more costs."""
    task = task_of(config)
    begin, end = task.block("train")
    counts = torch.bincount(task.ids[begin:end], minlength=task.vocab_size).clamp(min=1)
    return -(counts / counts.sum()).log()
