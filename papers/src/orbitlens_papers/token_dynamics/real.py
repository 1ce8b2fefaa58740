"""Claim 5: in which regime the heads and layers of trained models are, predicted and measured.

Enters: a bench. Leaves: outcomes. Heads are read from weights (`scan`), then models are run on text
(`trace`): what each head does to pair distances beside what was predicted from other contexts.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from orbitlens.errors import OrbitlensError
from orbitlens.families.architecture import Position
from orbitlens.running.model import load
from orbitlens.scanning.api import scan
from orbitlens.scanning.options import ScanOptions
from orbitlens.tracing.api import trace
from orbitlens.tracing.options import TraceOptions
from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome
from orbitlens_papers.models import NO_MODELS, model_names, trace_batches

CONTEXT = 64  # tokens over which a rotary encoding is averaged


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One model: its heads by their weights, and what they did on text."""

    model: str
    position: str
    orientations: dict[str, int]  # heads by their weights: aligned, opposed, neutral maps
    survival: list[float]  # of rotary heads: rates in a context over those at offset 0
    predicted: list[float]  # log-change of pair distances, a head
    measured: list[float]
    layers_predicted: list[float]
    layers_measured: list[float]

    def row(self) -> dict[str, Any]:
        """Return it as plain data, rounded."""
        return {
            name: [round(v, 4) for v in value] if isinstance(value, list) else value
            for name, value in vars(self).items()
        }


def readings(bench: Bench) -> tuple[list[Reading], dict[str, str]]:
    """Return a reading a model, and the models that could not be run with the reason."""

    def make() -> tuple[list[Reading], dict[str, str]]:
        rows, missing = [], {}
        names = model_names(bench)
        for number, name in enumerate(names):
            try:
                rows.append(_reading(bench, name))
            except OrbitlensError as error:
                missing[name.rsplit("/", 1)[-1]] = str(error)
            bench.step((number + 1) / len(names))
        return rows, missing

    return bench.once("traced models", make)


def _reading(bench: Bench, name: str) -> Reading:
    opened = load(name)
    stacks = opened.architecture.stacks
    rotary = any(stack.position is Position.ROTARY for stack in stacks)
    scanned = scan(opened, ScanOptions(context=CONTEXT if rotary else None))
    heads = [head for _, head in scanned.heads()]
    orientations = Counter(head.orientation.value for head in heads)
    options = TraceOptions(n_kept=bench.pick(256, 1024, 1024), max_tokens=10**9)
    batches = list(trace_batches(bench, opened))
    result = trace(opened, batches, options=options)
    traced = [head for layer in result.layers for head in layer.heads]
    return Reading(
        model=opened.name,
        position=scanned.model.position.value,
        orientations={key: orientations[key] for key in ("aligned", "opposed", "neutral")},
        survival=[head.rotary.survival for head in heads if head.rotary is not None],
        predicted=[head.predicted for head in traced],
        measured=[head.measured for head in traced],
        layers_predicted=[layer.attention.predicted_log_change for layer in result.layers],
        layers_measured=[layer.attention.measured_log_change for layer in result.layers],
    )


def _centred(values: list[float]) -> list[float]:
    middle = sum(values) / len(values)
    return [value - middle for value in values]


def heads_as_predicted(bench: Bench) -> Outcome:
    """5a: correlation of predicted and measured over heads, each model about its own mean.

    Control: predictions shuffled over the heads of a model.
    """
    rows, missing = readings(bench)
    predicted, measured, shuffled = [], [], []
    for number, row in enumerate(rows):
        order = torch.randperm(len(row.predicted), generator=bench.generator("heads", number))
        predicted += _centred(row.predicted)
        measured += _centred(row.measured)
        shuffled += [_centred(row.predicted)[k] for k in order.tolist()]
    if len(measured) < 4:
        return Outcome(obstacle=NO_MODELS if not missing else "; ".join(missing.values()))
    return Outcome(
        result=estimate.correlation(predicted, measured, of="heads"),
        control=estimate.correlation(shuffled, measured, of="heads"),
        data={"models": [row.row() for row in rows], "missing": missing},
    )


def layers_shorten(bench: Bench) -> Outcome:
    """5b: share of layers whose attention shortens raw distances, on text."""
    rows, missing = readings(bench)
    values = [value for row in rows for value in row.layers_measured]
    if not values:
        return Outcome(obstacle=NO_MODELS if not missing else "; ".join(missing.values()))
    return Outcome(result=estimate.share(sum(v < 0 for v in values), len(values), of="layers"))


def rotary_damps_heads(bench: Bench) -> Outcome:
    """4d: share of trained rotary heads whose rates a context makes smaller."""
    rows, _ = readings(bench)
    values = [value for row in rows for value in row.survival]
    if not values:
        return Outcome(obstacle="none of the models has rotary heads")
    return Outcome(
        result=estimate.share(sum(v < 1 for v in values), len(values), of="heads"),
        data={"survival": [round(v, 3) for v in values]},
    )
