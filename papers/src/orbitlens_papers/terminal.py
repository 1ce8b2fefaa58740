"""What `orbitlens study` shows on a terminal: studies, claims with their numbers, verdicts.

Enters: studies and results. Leaves: renderables, at most 80 columns wide where that is the width.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from orbitlens_papers.claim import Finding, Kind
    from orbitlens_papers.estimate import Estimate
    from orbitlens_papers.result import StudyResult
    from orbitlens_papers.study import Study
    from orbitlens_papers.verifying import LeftOut, Verification

STYLES = {
    "holds": "green",
    "fails": "red",
    "not seen at this scale": "yellow",
    "undecided": "yellow",
    "not testable here": "dim",
    "reproduced": "green",
    "seen at this scale": "green",
    "construction checked": "green",
    "partly reproduced": "yellow",
    "seen in part at this scale": "yellow",
    "construction partly checked": "yellow",
    "not reproduced": "red",
}


def _grid(*, widths: Iterable[int | None]) -> Table:
    table = Table(box=None, padding=(0, 1), show_header=False, width=80, expand=True)
    for width in widths:
        table.add_column(width=width, ratio=None if width else 1, no_wrap=width is not None)
    return table


def list_view(studies: "Iterable[Study]") -> "Iterator[RenderableType]":
    """Yield a line a study."""
    shown = list(studies)
    table = _grid(widths=(max(len(study.name) for study in shown), 18, None))
    for study in shown:
        n_core = sum(claim.rank == "core" for claim in study.claims)
        words = f"{study.question} {len(study.claims)} claims, {n_core} of them core."
        if study.is_long:
            words += f" Up to {study.minutes} minutes."
        if study.missing:
            words += f" Needs {' and '.join(study.missing)}, not installed."
        table.add_row(Text(study.name, style="bold"), Text(study.paper), Text(words))
    yield table


def show_view(study: "Study") -> "Iterator[RenderableType]":
    """Yield all claims of a study with what is measured, thresholds and reasons."""
    yield Text(f"{study.title} ({study.paper})", style="bold")
    yield Text(f"{study.question}\n")
    for claim in study.claims:
        table = _grid(widths=(10, None))
        ranked = Text(f"{claim.key} {claim.rank}", style="bold")
        table.add_row(ranked, Text(claim.text, style="bold"))
        rows = [
            ("measured", claim.measured),
            ("holds if", f"{claim.wanted}: {claim.why}"),
            ("control", claim.control or "none"),
            ("source", claim.source),
            ("protocol", f"{claim.kind.value}, {claim.protocol.value}"),
        ]
        for name, words in rows:
            table.add_row(Text(name, style="dim"), Text(words))
        yield table
    for name, instead in study.data_files.items():
        yield Text(f"\nData: {name} in the folder of --data; without it {instead}.")
    yield Text(f"\nNot shown by a pass: {study.gap}")


def number(value: float) -> str:
    """Return a number in a few characters.

    >>> number(0.98765), number(1.2e-15), number(-0.5)
    ('0.988', '1.2e-15', '-0.5')
    """
    return f"{value:.3g}"


def interval(estimate: "Estimate") -> str:
    """Return a number with its interval, in brackets where there is one."""
    if estimate.low == estimate.high or math.isinf(estimate.high - estimate.low):
        return number(estimate.value)
    return f"{number(estimate.value)} [{number(estimate.low)}, {number(estimate.high)}]"


def result_view(
    result: "StudyResult", *, given: "Mapping[Kind, str]"
) -> "Iterator[RenderableType]":
    """Yield the findings and the verdict, with what that takes as given."""
    from orbitlens_papers.claim import PaperVerdict

    yield Text(f"{result.title} ({result.paper})", style="bold")
    yield Text(f"scale {result.scale}, {result.seeds} seeds, {result.seconds:.0f} s of measuring\n")
    for finding in result.findings:
        yield _finding(finding)
    for kind, verdict in result.verdicts.items():
        line = Text(f"\nverdict on the paper's {kind.value}: ", style="bold")
        line.append(verdict.value, style=STYLES.get(verdict.value, ""))
        if kind in given and verdict is not PaperVerdict.NONE:
            line.append(f", given {given[kind]}", style="not bold")
        yield line
    if result.ours:
        counted = ", ".join(f"{n} {verdict.value}" for verdict, n in result.ours.items())
        yield Text(f"claims of our own: {counted}")
    for source in result.sources:
        yield Text(f"data: {source}", style="dim")
    if result.reused:
        yield Text(f"{result.reused} of {len(result.findings)} claims were measured before", "dim")
    yield Text(f"Not shown by a pass: {result.gap}", style="dim")


def _finding(finding: "Finding") -> Table:
    table = _grid(widths=(10, None))
    claim, verdict = finding.claim, finding.verdict.value
    head = Text(verdict, style=f"bold {STYLES.get(verdict, '')}")
    head.append(f"  {claim.text}", style="not bold default")
    table.add_row(Text(f"{claim.key} {claim.rank}"), head)
    result, control = finding.outcome.result, finding.outcome.control
    if result is not None:
        shown = interval(claim.shown(result))
        words = f"{shown}, wanted {claim.wanted} ({result.how}; {claim.protocol.value})"
        table.add_row("", Text(words, style="dim"))
    if control is not None:
        failed = "failed, as it must" if finding.control_failed else "DID NOT FAIL"
        style = "dim" if finding.control_failed else "bold red"
        table.add_row("", Text(f"control: {interval(control)}, {failed}: {claim.control}", style))
    for name, why in finding.outcome.data.get("missing", {}).items():
        table.add_row("", Text(f"left out: {name}: {why}", style="yellow"))
    if finding.reason:
        table.add_row("", Text(finding.reason, style="yellow"))
    return table


def verification_view(found: "Verification | LeftOut") -> "RenderableType":
    """Return a claim's stored number and verdict beside those measured now."""
    from orbitlens_papers.verifying import LeftOut

    if isinstance(found, LeftOut):
        return Text(f"{found.study}: left out: {found.why}", style="yellow")
    table = _grid(widths=(10, None))
    claim = found.stored.claim
    word = "the same verdict" if found.agrees else "ANOTHER VERDICT"
    if found.agrees and found.same_number:
        word = "the same number"
    head = Text(word, style="bold green" if found.agrees else "bold red")
    head.append(f"  {found.study} {claim.key}: {claim.text}", style="not bold default")
    table.add_row(Text(f"{claim.key} {claim.rank}"), head)
    for name, finding in (("stored", found.stored), ("again", found.again)):
        result = finding.outcome.result
        number_of = "no number" if result is None else interval(claim.shown(result))
        words = f"{name}: {number_of}, {finding.verdict.value}, {finding.seconds:.1f} s"
        table.add_row("", Text(words, style="dim"))
    return table
