"""Report JSON -> sense of order, slices, and how sure all of it is.

Enters: one model of a report's JSON and its number. Leaves: HTML; a missing result says why.
"""

from collections.abc import Mapping
from typing import Any

from orbitlens.reporting import tables
from orbitlens.reporting.markup import (
    Chart,
    Key,
    Model,
    Table,
    absent,
    behind,
    chart,
    esc,
    items,
    number,
    table,
    why,
)

HUES = {"pe_causal": "ink", "pe_full": "spread", "nope_causal": "gather", "nope_full": "muted"}


# --- sense of order, and slices --------------------------------------------------------------


def order(model: Model, k: int) -> str:
    """Return the 2 x 2, the shares, and where order matters."""
    audit = model["audit"]
    if audit is None:
        return absent(why(model, "audit"))
    unit = "bits" if audit["model"]["has_head"] else "relative change"
    charts = [
        Chart(kind="defects", model=k, title="Equivariance defect of each layer's output",
              table=tables.defects(model), keys=_cell_keys(audit)),
    ]  # fmt: skip
    if audit["swap_distance"]:
        charts.append(
            Chart(kind="swaps", model=k, title=f"Swapping two tokens, by their distance ({unit})",
                  table=tables.swaps(model), keys=(Key("mean and 95 % interval", "spread"),))
        )  # fmt: skip
    if audit["positions"]:
        charts.append(
            Chart(kind="neighbours", model=k, table=tables.neighbours(model),
                  title=f"Swapping neighbours, by position ({unit})",
                  keys=(Key("swap", "spread", "bar"), Key("inside a block", "third", "bar")))
        )  # fmt: skip
    return (
        f'<p class="lead">{esc(audit["summary"])}</p>{square(audit)}{shares(audit)}'
        f'<div class="pair">{"".join(chart(one) for one in charts)}</div>'
        f"{_blocks(model)}{_not_measured(audit)}"
    )


def _not_measured(audit: Mapping[str, Any]) -> str:
    parts = {"swap_distance": "swaps by distance", "positions": "swaps of neighbours"}
    gone = [name for key, name in parts.items() if not audit[key]]
    if not gone:
        return ""
    return f'<p class="note">Not measured on these inputs: {esc(", ".join(gone))}.</p>'


def _cell_keys(audit: Mapping[str, Any]) -> tuple[Key, ...]:
    own = audit["model"]["own_cell"]
    return tuple(
        Key(name + (" (as it is)" if cell == own else ""), HUES[cell],
            "line" if cell == own else "dash")
        for cell, name in tables.CELLS.items()
        if audit["cells"].get(cell) is not None
    )  # fmt: skip


def square(audit: Mapping[str, Any]) -> str:
    """Return the 2 x 2 of encoding and mask."""
    largest = max((tables.value_of_cell(x) or 0 for x in audit["cells"].values()), default=0) or 1
    unit = "bits" if audit["model"]["has_head"] else "relative change"

    def one(name: str) -> str:
        reading = audit["cells"].get(name)
        if reading is None:
            return (
                f'<td class="cell">–<small>{esc(audit["not_ablatable"].get(name, ""))}</small></td>'
            )
        value = tables.value_of_cell(reading) or 0.0
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


def shares(audit: Mapping[str, Any]) -> str:
    """Return what encoding and mask each bring, as a bar and in words."""
    found = audit["shapley"]
    if found is None:
        return '<p class="note">No shares: not every cell of the 2 × 2 can be reached.</p>'
    encoding = min(max(found["encoding"], 0.0), 1.0)
    label = f"{found['encoding']:.0%} from the encoding, {found['mask']:.0%} from the mask"
    return (
        f'<p class="shares" role="img" aria-label="{esc(label)}">'
        f'<i style="--share:{encoding:.3f}"></i></p><p class="note">{esc(label)}</p>'
    )


def _blocks(model: Model) -> str:
    if not model["audit"]["positions"]:
        return ""
    found = tables.blocks(model)
    if not found.rows:
        return '<p class="note">No block of neighbours can be reordered freely.</p>'
    return table(found)


def slices(model: Model, k: int) -> str:
    """Return what the state above a token knows of that token and of its place."""
    audit = model["audit"]
    if audit is None:
        return absent(why(model, "audit"))
    found = audit["slices"]
    if found is None or not found["variants"]:
        return absent("; ".join(found["notes"]) if found else "slices were not asked for")
    named = found["variants"][0]["layers"][0]["identity"] is not None
    what = "Token k decoded from the state at k" if named else "Place k decoded (R²)"
    tokens = (
        Key("its token", "gather"),
        Key("previous", "third", "dash"),
        Key("next", "muted", "dots"),
    )
    maps = Chart(kind="identity", model=k, table=tables.identity(model),
                 title=f"{what}, with residual connections taken out",
                 keys=(Key("0", "zero", "bar"), Key("1", "gather", "bar")))  # fmt: skip
    probes = Chart(kind="places", model=k, table=tables.probes(model),
                   title="The model as it is: what a state tells, by layer",
                   keys=(*(tokens if named else ()), Key("place, R²", "spread")))  # fmt: skip
    return (
        f'<div class="pair">{chart(maps)}{chart(probes)}</div>'
        + (
            ""
            if named
            else '<p class="note">Patches have no names, so only places are decoded.</p>'
        )
        + items(found["notes"], "note")
    )


# --- how sure are we -------------------------------------------------------------------------


def trust(model: Model, k: int) -> str:
    """Return checks, flags, seeds, hashes and costs."""
    parts = []
    trace, audit, scan = model["trace"], model["audit"], model["scan"]
    found = tables.checks(model)
    if found.rows:
        failed = [str(row[0]) for row in found.rows if row[3] is False]
        passed = sum(row[3] is True for row in found.rows)
        said = f"{passed} self-checks passed" + (f"; failed: {', '.join(failed)}" if failed else "")
        parts.append(f'<p class="verdict{" bad" if failed else ""}">{esc(said)}.</p>')
        parts.append(behind(table(found), "The checks, one by one"))
    else:
        parts.append(absent("nothing was run, so nothing could be checked"))
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
    found = Table(
        name="provenance", caption="Where the numbers come from", columns=("what", "value"),
        rows=rows,
    )  # fmt: skip
    return behind(table(found), "Provenance: cost, seeds, versions, hashes")
