"""What the page may ask: a question's name and parameters -> its answer as plain data.

Enters: an explored model, a name of `QUESTIONS` and parameters from a page, which may hold anything.
Leaves: JSON, or an `OrbitlensError` whose message the page shows. What would take long says so
first (`cost_of`), and runs when the page has agreed.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from orbitlens.errors import InputError
from orbitlens.exploring.data import answer_key
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
from orbitlens.exploring.sentence import Given, Sentence, sentence_of
from orbitlens.order.subject import run
from orbitlens.results.codec import decode, encode
from orbitlens.running.loading import threads_for

ASKS_FIRST = 4.0  # seconds beyond which a page is told the cost before anything runs
TRACING = 3.0  # a trace beside a plain run of its tokens, for a model of 135M parameters
Told = Callable[[int, int | None], None]


@dataclass(frozen=True, kw_only=True)
class Question:
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

    @property
    def given(self) -> Given:
        """The sentence."""
        return Given(text=self.text, ids=self.ids, sample=self.sample, levels=self.levels)


def _model(explored: Explored, asked: Question, told: Told) -> object:
    return read_model(explored, asked.given, cuts=asked.cuts, watch=told)


def _attention(explored: Explored, asked: Question, told: Told) -> object:
    return read_attention(explored, asked.given, asked.layer, cuts=asked.cuts, watch=told)


def _heads(explored: Explored, asked: Question, told: Told) -> object:
    return read_heads(explored, told=told)


def _order(explored: Explored, asked: Question, told: Told) -> object:
    return read_order(explored, asked.given, asked.order, told=told)


def _usual(explored: Explored, asked: Question, told: Told) -> object:
    return read_usual(explored, asked.given, told=told)


def _swaps(explored: Explored, asked: Question, told: Told) -> object:
    return read_swaps(explored, asked.given, cell=asked.cell, which=asked.which, told=told)


Answer = Callable[[Explored, Question, Told], object]
QUESTIONS: dict[str, Answer] = {
    "model": _model,
    "attention": _attention,
    "heads": _heads,
    "order": _order,
    "usual": _usual,
    "swaps": _swaps,
}


def question_of(parameters: object) -> Question:
    """Return the parameters of a question.

    Raises:
        InputError: they are of other types than expected; the message names the field.
    """
    if not isinstance(parameters, dict):
        raise InputError("a question's parameters are an object of names and values.")
    asked: Question = decode(Question, {**_defaults(), **parameters}, "the question")
    return asked


def _defaults() -> dict[str, Any]:
    return dict(encode(Question()))


def answer(explored: Explored, name: str, asked: Question, told: Told) -> Any:  # noqa: ANN401
    """Return the answer to a question as plain data.

    Raises:
        OrbitlensError: it has none; the message says why.
    """
    if name not in QUESTIONS:
        raise InputError(f"nothing is known of {name[:40]!r}; expected {', '.join(QUESTIONS)}.")
    return encode(QUESTIONS[name](explored, asked, told))


# --- what it costs ---------------------------------------------------------------------------


def seconds_a_token(explored: Explored, n_tokens: int = 16) -> float:
    """Return how long the model takes for a token, measured on a few: the second of two runs."""
    model = explored.model
    if model.main_input == "pixel_values":
        sentence = sentence_of(model, Given(sample=0))
    else:
        ids = " ".join(str(1 + k % 7) for k in range(n_tokens))
        sentence = sentence_of(model, Given(ids=ids))
    subject = sentence.subject(model)
    with threads_for(model.n_parameters), model.evaluating(), torch.inference_mode():
        for _ in range(2):
            started = time.perf_counter()
            run(subject, sentence.items, subject.own_cell)
            spent = time.perf_counter() - started
    return spent / (sentence.n_items + sentence.n_front)


def tokens_of(explored: Explored, name: str, asked: Question) -> float:
    """Return how many tokens a question runs through the model."""
    if name == "heads":
        return TOKENS * TRACING
    sentence: Sentence = sentence_of(explored.model, asked.given)
    subject = sentence.subject(explored.model)
    if name in {"model", "attention"}:
        rows = 2 if asked.cuts else 1
    elif name == "order":
        rows = 2 * len(subject.compared)
    elif name == "usual":
        rows = len(subject.compared) * (N_SHUFFLES + 1)
    else:
        rows = len(pairs_of(subject, sentence.n_items, asked.which)) + N_SHUFFLES + 2
    return float(rows * (sentence.n_items + sentence.n_front))


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
    """Return the answers to questions, as a frozen page looks them up."""
    total, done = sum(map(len, questions.values())), 0
    answers: dict[str, dict[str, Any]] = {}
    for name, asked in questions.items():
        answers[name] = {}
        for parameters in asked:
            found = answer(explored, name, question_of(parameters), lambda done, total: None)
            answers[name][answer_key(parameters)] = found
            done += 1
            told(done, total)
    return answers
