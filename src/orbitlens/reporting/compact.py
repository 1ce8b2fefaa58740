"""Results -> the same with less bulk, so that reports of large models stay small.

Enters: results, or a report's JSON. Leaves: results without what no section shows, and JSON in
which the reasons of certificates are numbers of clauses, which heads of one model share.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from orbitlens.order.audit_result import Audit
from orbitlens.scanning.scan_result import HeadScan, LayerScan, Scan
from orbitlens.theory.certificates import Certificate
from orbitlens.tracing.trace_result import DEFAULT_CLOSURE, LayerTrace, Trace

JOINT = "; "  # between the clauses of a reason
SHOWN_CLOSURES = (DEFAULT_CLOSURE, "itself")  # of single heads; layers have them all
MOST_BARS = 16  # of rotary frequencies; more are summed in groups of neighbours


def brief_scan(scan: Scan, name: str) -> Scan:
    """Drop single hypotheses, as the reason names those that fail, and the model's folder.

    Rotary frequencies are summed in groups where there are many.
    """
    layers = tuple(_brief_layer(layer) for layer in scan.layers)
    return replace(scan, model=replace(scan.model, path=name), layers=layers)


def _brief_layer(layer: LayerScan) -> LayerScan:
    return replace(
        layer,
        certificates=_brief_certificates(layer.certificates),
        heads=tuple(_brief_head(head) for head in layer.heads),
    )


def _brief_head(head: HeadScan) -> HeadScan:
    turned = head.rotary
    if turned is not None:
        turned = replace(turned, energy=grouped(turned.energy))
    return replace(head, certificates=_brief_certificates(head.certificates), rotary=turned)


def _brief_certificates(certificates: tuple[Certificate, ...]) -> tuple[Certificate, ...]:
    return tuple(replace(certificate, hypotheses=(), numbers={}) for certificate in certificates)


def grouped(shares: tuple[float, ...]) -> tuple[float, ...]:
    """Return shares summed over groups of neighbours, at most `MOST_BARS` of them.

    >>> grouped((0.25,) * 4)
    (0.25, 0.25, 0.25, 0.25)
    >>> len(grouped((1 / 64,) * 64)), sum(grouped((1 / 64,) * 64))
    (16, 1.0)
    """
    size = max(1, -(-len(shares) // MOST_BARS))
    return tuple(sum(shares[k : k + size]) for k in range(0, len(shares), size))


def brief_trace(trace: Trace, name: str) -> Trace:
    """Drop other closures of single heads, and single heads of the untrained twin."""
    twin = None if trace.twin is None else brief_control(trace.twin, "untrained twin")
    layers = tuple(_brief_traced(layer) for layer in trace.layers)
    return replace(trace, model=replace(trace.model, path=name), layers=layers, twin=twin)


def _brief_traced(layer: LayerTrace) -> LayerTrace:
    heads = tuple(replace(head, closures={}, sharpness_closures={}) for head in layer.heads)
    own = tuple(
        replace(head, predicted={name: head.predicted[name] for name in SHOWN_CLOSURES})
        for head in layer.directions.heads
    )
    return replace(layer, heads=heads, directions=replace(layer.directions, heads=own))


def brief_control(trace: Trace, name: str) -> Trace:
    """Drop from a control what only a model's own trace is asked for: single heads."""
    layers = tuple(
        replace(layer, heads=(), directions=replace(layer.directions, heads=()))
        for layer in trace.layers
    )
    return replace(trace, model=replace(trace.model, path=name), layers=layers)


def brief_audit(audit: Audit, name: str) -> Audit:
    """Drop the model's folder."""
    return replace(audit, model=replace(audit.model, path=name))


# --- reasons of certificates, in JSON ----------------------------------------------------------


def fold_reasons(scan: dict[str, Any]) -> list[str]:
    """Write each reason as numbers of its clauses, in place; return the clauses.

    >>> scan = {"layers": [{"certificates": [{"why": "a; b"}], "heads": []}]}
    >>> fold_reasons(scan), scan["layers"][0]["certificates"]
    (['a', 'b'], [{'why': [0, 1]}])
    """
    numbers: dict[str, int] = {}
    for certificate in _certificates(scan):
        certificate["why"] = [
            numbers.setdefault(clause, len(numbers)) for clause in certificate["why"].split(JOINT)
        ]
        if certificate.get("hypotheses") == []:  # `brief_scan` leaves none
            del certificate["hypotheses"]
        if certificate.get("numbers") == {}:
            del certificate["numbers"]
    return list(numbers)


def unfold_reasons(scan: Any, clauses: Any) -> None:  # noqa: ANN401 - of a file, not yet checked
    """Write each reason in words again, in place."""
    for certificate in _certificates(scan):
        certificate["why"] = JOINT.join(clauses[k] for k in certificate["why"])
        certificate.setdefault("hypotheses", [])
        certificate.setdefault("numbers", {})


def _certificates(scan: Any) -> Iterator[Any]:  # noqa: ANN401
    for layer in scan["layers"]:
        for owner in [layer, *layer["heads"]]:
            yield from owner["certificates"]
