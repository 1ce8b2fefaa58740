"""The Model room: what a model does with one sentence, and what it does with parts of it cut.

Enters: a model, a sentence, cuts. Leaves: a `ModelReading`: the orbits of its tokens, the waterfall
of S = ln(1 - C), each head's share of it and the prediction, as the model is and with the cuts; and
an `AttentionReading`: the attention patterns of one layer. All of it is measured on the sentence.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.errors import InputError, printable
from orbitlens.exploring.passes import Explored, Pass, Watch, explored_of, pass_of
from orbitlens.exploring.python_code import python_of
from orbitlens.exploring.sentence import Prompt, Sentence, sentence_of
from orbitlens.order.divergence import js_bits, relative_change
from orbitlens.order.subject import Subject
from orbitlens.reporting.data import rounded
from orbitlens.reporting.orbits import PrincipalAxes, principal_axes
from orbitlens.running.model import Model
from orbitlens.running.removal import FINAL, norms_of
from orbitlens.tracing.direction_tally import POINTS, DirectionTally
from orbitlens.tracing.directions import as_norm_sees, log_spread
from orbitlens.tracing.token_courses import mean_cosines
from orbitlens.tracing.trace_result import STEPS

N_OUTCOMES = 10  # of a prediction that are shown
Point = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One thing that a model may predict."""

    name: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class BlockStep:
    """What one part of one block does to S = ln(1 - C)."""

    layer: int
    part: str  # "attention", "mlp" or "norm"
    change: float | None  # None where all directions are one
    cosine: float  # C behind it


@dataclass(frozen=True, kw_only=True)
class RunReading:
    """One run of a sentence."""

    cosine: tuple[float, ...]  # C at each depth
    positions: tuple[tuple[Point, ...], ...]  # depth, token: in the principal axes
    steps: tuple[BlockStep, ...]  # they sum to the change of S from the first depth to the last
    heads: tuple[tuple[float, ...], ...]  # layer, head: share of what attention does to S
    outcomes: tuple[Outcome, ...]  # the same ones before and after; none where none are predicted
    entropy: float | None  # of the prediction, in bits


@dataclass(frozen=True, kw_only=True)
class ModelReading:
    """What a model does with a sentence, and what it does with parts of it cut."""

    tokens: tuple[str, ...]
    ids: tuple[int, ...]  # none for images
    depths: tuple[str, ...]
    explained: Point  # shares of the variance of directions in the three axes
    asked: str  # what the prediction is
    place: int  # the token it is read at
    before: RunReading
    after: RunReading | None  # with the cuts; None where nothing is cut
    cuts: tuple[str, ...]
    change: float | None  # of the prediction, in bits (Jensen-Shannon), or relative
    in_bits: bool
    notes: tuple[str, ...]
    python: str


@dataclass(frozen=True, kw_only=True)
class AttentionReading:
    """Attention patterns of one layer: head, token that looks, token that is looked at."""

    layer: int
    before: tuple[tuple[tuple[float, ...], ...], ...]
    after: tuple[tuple[tuple[float, ...], ...], ...] | None
    python: str


def read_model(
    model: Any,  # noqa: ANN401 - an `Explored`, or what `load` takes
    given: Prompt,
    *,
    cuts: Sequence[str] = (),
    watch: Watch | None = None,
) -> ModelReading:
    """Return what a model does with a sentence, as it is and with parts cut.

    Args:
        model: anything `load` takes.
        given: the sentence.
        cuts: "head 1.3", "attention 1", "mlp 1", "norm 1 NAME", "block 1", "encoding", "mask".
        watch: told of every layer.

    Raises:
        InputError: the sentence cannot be run, or something cannot be cut.
    """
    explored = explored_of(model)
    sentence = sentence_of(explored.model, given)
    subject = sentence.subject(explored.model)
    chosen = tuple(sorted(set(cuts)))
    first = pass_of(explored, given, (), watch)
    second = pass_of(explored, given, chosen, watch) if chosen else None
    states = _states(first)
    _refuse_equal(states)
    axes = principal_axes(states)
    runs = [run.prediction for run in (first, second) if run is not None]
    reader = _Reader(explored, subject, axes, shown_outcomes(subject, *runs))
    explained = axes.explained.tolist()
    return rounded(
        ModelReading(
            tokens=sentence.names,
            ids=tuple(sentence.items[0].tolist()) if sentence.items.ndim == 2 else (),
            depths=("input", *(f"after layer {k}" for k in range(len(first.layers)))),
            explained=(explained[0], explained[1], explained[2]),
            asked=subject.asked.value,
            place=_place(sentence, subject),
            before=reader.read(first),
            after=None if second is None else reader.read(second),
            cuts=chosen,
            change=None if second is None else _change(subject, first, second),
            in_bits=subject.in_bits,
            notes=(*explored.model.notes, *sentence.notes),
            python=python_of(explored, "read_model", given, cuts=list(chosen)),
        )
    )


def read_attention(
    model: Any,  # noqa: ANN401
    given: Prompt,
    layer: int,
    *,
    cuts: Sequence[str] = (),
    watch: Watch | None = None,
) -> AttentionReading:
    """Return the attention patterns of one layer, as the model computes them.

    Raises:
        InputError: there is no such layer, or the family returns no patterns.
    """
    explored = explored_of(model)
    chosen = tuple(sorted(set(cuts)))
    first = pass_of(explored, given, (), watch)
    second = pass_of(explored, given, chosen, watch) if chosen else None
    if not first.patterns:
        raise InputError("models of this family do not return their attention patterns.")
    if not 0 <= layer < len(first.patterns):
        raise InputError(f"there is no layer {layer}; layers are 0 to {len(first.patterns) - 1}.")
    return rounded(
        AttentionReading(
            layer=layer,
            before=_rows(first.patterns[layer]),
            after=None if second is None else _rows(second.patterns[layer]),
            python=python_of(explored, "read_attention", given, layer, cuts=list(chosen)),
        )
    )


def _rows(pattern: Float[Tensor, "head tokens tokens"]) -> Any:  # noqa: ANN401 - nested tuples
    return tuple(tuple(tuple(row) for row in head) for head in pattern.double().tolist())


def _place(sentence: Sentence, subject: Subject) -> int:
    if sentence.n_front:
        return 0
    return subject.query % sentence.n_items


def _states(run: Pass) -> Float[Tensor, "depth tokens d_model"]:
    """Return the tokens in front of the first layer and behind each, as the norm sees them."""
    depths = [run.layers[0].before[0], *(layer.after[0] for layer in run.layers)]
    return as_norm_sees(torch.stack([x.double() for x in depths]), run.stack.norm)


def _refuse_equal(states: Float[Tensor, "depth tokens d_model"]) -> None:
    first = states[0]
    if float((first - first[0]).abs().max()) == 0.0:
        raise InputError("all tokens are the same, so there are no orbits. Give different tokens.")


def _change(subject: Subject, first: Pass, second: Pass) -> float:
    distance = js_bits if subject.in_bits else relative_change
    return float(distance(first.prediction, second.prediction))


class _Reader:
    """Reads runs of one sentence, all in the same axes."""

    def __init__(
        self, explored: Explored, subject: Subject, axes: PrincipalAxes, shown: list[int]
    ) -> None:
        self.explored, self.subject, self.axes, self.shown = explored, subject, axes, shown

    def read(self, run: Pass) -> RunReading:
        states = _states(run)
        places = self.axes.positions(states).tolist()
        steps: list[BlockStep] = []
        heads: list[tuple[float, ...]] = []
        for k in range(len(run.layers)):
            tally = self._tally(run, k)
            steps += _steps(tally, k)
            heads.append(tuple(tally.path.shares[:-1]))
        return RunReading(
            cosine=tuple(mean_cosines(states).mean(dim=1).tolist()),
            positions=tuple(tuple((x[0], x[1], x[2]) for x in row) for row in places),
            steps=tuple(steps),
            heads=tuple(heads),
            outcomes=outcomes_of(self.explored.model, self.subject, run.prediction, self.shown),
            entropy=_entropy(run.prediction) if self.subject.in_bits else None,
        )

    def _tally(self, run: Pass, layer: int) -> DirectionTally:
        """Return the sums of one layer, the same as a trace's, over this sentence alone."""
        weights = self.explored.layer(layer, run.stack.name)
        states = run.layers[layer]
        tally = DirectionTally(weights, n_attributed=states.before.shape[1])
        tally.add(states)
        return tally


def _steps(tally: DirectionTally, layer: int) -> list[BlockStep]:
    points = [(name, tally.points[name].value) for name in POINTS if tally.points[name].n_pairs]
    steps = []
    for (before, first), (after, second) in pairwise(points):
        change = log_spread(second) - log_spread(first)
        steps.append(
            BlockStep(
                layer=layer,
                part=STEPS[before, after],
                change=change if math.isfinite(change) else None,
                cosine=second,
            )
        )
    return steps


def shown_outcomes(subject: Subject, *predictions: Float[Tensor, " outputs"]) -> list[int]:
    """Return the outputs that are shown: the most probable ones of any of some predictions."""
    if not subject.in_bits:
        return []
    found: dict[int, None] = {}
    for logits in predictions:
        found |= dict.fromkeys(logits.topk(min(N_OUTCOMES, len(logits))).indices.tolist())
    return list(found)


def outcomes_of(
    model: Model, subject: Subject, logits: Float[Tensor, " outputs"], shown: Sequence[int]
) -> tuple[Outcome, ...]:
    """Return the probabilities of some outputs, the most probable first."""
    shares = logits.double().softmax(-1)
    ranked = sorted(((float(shares[k]), k) for k in shown), reverse=True)
    return tuple(Outcome(name=outcome_name(model, subject, k), probability=p) for p, k in ranked)


def outcome_name(model: Model, subject: Subject, k: int) -> str:
    """Return what a model's output number k stands for."""
    if subject.asked.value == "the class":
        return printable(str((getattr(model.module.config, "id2label", None) or {}).get(k, k)))
    if model.tokenizer is None:
        return str(k)
    return printable(str(model.tokenizer.decode([k]) or model.tokenizer.convert_ids_to_tokens(k)))


def _entropy(logits: Float[Tensor, " outputs"]) -> float:
    shares = logits.double().softmax(-1)
    return float(torch.special.entr(shares).sum() / math.log(2.0))


def possible_cuts(model: Any) -> tuple[str, ...]:  # noqa: ANN401
    """Return every single cut that a model allows, in the order that a page lists them."""
    explored: Explored = explored_of(model)
    stack = explored.model.architecture.stacks[-1]
    norms = norms_of(explored.model, stack=stack.name)
    cuts: list[str] = []
    for k, spec in enumerate(stack.layers):
        cuts += [f"head {k}.{h}" for h in range(spec.n_heads)]
        cuts += [f"attention {k}", f"mlp {k}", *(f"norm {k} {name}" for name in norms.get(k, ()))]
        cuts.append(f"block {k}")
    return (*cuts, *(["norm final"] if FINAL in norms else []))
