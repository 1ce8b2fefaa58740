"""How sure are we: self-checks, what to keep in mind, what is missing, and provenance."""

from orbitlens.draw.page import esc
from orbitlens.reporting.data import ModelReport
from orbitlens.reporting.markup import Row, Table, absent, behind, items, table
from orbitlens.reporting.sections.order import CELLS
from orbitlens.reporting.sections.section import Place

SETTINGS = ("samples", "permutations", "length", "seed", "source")


def trust_section(model: ModelReport, place: Place) -> str:
    """Return checks, flags, seeds, hashes and costs."""
    parts = [_verdict(model)]
    scan, trace, audit = model.scan, model.trace, model.audit
    flags = [*(scan.flags if scan else ()), *(trace.flags if trace else ()),
             *(audit.notes if audit else ())]  # fmt: skip
    if flags:
        parts.append("<h4>What to keep in mind</h4>" + items(dict.fromkeys(flags), "plain"))
    gone = [f"{part}: {reason}" for part, reason in model.missing.items()]
    if gone:
        parts.append("<h4>What is missing</h4>" + items(gone, "plain"))
    parts.append(behind(table(provenance(model)), "Provenance: cost, seeds, versions, hashes"))
    return "".join(parts)


def _verdict(model: ModelReport) -> str:
    numbers = checks(model)
    if not numbers.rows:
        return absent("nothing was run, so nothing could be checked")
    failed = [str(row[0]) for row in numbers.rows if row[3] is False]
    passed = sum(row[3] is True for row in numbers.rows)
    text = f"{passed} self-checks passed" + (f"; failed: {', '.join(failed)}" if failed else "")
    verdict = f'<p class="verdict{" bad" if failed else ""}">{esc(text)}.</p>'
    return verdict + behind(table(numbers), "The checks, one by one")


def checks(model: ModelReport) -> Table:
    """Return the self-checks of trace and audit."""
    rows: list[Row] = []
    if model.trace is not None:
        own = model.trace.self_check
        moved = own.max_logit_difference
        rows.append(["hooks leave the output as it is", moved, "0", moved == 0])
        error = own.max_head_sum_error
        rows.append(["heads sum to attention (relative)", error, "rounding", None])
    for check in model.audit.checks if model.audit is not None else ():
        must = f"{'at most' if check.must == 'stay' else 'more than'} {check.limit:g}"
        rows.append([_in_words(check.name), check.value, must, check.passed])
    columns = ("check", "value", "must be", "passed")
    return Table(name="checks", caption="Self-checks", columns=columns, rows=rows)


def _in_words(name: str) -> str:
    """Return a check's name with the cells of the 2 x 2 in words."""
    cell, colon, rest = name.partition(":")
    if colon and cell in CELLS:
        name = f"{CELLS[cell]}:{rest}"
    for key, words in CELLS.items():
        name = name.replace(f"{key} is ", f"{words} is ")
    return name


def provenance(model: ModelReport) -> Table:
    """Return costs, seeds, versions and hashes."""
    rows: list[Row] = []
    for name, result in (("scan", model.scan), ("trace", model.trace), ("audit", model.audit)):
        if result is not None:
            rows.append([f"{name}, seconds", result.cost.seconds])
    if model.trace is not None:
        rows.append(["tokens traced", model.trace.n_tokens])
        rows += [[name, version] for name, version in model.trace.self_check.versions.items()]
    if model.audit is not None:
        rows += [[f"audit, {name}", getattr(model.audit.settings, name)] for name in SETTINGS]
    if model.scan is not None:
        hashes = model.scan.model.sha256
        rows += [[f"SHA-256 of the header of {file}", value] for file, value in hashes.items()]
    return Table(
        name="provenance", caption="Where the numbers come from", columns=("what", "value"),
        rows=rows,
    )  # fmt: skip


def tables(model: ModelReport) -> list[Table]:
    """Return the self-checks, for a CSV file."""
    return [checks(model)]
