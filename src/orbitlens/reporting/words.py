"""Results -> a handful of sentences, by rules, with the numbers that matter and what is uncertain.

Enters: a scan, a trace and an audit, each of which may be missing. Leaves: sentences.
"""

from collections.abc import Iterator, Mapping, Sequence

from orbitlens.order.audit_result import Audit
from orbitlens.scanning.scan_result import Scan
from orbitlens.scanning.words import count_sentence
from orbitlens.tracing.trace_result import Trace
from orbitlens.tracing.words import agreement_sentence, change_sentence

FEW_LAYERS = 8  # layers below which a correlation over layers says little


def in_words(
    scan: Scan | None,
    trace: Trace | None,
    audit: Audit | None,
    *,
    shared: Mapping[str, Sequence[int]] | None = None,
) -> list[str]:
    """Return what was found, a sentence each: heads, depth, agreement, order, uncertainty.

    `shared` names, for each layer of a stack, the first one with the same weights.
    """
    sentences: list[str] = []
    if scan is not None:
        sentences.append(count_sentence(scan, shared or {}))
    if trace is not None:
        sentences.append(change_sentence(trace))
        sentences.append(agreement_sentence(trace))
    if audit is not None:
        sentences.append(_sentence(audit.summary()))
    sentences += [_sentence(text) for text in _uncertain(scan, trace, audit)]
    return sentences


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else text + "."


def _uncertain(scan: Scan | None, trace: Trace | None, audit: Audit | None) -> Iterator[str]:
    doubts = []
    if trace is not None and len(trace.layers) < FEW_LAYERS:
        doubts.append(f"{len(trace.layers)} layers are few for a correlation")
    if trace is not None:
        doubts.append(f"measurements rest on {trace.n_tokens:,} tokens")
    if audit is not None:
        cell = audit.cells[audit.model.own_cell]
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
