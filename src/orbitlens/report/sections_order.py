"""Report JSON -> sense of order, slices, and how sure all of it is.

Enters: one model of a report's JSON and its number. Leaves: HTML; a missing result says why.
"""

from collections.abc import Mapping
from typing import Any

from orbitlens.report.markup import (
    Model,
    absent,
    behind,
    chart,
    esc,
    items,
    number,
    table,
    why,
)

CELLS = (
    ("pe_causal", "encoding and mask"),
    ("pe_full", "encoding alone"),
    ("nope_causal", "mask alone"),
    ("nope_full", "neither"),
)


# --- sense of order, and slices --------------------------------------------------------------


def value_of_cell(reading: Mapping[str, Any] | None) -> float | None:
    """Return a cell's mean in the unit the model has."""
    if reading is None:
        return None
    found = reading["mean_js_bits"]
    return reading["mean_relative_change"] if found is None else found


def order(model: Model, k: int) -> str:
    """Return the 2 x 2, the shares, and where order matters."""
    audit = model["audit"]
    if audit is None:
        return absent(why(model, "audit"))
    parts = [f'<p class="lead">{esc(audit["summary"])}</p>', _square(audit), _shares(audit)]
    parts.append('<div class="pair">')
    parts.append(chart("defects", k, "Equivariance defect of each layer's output"))
    if audit["swap_distance"]:
        parts.append(chart("swaps", k, "Effect of swapping two tokens, by their distance"))
    parts.append("</div>")
    parts.append(behind(_defect_table(audit) + _sized_table(audit)))
    if audit["positions"]:
        parts.append(_blocks(audit))
    return "".join(parts)


def _square(audit: Mapping[str, Any]) -> str:
    largest = max((value_of_cell(x) or 0 for x in audit["cells"].values()), default=0) or 1
    unit = "bits" if audit["model"]["has_head"] else "relative change"

    def one(name: str) -> str:
        reading = audit["cells"].get(name)
        if reading is None:
            return (
                f'<td class="cell">–<small>{esc(audit["not_ablatable"].get(name, ""))}</small></td>'
            )
        value = value_of_cell(reading) or 0.0
        own = " own" if name == audit["model"]["own_cell"] else ""
        note = "as it is, " if own else ""
        return (
            f'<td class="cell{own}" data-v="{value!r}" style="--v:{value / largest:.3f}">'
            f"{number(value)}<small>{note}{number(reading['low'])} to {number(reading['high'])}"
            "</small></td>"
        )

    return (
        f'<table class="square"><caption>Order sensitivity, {unit}, with 95 % intervals</caption>'
        '<thead><tr><td></td><th scope="col">causal mask</th><th scope="col">full attention</th>'
        f'</tr></thead><tbody><tr><th scope="row">{esc(audit["model"]["encoding"])} encoding</th>'
        f'{one("pe_causal")}{one("pe_full")}</tr><tr><th scope="row">without it</th>'
        f"{one('nope_causal')}{one('nope_full')}</tr></tbody></table>"
    )


def _shares(audit: Mapping[str, Any]) -> str:
    shares = audit["shapley"]
    if shares is None:
        return '<p class="note">No shares: not every cell of the 2 × 2 can be reached.</p>'
    encoding = min(max(shares["encoding"], 0.0), 1.0)
    label = f"{shares['encoding']:.0%} from the encoding, {shares['mask']:.0%} from the mask"
    return (
        f'<p class="shares" role="img" aria-label="{esc(label)}">'
        f'<i style="--share:{encoding:.3f}"></i></p><p class="note">{esc(label)}</p>'
    )


def _defect_table(audit: Mapping[str, Any]) -> str:
    names = [(key, name) for key, name in CELLS if audit["cells"].get(key) is not None]
    rows = [
        ["embedding" if x["layer"] == 0 else f"layer {x['layer'] - 1}",
         *(x["defects"].get(key) for key, _ in names)]
        for x in audit["layers"]
    ]  # fmt: skip
    return table("Equivariance defect", ("output of", *(name for _, name in names)), rows)


def _sized_table(audit: Mapping[str, Any]) -> str:
    rows = [
        [f"{what} {x['size']}", x["mean"], x["low"], x["high"]]
        for key, what in (("swap_distance", "swap at distance"), ("windows", "within windows of"),
                          ("ngrams", "n-grams kept of"))
        for x in audit[key]
    ]  # fmt: skip
    return table("Effects by size", ("change", "mean", "low", "high"), rows) if rows else ""


def _blocks(audit: Mapping[str, Any]) -> str:
    rows = [[f"{b['first']} to {b['last']}", b["largest_swap"], b["shuffled"], b["free"]]
            for b in audit["blocks"]]  # fmt: skip
    if not rows:
        return '<p class="note">No block of neighbours can be reordered freely.</p>'
    columns = ("positions", "largest swap", "whole block shuffled", "free as a whole")
    return table("Blocks within which each swap of neighbours does little", columns, rows)


def slices(model: Model, k: int) -> str:
    """Return what the state above a token knows of that token and of its place."""
    audit = model["audit"]
    if audit is None:
        return absent(why(model, "audit"))
    found = audit["slices"]
    if found is None or not found["variants"]:
        return absent("; ".join(found["notes"]) if found else "slices were not asked for")
    own = found["variants"][0]["layers"]
    named = own[0]["identity"] is not None
    rows = [
        ["embedding" if x["layer"] == 0 else f"layer {x['layer'] - 1}",
         *((x[p]["score"] if x[p] else None) for p in ("identity", "previous", "following")),
         x["identity"]["control"] if x["identity"] else None,
         x["position"]["score"], x["adjacency"]]
        for x in own
    ]  # fmt: skip
    columns = ("state", "its token", "previous", "next", "control", "place, R²", "adjacent")
    what = "Token k decoded from the state at k" if named else "Place k decoded (R²)"
    return (
        '<div class="pair">'
        + chart("identity", k, f"{what}, with residual connections taken out")
        + chart("places", k, "The model as it is: what a state tells, by layer")
        + "</div>"
        + behind(table("Probes of the model as it is", columns, rows))
        + items(found["notes"], "note")
    )


# --- how sure are we -------------------------------------------------------------------------


def trust(model: Model, k: int) -> str:
    """Return checks, flags, seeds, hashes and costs."""
    parts = []
    rows: list[list[Any]] = []
    trace, audit, scan = model["trace"], model["audit"], model["scan"]
    if trace is not None:
        check = trace["self_check"]
        rows.append(
            [
                "hooks leave the output as it is",
                check["max_logit_difference"],
                "0",
                check["max_logit_difference"] == 0,
            ]
        )
        rows.append(["heads sum to attention (relative)", check["max_head_sum_error"], "rounding",
                     None])  # fmt: skip
    if audit is not None:
        for check in audit["checks"]:
            must = f"{'at most' if check['must'] == 'stay' else 'more than'} {check['limit']:g}"
            rows.append([check["name"], check["value"], must, check["passed"]])
    if rows:
        parts.append(table("Self-checks", ("check", "value", "must be", "passed"), rows))
    flags = [*(scan["flags"] if scan else ()), *(trace["flags"] if trace else ()),
             *(audit["notes"] if audit else ())]  # fmt: skip
    if flags:
        parts.append("<h4>What to keep in mind</h4>" + items(dict.fromkeys(flags), "plain"))
    gone = [f"{part}: {reason}" for part, reason in model["missing"].items()]
    if gone:
        parts.append("<h4>What is missing</h4>" + items(gone, "plain"))
    parts.append(_provenance(scan, trace, audit))
    return "".join(parts)


def _provenance(scan: Any, trace: Any, audit: Any) -> str:  # noqa: ANN401
    rows: list[list[Any]] = []
    for name, result in (("scan", scan), ("trace", trace), ("audit", audit)):
        if result is not None:
            rows.append([f"{name}, seconds", result["cost"]["seconds"]])
    if trace is not None:
        rows.append(["tokens traced", trace["n_tokens"]])
        rows += [[name, version] for name, version in trace["self_check"]["versions"].items()]
    if audit is not None:
        rows += [[f"audit, {name}", audit["settings"][name]] for name in
                 ("samples", "permutations", "length", "seed", "source")]  # fmt: skip
    if scan is not None:
        rows += [[f"SHA-256 of the header of {f}", h] for f, h in scan["model"]["sha256"].items()]
    return behind(table("Where the numbers come from", ("what", "value"), rows), "Provenance")
