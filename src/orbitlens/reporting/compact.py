"""Results as JSON -> the same with less bulk, so that reports of large models stay small.

Enters: a result's JSON. Leaves: it without what no section shows, and with the reasons of
certificates as numbers of clauses, which heads of one model share.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

JOINT = "; "  # between the clauses of a reason
MOST_BARS = 16  # of rotary frequencies; more are summed in groups of neighbours


def brief(result: dict[str, Any]) -> dict[str, Any]:
    """Drop what no section shows, and the folders of models.

    Single hypotheses go, as the reason names those that fail, and so do other closures of single
    heads. Rotary frequencies are summed in groups where there are many.
    """
    model = result["model"]
    model["path"] = Path(model["path"]).name
    for certificate in _certificates(result):
        certificate.pop("hypotheses", None)
    for layer in result["layers"]:
        for head in layer["heads"]:
            head.pop("closures", None)
            head.pop("sharpness_closures", None)
            if head.get("rotary") is not None:
                head["rotary"]["energy"] = grouped(head["rotary"]["energy"])
    if result.get("twin") is not None:
        result["twin"] = brief_control(result["twin"])
        result["twin"]["model"]["path"] = "untrained twin"
    return result


def grouped(shares: list[float]) -> list[float]:
    """Return shares summed over groups of neighbours, at most `MOST_BARS` of them.

    >>> grouped([0.25] * 4)
    [0.25, 0.25, 0.25, 0.25]
    >>> len(grouped([1 / 64] * 64)), sum(grouped([1 / 64] * 64))
    (16, 1.0)
    """
    size = -(-len(shares) // MOST_BARS)
    return [sum(shares[k : k + size]) for k in range(0, len(shares), max(1, size))]


def brief_control(trace: dict[str, Any]) -> dict[str, Any]:
    """Drop from a control what only a model's own trace is asked for: single heads."""
    for layer in trace["layers"]:
        layer["heads"] = []
    return brief(trace)


def fold_reasons(scan: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Write each reason as numbers of its clauses; return the scan and the clauses.

    >>> scan = {"layers": [{"certificates": [{"why": "a; b"}], "heads": []}]}
    >>> fold_reasons(scan)[1], scan["layers"][0]["certificates"]
    (('a', 'b'), [{'why': [0, 1]}])
    """
    numbers: dict[str, int] = {}
    for certificate in _certificates(scan):
        certificate["why"] = [
            numbers.setdefault(clause, len(numbers)) for clause in certificate["why"].split(JOINT)
        ]
    return scan, tuple(numbers)


def reason(model: Mapping[str, Any], certificate: Mapping[str, Any]) -> str:
    """Return why a certificate holds or not, in words."""
    return JOINT.join(model["clauses"][k] for k in certificate["why"])


def _certificates(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for layer in result["layers"]:
        for owner in [layer, *layer["heads"]]:
            yield from owner.get("certificates", ())
