"""Results -> a handful of sentences, by rules, with the numbers that matter and what is uncertain.

Enters: a model of a report, whose results may be missing. Leaves: sentences. They are made anew
from the numbers whenever a report is shown: no sentence is stored, so none can contradict them.
"""

from collections.abc import Iterator

from orbitlens.reporting.data import ModelReport
from orbitlens.reporting.effects import effects_sentence
from orbitlens.reporting.motion import headline, layers_sentence, motions
from orbitlens.scanning.words import count_sentence
from orbitlens.tracing.words import direction_prediction_sentence

FEW_LAYERS = 8  # layers below which a correlation over layers says little


def in_words(model: ModelReport) -> list[str]:
    """Return what was found, a sentence each: depth, heads, agreement, order, uncertainty."""
    sentences: list[str] = []
    if model.trace is not None:
        several = len(model.trace.model.stacks) > 1
        for motion in motions(model.trace):
            sentences.append(f"{headline(motion, several=several)} {layers_sentence(motion)}")
        sentences += effects_sentence(model)
    if model.scan is not None:
        sentences.append(count_sentence(model.scan, model.weights_of))
    if model.trace is not None:
        sentences += direction_prediction_sentence(model.trace)
    if model.audit is not None:
        sentences.append(_sentence(model.audit.summary()))
    sentences += [_sentence(text) for text in _uncertain(model)]
    return sentences


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else text + "."


def _uncertain(model: ModelReport) -> Iterator[str]:
    scan, trace, audit = model.scan, model.trace, model.audit
    doubts = []
    if trace is not None and len(trace.layers) < FEW_LAYERS:
        doubts.append(f"{len(trace.layers)} layers are few for a correlation")
    if trace is not None:
        doubts.append(f"measurements rest on {trace.n_tokens:,} tokens")
    if audit is not None:
        cell = audit.cells.get(audit.model.own_cell)
        if cell is not None:
            doubts.append(
                f"the order sensitivity has a 95 % interval of {cell.low:.3g} to {cell.high:.3g}"
            )
        if audit.settings.source in {"random", "noise"}:
            doubts.append("inputs are random, on which a model need not behave as usual")
    if scan is not None and any(layer.relative_error > 0 for layer in scan.layers):
        doubts.append("rates of whole layers are estimated")
    if doubts:
        yield "What is uncertain: " + "; ".join(doubts)
