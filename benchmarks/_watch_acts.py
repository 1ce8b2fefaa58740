"""Failures that are planted, and runs that go on in another way.

Enters: configs. Leaves: logged runs. Three things are planted in runs that go well by themselves:
queries that grow until attention freezes, a direction that all tokens share, and value maps that
average tokens. And a run can go on from a state with its rate halved or with a norm on queries and
keys.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from _watch_alarms import first_alarms, with_learned
from _watch_judging import outcome
from _watch_learning import Run, limits_of
from _watch_runs import Logged, Plant, State, run_config, train_logged, train_on

from orbitlens.lab.run import RunConfig
from orbitlens.orbit import OrbitForCausalLM

FROM = 64  # step after which something is planted
GROWTH = 1.2  # of queries, a step: in the end beyond what sound runs at the highest rates reach
PULL = 0.1  # towards maps that gather, a step
SIZE = 3.0  # of those maps
SHARED = 1.0  # growth of each coordinate that all tokens share, a step
SOUND: dict[str, Any] = {  # a setting that goes well
    **{"lr": 5e-3, "width": 32, "layers": 4, "norm": "post"},
    **{"qk_norm": False, "init": 0.1, "warmup": 10},
}
PLANT_SEEDS = (0, 1, 2, 3)
FAILURE = {"gathering": "collapse"}  # two alarms of one failure
NEW_BATCHES = 1000  # added to the seed of what comes after a state: all arms see new batches


def freeze_attention(model: OrbitForCausalLM, step: int) -> None:
    """Let queries grow, in every layer: scores grow with them, and attention freezes."""
    if step >= FROM:
        width = model.config.hidden_size
        for block in model.model.layers:
            block.self_attn.qkv_proj.weight[:width] *= GROWTH


def average_tokens(model: OrbitForCausalLM, step: int) -> None:
    """Turn every layer into an average of what came before, added many times over.

    Queries fade, so that attention is even, and value and output maps go to a multiple of the
    identity: a token becomes mostly the mean of the tokens it sees.
    """
    if step >= FROM:
        width = model.config.hidden_size
        identity = SIZE * torch.eye(width)
        for block in model.model.layers:
            fused = block.self_attn.qkv_proj.weight
            fused[:width] *= 1 - PULL
            fused[2 * width :].lerp_(identity, PULL)
            block.self_attn.o_proj.weight.lerp_(identity, PULL)


def share_direction(model: OrbitForCausalLM, step: int) -> None:
    """Let one direction grow in the embeddings of all tokens, until they have no other."""
    if step >= FROM:
        table = model.get_input_embeddings().weight
        signs = torch.ones(table.shape[1])
        signs[::2] = -1.0  # its coordinates sum to zero: no norm takes it away
        table += SHARED * signs


PLANTS: dict[str, Plant | None] = {
    "nothing": None,
    "attention freezes": freeze_attention,
    "directions collapse": share_direction,
    "tokens are averaged": average_tokens,
}


def planted(name: str, seed: int, text: str | None, **changed: Any) -> Logged:
    """Return a sound run in which something was planted."""
    config = replace(run_config(SOUND, seed, text), **changed)
    return train_logged(config, plant=PLANTS[name])[0]


Change = Callable[[RunConfig], RunConfig]
ARMS: dict[str, Change] = {
    "unchanged": lambda config: config,
    "rate halved": lambda config: replace(config, lr=config.lr / 2),
    "rate / 8": lambda config: replace(config, lr=config.lr / 8),
    "qk_norm on": lambda config: replace(config, qk_norm=True),
}


def go_on(config: RunConfig, state: State, arm: str) -> Logged:
    """Return what became of a run from a state on."""
    return train_on(replace(ARMS[arm](config), seed=config.seed + NEW_BATCHES), state)


def as_run(logged: Logged, seed: int, chosen: dict[str, Any]) -> Run:
    """Return a run as the file of runs has it."""
    return {"setting": -1, "seed": seed, "chosen": chosen, **logged.to_json()}


def plant_all(text: str | None, frozen: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield, for every plant and seed, when alarms of each kind came, and which was first."""
    limits = with_learned(limits_of(frozen))
    for name in PLANTS:
        for seed in PLANT_SEEDS:
            run = as_run(planted(name, seed, text), seed, SOUND)
            raised = {kind.value: step for kind, step in first_alarms(run, limits).items()}
            yield {
                "planted": name,
                "seed": seed,
                "kind": outcome(run["losses"], run["unigram"]).kind,
                "alarms": raised,
                "first": first_of(raised),
            }


def first_of(raised: Mapping[str, int]) -> str:
    """Return which of the two failures was warned of first."""
    step = min(raised.values(), default=None)
    named = {FAILURE.get(kind, kind) for kind, at in raised.items() if at == step}
    return " and ".join(sorted(named)) or "neither"


def alarmed(runs: Sequence[Run], frozen: Mapping[str, Any]) -> list[tuple[Run, int]]:
    """Return the runs with an alarm after their first reading, and its step."""
    limits = with_learned(limits_of(frozen))
    steps = [min(first_alarms(run, limits).values(), default=0) for run in runs]
    return [(run, step) for run, step in zip(runs, steps, strict=True) if step > 0]


def act_on(text: str | None, run: Run, step: int) -> dict[str, Any]:
    """Return what became of a run with an alarm, by what was done at the state before it."""
    config = run_config(run["chosen"], run["seed"], text)
    _, states = train_logged(config, keep_states=True, until=step)
    state = states[-1]
    assert state.step < step
    ends = {}
    for arm in ARMS:
        if arm == "qk_norm on" and config.qk_norm:
            continue  # it has one already
        logged = go_on(config, state, arm).to_json()
        ends[arm] = outcome(logged["losses"], logged["unigram"]).kind
    return {
        **{key: run[key] for key in ("setting", "seed", "chosen")},
        "alarm": step,
        "state": state.step,
        "first time": outcome(run["losses"], run["unigram"]).kind,
        "ends": ends,
    }
