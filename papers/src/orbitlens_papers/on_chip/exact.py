"""Claims 1, 5a and 8a: identities between attention, local rules, sums and gradient steps.

Enters: a bench. Leaves: outcomes. They are checked on trained learners and on their episodes.
"""

from typing import Any

import torch

from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome
from orbitlens_papers.on_chip.baselines import one_step
from orbitlens_papers.on_chip.episodes import draw
from orbitlens_papers.on_chip.judging import MANY, WAY, features
from orbitlens_papers.on_chip.model import WIDTH, Learner, Parts, attend
from orbitlens_papers.on_chip.rules import (
    by_slots,
    by_state,
    delta,
    gated,
    hebb,
    reads_elsewhere,
)
from orbitlens_papers.on_chip.training import runs, source, splits

FADING = 0.9
N_EPISODES = 16
POST = 12  # neurons behind the synapses that are tested one by one
LENGTHS = (1, 4, 16, 64, 256, 1024, 4096)


def _cases(bench: Bench, arm: str, dtype: torch.dtype) -> list[tuple[Learner, Parts]]:
    """Return learners with the parts of some held-out episodes, a pair a seed."""
    cases = []
    trained_ones = runs(bench)[arm]
    seeds = bench.seeds[: len(trained_ones)]
    for trained, parts, seed in zip(trained_ones, splits(bench, arm), seeds, strict=True):
        learner = trained.learner().to(dtype)
        table = features(trained.learner(), parts)
        episodes = draw(
            bench.generator("exact", seed), n=N_EPISODES, way=WAY, shots=MANY, of=table.size
        )
        rows = table.rows.to(dtype)
        context, asked = rows[episodes.context], rows[episodes.queries]
        cases.append((learner, learner.parts(context, episodes.labels, asked)))
    return cases


def _gaps(learner: Learner, parts: Parts, decay: float) -> list[float]:
    """Return for each token how far local rules and attention over the tokens so far differ."""
    sharpness = learner.sharpness
    if sharpness is None:
        local = by_state(parts, decay=decay)
    else:
        local = by_slots(parts, sharpness, decay=decay)
    gaps = []
    for t, read in enumerate(local, 1):
        at_once = attend(Parts(parts.q, parts.k[:, :t], parts.v[:, :t]), sharpness=sharpness)
        gaps.append(float(((read - at_once) @ learner.readout).abs().max()))
    return gaps


def local_is_attention(bench: Bench, *, dtype: torch.dtype) -> Outcome:
    """1a, 1b: largest gap over tokens, episodes and seeds; control: synapses that fade."""
    curves: dict[str, list[list[float]]] = {}
    fading: list[float] = []
    for arm in ("linear", "softmax"):
        cases = _cases(bench, arm, dtype)
        curves[arm] = [_gaps(learner, parts, 1.0) for learner, parts in cases]
        fading += [max(_gaps(learner, parts, FADING)) for learner, parts in cases]
    largest = [max(curve) for rows in curves.values() for curve in rows]
    return Outcome(
        result=estimate.largest(largest, of="learners"),
        control=estimate.smallest(fading, of="learners"),
        data={"curves": curves, "traffic": traffic(), **source(bench)},
    )


def traffic() -> dict[str, list[int]]:
    """Return the numbers that one token reads from memory, by tokens before it; one head."""
    return {
        "tokens": list(LENGTHS),
        "cache": [2 * WIDTH * n for n in LENGTHS],
        "state": [WIDTH * WIDTH for _ in LENGTHS],
    }


def rules_are_local(bench: Bench) -> Outcome:
    """1c: synapses that read elsewhere; control: the delta rule."""
    counts = {
        name: [
            reads_elsewhere(rule, bench.generator(name, seed), width=WIDTH, post=POST)
            for seed in bench.seeds
        ]
        for name, rule in (("two factors", hebb), ("three factors", gated), ("delta", delta))
    }
    local = [float(n) for name in ("two factors", "three factors") for n in counts[name]]
    return Outcome(
        result=estimate.largest(local, of="rules and seeds"),
        control=estimate.smallest([float(n) for n in counts["delta"]], of="seeds"),
        data={"counts": counts, "synapses": WIDTH * POST},
    )


def order_is_nothing(bench: Bench) -> Outcome:
    """5a: change of logits under permutations; control: synapses that fade."""
    changes: dict[float, list[float]] = {1.0: [], FADING: []}
    for (learner, parts), seed in zip(
        _cases(bench, "linear", torch.float64), bench.seeds, strict=True
    ):
        order = torch.randperm(parts.k.shape[1], generator=bench.generator("order", seed))
        moved = Parts(parts.q, parts.k[:, order], parts.v[:, order])
        for decay, values in changes.items():
            reads = (by_state(case, decay=decay)[-1] for case in (parts, moved))
            first, second = (read @ learner.readout for read in reads)
            values.append(float((first - second).abs().max()))
    return Outcome(
        result=estimate.largest(changes[1.0], of="seeds"),
        control=estimate.smallest(changes[FADING], of="seeds"),
        data=source(bench),
    )


def state_is_a_step(bench: Bench) -> Outcome:
    """8a: state with labels as values against one gradient step; control: on cross-entropy."""
    squared: list[float] = []
    other: list[float] = []
    for (_, parts), seed in zip(_cases(bench, "linear", torch.float64), bench.seeds, strict=True):
        labels = draw(
            bench.generator("exact", seed), n=N_EPISODES, way=WAY, shots=MANY, of=_size(bench, seed)
        ).labels
        one_hot = torch.nn.functional.one_hot(labels, 20).double()
        state = by_state(Parts(parts.q, parts.k, one_hot))[-1]
        for loss, values in (("squared", squared), ("cross-entropy", other)):
            step = one_step(parts.k, labels, parts.q, loss=loss)
            values.append(float((step - state).abs().max()))
    return Outcome(
        result=estimate.largest(squared, of="seeds"),
        control=estimate.smallest(other, of="seeds"),
        data=source(bench),
    )


def _size(bench: Bench, seed: int) -> tuple[int, int]:
    held = splits(bench)[seed - bench.seeds.start].held
    return held.shape[0], held.shape[1]


def state_pictures(bench: Bench) -> dict[str, Any]:
    """Return one episode of the first seed: its pictures, and the state as it grows."""
    trained, parts = runs(bench)["linear"][0], splits(bench)[0]
    learner, table = trained.learner(), features(trained.learner(), parts)
    seed = bench.seeds.start
    episodes = draw(bench.generator("shown", seed), n=1, way=WAY, shots=MANY, of=table.size)
    context, asked = table.shown(episodes)
    made = learner.parts(context, episodes.labels, asked)
    used = episodes.used[0].tolist()
    states = {}
    for t in (1, 5, WAY * MANY):
        state = made.v[0, :t].mT @ made.k[0, :t]
        states[str(t)] = [[round(x, 3) for x in row] for row in state[used].tolist()]
    flat = parts.held.flatten(0, 1)
    rows = [
        [int(n) for n in episodes.context[0][episodes.labels[0] == label]] + [int(query)]
        for label, query in zip(used, episodes.queries[0], strict=True)
    ]
    pictures = torch.cat([torch.cat([flat[n] for n in row], dim=1) for row in rows], dim=0)
    return {
        "states": states,
        "pictures": [[round(x, 1) for x in row] for row in pictures.tolist()],
        "order": [used.index(label) for label in episodes.labels[0].tolist()],
    }
