"""Results -> a handful of sentences, by rules, with the numbers that matter and what is uncertain.

Enters: a scan, a trace and an audit, each of which may be missing. Leaves: sentences.
"""

from collections.abc import Iterator

from orbitlens.measure.reports import summary as attention_summary
from orbitlens.measure.trace_result import Trace
from orbitlens.scan_result import Scan, Tendency
from orbitlens.symmetry.audit_result import Audit
from orbitlens.symmetry.audit_result import summary as order_summary

FEW_LAYERS = 8  # layers below which a correlation over layers says little


def in_words(scan: Scan | None, trace: Trace | None, audit: Audit | None) -> list[str]:
    """Return what was found, a sentence each: heads, depth, agreement, order, uncertainty."""
    said: list[str] = []
    if scan is not None:
        said.append(_heads(scan))
    if trace is not None:
        said += _sentences(" ".join(attention_summary(trace.layers)))
        said.append(_agreement(trace))
    if audit is not None:
        said.append(_sentence(order_summary(audit)))
    said += [_sentence(text) for text in _uncertain(scan, trace, audit)]
    return said


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else text + "."


def _sentences(text: str) -> list[str]:
    return [_sentence(text)] if text else []


def _heads(scan: Scan) -> str:
    heads = [head for _, head in scan.heads()]
    n = {t: sum(head.tendency is t for head in heads) for t in Tendency}
    return (
        f"Read from the weights alone, {n[Tendency.SPREADS]} of {len(heads)} heads spread tokens, "
        f"{n[Tendency.GATHERS]} gather them, and {n[Tendency.NEUTRAL]} are no different from "
        "randomly turned maps."
    )


def _agreement(trace: Trace) -> str:
    report = trace.agreement
    where = (
        "contexts the prediction was not fitted on" if report.held_out else "the fitted contexts"
    )
    heads = report.per_closure[report.closure].heads
    said = [f"the sign is right in {report.sign:.0%} of layers" if report.sign is not None else ""]
    if report.pearson is not None:
        said.append(f"the correlation is {report.pearson:.2f} over {len(trace.layers)} layers")
    if heads.pearson is not None:
        said.append(f"{heads.pearson:.2f} over {heads.n} heads")
    return f"Predicted against measured on {where}: {', '.join(s for s in said if s)}."


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
