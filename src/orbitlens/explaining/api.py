"""Explain one prediction of an encoder: the graph of its attention, and a few tokens behind it.

Enters: a model, one sequence, a question. Leaves: an `Explanation`. The recipe is that of arXiv
2310.20307, by default with FCI for its structure learner: last layer, one graph a head, tests of
partial correlations; then sets of tokens near the target in a graph are masked until the
prediction changes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.explaining.explanation import Explanation
from orbitlens.explaining.graph import (
    AlikeError,
    CausalGraph,
    Learner,
    correlation_of,
    graph_of_attention,
)
from orbitlens.explaining.question import Inputs, Scores, question_of
from orbitlens.explaining.search import TokenSet, first_change, graph_order
from orbitlens.running.inputs import as_contexts, needs_tokenizer
from orbitlens.running.loading import eager_attention
from orbitlens.running.model import Model, load
from orbitlens.running.threads import threads_for

CAVEATS = (
    "Attention need not be a structural equation model. The graph is what tests of partial "
    "correlations find in one matrix; nothing about causes follows without that assumption.",
    "The number of samples is a convention, the model's width. Edges come and go with it and with "
    "alpha.",
    "The graph is of one sequence and one layer, and uses only which tokens attend alike, not what "
    "they attend to.",
)
FIRST = (
    "The set is the first that changes the prediction among those the graph offers: others may be "
    "smaller, and a masked input is an unusual one."
)
NONE_FOUND = "No set that was tried changes the prediction; others may."


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """How tokens are masked, how a prediction is read, and how far the search goes."""

    mask_id: int | None = None  # stands for "nothing here"; without, the attention mask hides
    scores: Scores | None = None  # from the output to one number a class, for want of logits
    fixed: Sequence[int] = ()  # tokens that are never masked, such as [CLS] and [SEP]
    max_nodes: int = 12  # in a graph; of longer sequences, those that attend most like the target
    max_calls: int = 1000  # predictions of masked inputs
    learner: Learner = Learner.FCI  # of graphs; the paper has ICD


def explain(
    model: Any,  # noqa: ANN401 - a `Model`, or what `load` takes
    text: Any,  # noqa: ANN401
    *,
    target: int | None = None,
    alpha: float = 0.01,
    samples: int | None = None,
    options: ExplainOptions | None = None,
) -> Explanation:
    """Return the graphs behind a prediction and a small set of tokens whose masking changes it.

    Args:
        model: an encoder: a `Model`, or anything `load` takes.
        text: one sequence: a string, token ids, or what a tokenizer returns.
        target: the position asked about; by default that of the mask token, else the first token,
            where classifiers read their answer.
        alpha: level of the independence tests.
        samples: how many observations attention is taken to come from; by default the width.
        options: the mask token, how to read a prediction, tokens that stay, limits. By default the
            tokenizer's mask token, where the model fills masks, and its special tokens stay.

    Raises:
        InputError: the model or the input is not of a kind that can be explained.
        MissingPackageError: the learner is causal-learn's, which is not installed.
    """
    opened = load(model).running
    inputs = _one_sequence(opened, text)
    chosen = options or _usual_options(opened, inputs)
    module = opened.module
    with threads_for(opened.n_parameters), opened.evaluating(), eager_attention(module):
        return explain_prediction(
            module, inputs, target=target, alpha=alpha, samples=samples, options=chosen
        )


def _one_sequence(model: Model, text: Any) -> Inputs:  # noqa: ANN401
    if isinstance(text, str):
        needs_tokenizer(model)
        assert model.tokenizer is not None
        encoded: Inputs = model.tokenizer(text, return_tensors="pt")
        return encoded
    if isinstance(text, Mapping):
        return text
    contexts = as_contexts(text)
    if len(contexts) != 1:
        raise InputError(f"{len(contexts)} sequences were given; one is explained at a time.")
    return torch.tensor(contexts)


def _usual_options(model: Model, inputs: Inputs) -> ExplainOptions:
    tokenizer = model.tokenizer
    if tokenizer is None:
        return ExplainOptions()
    ids = inputs["input_ids"] if isinstance(inputs, Mapping) else inputs
    special = set(tokenizer.all_special_ids) - {tokenizer.mask_token_id}
    fixed = [place for place, token in enumerate(ids[0].tolist()) if token in special]
    fills_masks = type(model.module).__name__.endswith("ForMaskedLM")
    return ExplainOptions(mask_id=tokenizer.mask_token_id if fills_masks else None, fixed=fixed)


def explain_prediction(
    model: Any,  # noqa: ANN401 - a model of transformers, or of the lab
    inputs: Inputs,
    *,
    target: int | None = None,
    alpha: float = 0.01,
    samples: int | None = None,
    options: ExplainOptions | None = None,
) -> Explanation:
    """Return the explanation of one prediction of a module; `explain` is the way in.

    Args:
        model: an encoder in evaluation mode that returns attention (attn_implementation="eager").
        inputs: one sequence: a tensor of ids, or what a tokenizer returns.
        target: the position asked about; by default that of the mask token, else the first token,
            where classifiers read their answer.
        alpha: level of the independence tests.
        samples: how many observations attention is taken to come from; by default the width.
        options: the mask token, how to read a prediction, tokens that stay, limits.

    Raises:
        InputError: the model or the input is not of a kind that can be explained.
        MissingPackageError: the learner is causal-learn's, which is not installed.
    """
    options = options or ExplainOptions()
    question = question_of(
        model, inputs, target=target, mask_id=options.mask_id, scores=options.scores
    )
    _check_fixed(options.fixed, len(question.ids))
    prediction, place = question.prediction(), question.target
    attention = question.attention(prediction)
    samples = int(model.config.hidden_size) if samples is None else samples
    nodes = nearest_tokens(attention, place, options.max_nodes)
    graphs, notes = graphs_of_heads(attention, samples, alpha, nodes=nodes, learner=options.learner)
    answers = [prediction]

    def changes(chosen: TokenSet) -> bool:
        answers.append(question.prediction(chosen))
        return answers[-1] != prediction

    sets = graph_order(
        list(graphs.values()),
        place,
        strengths=strengths_of(attention[list(graphs)], place),
        fixed=frozenset(options.fixed),
    )
    search = first_change(sets, changes, most=options.max_calls)
    return Explanation(
        prediction=prediction,
        target=place,
        graphs=graphs,
        tokens=search.tokens or (),
        changed_to=None if search.tokens is None else answers[-1],
        calls=search.tried + 2,
        samples=samples,
        alpha=alpha,
        caveats=(*CAVEATS, *_particular(len(nodes), len(question.ids), search.tokens), *notes),
    )


def graphs_of_heads(
    attention: Float[Tensor, "head tokens tokens"],
    samples: int,
    alpha: float,
    *,
    nodes: Sequence[int] | None = None,
    learner: Learner = Learner.FCI,
) -> tuple[dict[int, CausalGraph], tuple[str, ...]]:
    """Return one graph a head, and notes on heads that have none.

    Raises:
        AlikeError: no head has one.
    """
    graphs, notes, reason = {}, [], ""
    for head, pattern in enumerate(attention):
        try:
            graphs[head] = graph_of_attention(pattern, samples, alpha, nodes=nodes, learner=learner)
        except AlikeError as error:
            reason = str(error)
            notes.append(f"Head {head} has no graph: {reason}")
    if not graphs:
        raise AlikeError(f"no head of the last layer has a graph; the last one: {reason}")
    return graphs, tuple(notes)


def strengths_of(attention: Float[Tensor, "head tokens tokens"], target: int) -> dict[int, float]:
    """Return the largest correlation of each token with the target over heads."""
    rows = [correlation_of(head)[target].abs() for head in attention]
    return {token: max(float(row[token]) for row in rows) for token in range(attention.shape[1])}


def nearest_tokens(
    attention: Float[Tensor, "head tokens tokens"], target: int, n_nodes: int
) -> tuple[int, ...]:
    """Return the target and the tokens that attend most like it, so many in all.

    Those left out are to the graph what latent variables are, which FCI allows for.
    """
    if n_nodes < 2:
        raise InputError(f"max_nodes is {n_nodes}; expected 2 or more.")
    strengths = strengths_of(attention, target)
    others = sorted((t for t in strengths if t != target), key=lambda t: -strengths[t])
    return tuple(sorted([target, *others[: n_nodes - 1]]))


def _check_fixed(fixed: Sequence[int], n_tokens: int) -> None:
    wrong = [token for token in fixed if not 0 <= token < n_tokens]
    if wrong:
        raise InputError(f"fixed: there is no token {wrong[0]}; tokens are 0 to {n_tokens - 1}.")


def _particular(n_nodes: int, n_tokens: int, tokens: TokenSet | None) -> tuple[str, ...]:
    """Return caveats of this explanation alone."""
    notes = [NONE_FOUND if tokens is None else FIRST]
    if n_nodes < n_tokens:
        notes.append(
            f"{n_tokens - n_nodes} of {n_tokens} tokens are not in the graph: those that attend "
            "least like the target. They are treated as latent variables."
        )
    return tuple(notes)
