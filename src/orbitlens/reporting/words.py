"""Results -> a handful of sentences, by rules, with the numbers that matter and what is uncertain.

Enters: a scan, a trace and an audit, each of which may be missing. Leaves: sentences.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from orbitlens.order.audit_result import Audit
from orbitlens.order.audit_result import summary as order_summary
from orbitlens.scanning.scan_result import Scan, Tendency
from orbitlens.tracing.reports import summary as attention_summary
from orbitlens.tracing.trace_result import Trace

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
    said: list[str] = []
    if scan is not None:
        said.append(heads_in_words(scan, shared or {}))
    if trace is not None:
        said.append(depth_in_words(trace))
        said.append(_agreement(trace))
    if audit is not None:
        said.append(_sentence(order_summary(audit)))
    said += [_sentence(text) for text in _uncertain(scan, trace, audit)]
    return said


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else text + "."


def heads_in_words(scan: Scan, shared: Mapping[str, Sequence[int]]) -> str:
    """Say how many heads spread and gather; those of layers that share weights count once."""
    own = [
        head
        for layer, head in scan.heads()
        if shared.get(layer.stack, range(layer.layer + 1))[layer.layer] == layer.layer
    ]
    n = {t: sum(head.tendency is t for head in own) for t in Tendency}
    heads = f"{len(own)} heads"
    if len(own) < sum(1 for _ in scan.heads()):
        heads += f" (shared by {len(scan.layers)} layers)"
    return (
        f"Read from the weights alone, {n[Tendency.SPREADS]} of {heads} {_verb(n)} tokens, "
        f"{n[Tendency.GATHERS]} gather them, and {n[Tendency.NEUTRAL]} are no different from "
        "randomly turned maps."
    )


def _verb(n: Mapping[Tendency, int]) -> str:
    return "spreads" if n[Tendency.SPREADS] == 1 else "spread"


def depth_in_words(trace: Trace) -> str:
    """Say what attention and the MLPs do over all layers."""
    said = " ".join(attention_summary(trace.layers)).strip().removesuffix(".")
    attention, mlp = (_factor(_total(trace, part)) for part in ("attention", "mlp"))
    untrained = ""
    if trace.twin is not None:
        untrained = f" (×\u00a0{_factor(_total(trace.twin, 'attention'))} in an untrained twin)"
    return (
        f"{said}; over all layers squared distances change ×\u00a0{attention} by "
        f"attention{untrained} and ×\u00a0{mlp} by the MLPs."
    )


def _total(trace: Trace, part: str) -> float:
    return sum(getattr(layer, part).measured_log_change for layer in trace.layers)


def _factor(log_change: float) -> str:
    """Write exp of a number, which may be too large for one.

    >>> _factor(0.0), _factor(2000.0)
    ('1', 'e^2000')
    """
    return f"{math.exp(log_change):.3g}" if abs(log_change) < 30 else f"e^{log_change:.0f}"


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
