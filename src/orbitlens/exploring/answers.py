"""What the page may ask: a question's name and parameters -> its answer as plain data.

Enters: an explored model, a name of `QUESTIONS`, and parameters from a page, which hold anything.
Leaves: JSON, or an `OrbitlensError` whose message the page shows. What would take long says so
first (`Pace`), and runs when the page has agreed.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from orbitlens.errors import InputError
from orbitlens.exploring.data import answer_key
from orbitlens.exploring.head_flows import read_layer
from orbitlens.exploring.head_map import TOKENS, read_heads
from orbitlens.exploring.model_data import read_attention, read_model
from orbitlens.exploring.order_data import (
    ALL,
    N_SHUFFLES,
    pairs_of,
    read_order,
    read_swaps,
    read_usual,
)
from orbitlens.exploring.passes import Explored
from orbitlens.exploring.sentence import Prompt, sentence_of
from orbitlens.order.comparing import BATCH_TOKENS
from orbitlens.order.subject import run
from orbitlens.results.codec import decode, encode
from orbitlens.running.inputs import random_ids
from orbitlens.running.model import Model
from orbitlens.running.threads import threads_for

ASKS_FIRST = 6.0  # seconds beyond which a page is told the cost before anything runs
TRACING = 12.0  # a trace and a scan beside a plain run of the same tokens
PACE_ROWS, PACE_RUNS, PACE_TOKENS = 8, 2, 12
QUICK = 0.2  # seconds
Told = Callable[[int, int | None], None]


@dataclass(frozen=True, kw_only=True)
class PageQuestion:
    """The parameters of any question; each takes those it needs."""

    text: str | None = None
    ids: str | None = None
    sample: int | None = None
    levels: tuple[int, ...] | None = None
    cuts: tuple[str, ...] = ()
    layer: int = 0
    order: tuple[int, ...] | None = None
    cell: str | None = None
    which: str = ALL
    agreed: bool = False  # to what it costs
    state: str = ""  # of the page, as its address has it: what a frozen one opens with

    @property
    def given(self) -> Prompt:
        """The sentence."""
        return Prompt(text=self.text, ids=self.ids, sample=self.sample, levels=self.levels)


def _model(explored: Explored, asked: PageQuestion, told: Told) -> object:
    return read_model(explored, asked.given, cuts=asked.cuts, watch=told)


def _attention(explored: Explored, asked: PageQuestion, told: Told) -> object:
    return read_attention(explored, asked.given, asked.layer, cuts=asked.cuts, watch=told)


def _heads(explored: Explored, asked: PageQuestion, told: Told) -> object:
    return read_heads(explored, told=told)


def _order(explored: Explored, asked: PageQuestion, told: Told) -> object:
    return read_order(explored, asked.given, asked.order, told=told)


def _usual(explored: Explored, asked: PageQuestion, told: Told) -> object:
    return read_usual(explored, asked.given, told=told)


def _swaps(explored: Explored, asked: PageQuestion, told: Told) -> object:
    return read_swaps(explored, asked.given, cell=asked.cell, which=asked.which, told=told)


def _flow(explored: Explored, asked: PageQuestion, told: Told) -> object:
    return read_layer(explored.model, asked.given, asked.layer)


Answer = Callable[[Explored, PageQuestion, Told], object]
QUESTIONS: dict[str, Answer] = {
    "model": _model,
    "attention": _attention,
    "heads": _heads,
    "order": _order,
    "usual": _usual,
    "swaps": _swaps,
    "flow": _flow,
}


def question_of(parameters: object) -> PageQuestion:
    """Return the parameters of a question.

    Raises:
        InputError: they are of other types than expected; the message names the field.
    """
    if not isinstance(parameters, dict):
        raise InputError("a question's parameters are an object of names and values.")
    asked: PageQuestion = decode(PageQuestion, {**_defaults(), **parameters}, "the question")
    return asked


def _defaults() -> dict[str, Any]:
    return dict(encode(PageQuestion()))


def answer(explored: Explored, name: str, asked: PageQuestion, told: Told) -> Any:  # noqa: ANN401
    """Return the answer to a question as plain data.

    Raises:
        OrbitlensError: it has none; the message says why.
    """
    if name not in QUESTIONS:
        raise InputError(f"nothing is known of {name[:40]!r}; expected {', '.join(QUESTIONS)}.")
    return encode(QUESTIONS[name](explored, asked, told))


# --- what it costs ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast a model runs here, measured on a few tokens."""

    call: float  # seconds of a forward call, whatever is in it
    token: float  # seconds more for every token

    def seconds(self, work: "PageWork") -> float:
        """Return how long some work takes."""
        n_calls = -(-work.rows * work.length // BATCH_TOKENS)
        return work.factor * (n_calls * self.call + work.rows * work.length * self.token)


@dataclass(frozen=True, kw_only=True)
class PageWork:
    """What a question runs: so many rows of so many tokens; a trace does more than run them."""

    rows: int
    length: int
    factor: float = 1.0


def measured_pace(explored: Explored) -> Pace:
    """Return how fast the model runs: one short row, then several; the best of a few runs each."""
    model = explored.model
    sentence = sentence_of(model, Prompt(sample=0) if _sees(model) else _some_ids(model))
    subject = sentence.subject(model)
    n_tokens = sentence.n_items + sentence.n_front

    def seconds(n_rows: int) -> float:
        items = sentence.items.repeat(n_rows, *[1] * (sentence.items.ndim - 1))
        spent = []
        for _ in range(PACE_RUNS):
            started = time.perf_counter()
            run(subject, items, subject.own_cell)
            spent.append(time.perf_counter() - started)
        return min(spent)

    with threads_for(model.n_parameters), model.evaluating():
        one, n_rows = seconds(1), PACE_ROWS
        several = seconds(n_rows)
        if several < QUICK:  # too short a time to tell what a token takes
            n_rows = 8 * PACE_ROWS
            several = seconds(n_rows)
    token = max(0.0, several - one) / ((n_rows - 1) * n_tokens)
    return Pace(call=max(0.0, one - token * n_tokens), token=token)


def _some_ids(model: Model) -> Prompt:
    ids = random_ids(model.module.config, 1, PACE_TOKENS, torch.Generator().manual_seed(0))
    return Prompt(ids=" ".join(map(str, ids[0].tolist())))


def _sees(model: Model) -> bool:
    return model.main_input == "pixel_values"


def work_of(explored: Explored, name: str, asked: PageQuestion) -> PageWork:
    """Return what a question runs through the model."""
    if name == "heads":
        return PageWork(rows=8, length=TOKENS // 8, factor=TRACING)
    sentence = sentence_of(explored.model, asked.given)
    subject = sentence.subject(explored.model)
    if name in {"model", "attention", "flow"}:
        rows = 2 if asked.cuts else 1
    elif name == "order":
        rows = 2 * len(subject.compared)
    elif name == "usual":
        rows = len(subject.compared) * (N_SHUFFLES + 1)
    else:
        rows = len(pairs_of(subject, sentence.n_items, asked.which)) + N_SHUFFLES + 2
    return PageWork(rows=rows, length=sentence.n_items + sentence.n_front)


def cost_words(seconds: float) -> str:
    """Return a duration in words.

    >>> cost_words(43.0)
    'about 45 s'
    >>> cost_words(500.0)
    'about 8 minutes'
    """
    if seconds < 90:
        step = 1 if seconds < 10 else 5
        return f"about {max(step, step * round(seconds / step))} s"
    return f"about {round(seconds / 60)} minutes"


def frozen_answers(
    explored: Explored, questions: Mapping[str, list[dict[str, Any]]], told: Told
) -> dict[str, dict[str, Any]]:
    """Return the answers to questions about one sentence, as a frozen page looks them up."""
    total, done = sum(map(len, questions.values())), 0
    answers: dict[str, dict[str, Any]] = {}
    for name, asked in questions.items():
        answers[name] = {}
        for parameters in asked:
            found = answer(
                explored, name, question_of(encode(parameters)), lambda done, total: None
            )
            answers[name][answer_key(_without_sentence(parameters))] = found
            done += 1
            told(done, total)
    return answers


def _without_sentence(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a question but the sentence, of which a frozen page has one."""
    given = {one.name for one in fields(Prompt)}
    return {name: value for name, value in parameters.items() if name not in given}
