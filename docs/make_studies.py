"""Write the pages of the studies, and the README's table of verdicts, from stored results.

    python docs/make_studies.py FOLDER    # keep the default-scale results of FOLDER, draw, write
    python docs/make_studies.py           # write pages and table anew from what is kept
    python docs/make_studies.py --draw    # and draw every figure anew
    python docs/make_studies.py --check   # exit 1 if a page or the table is not up to date

FOLDER is what `orbitlens study run all --out FOLDER` filled. What `study run NAME --claim KEY` left
there is put into the stored result, whose other claims then name the run that they are from.
Results are in docs/results, figures in docs/img/studies. Nothing on the pages is typed: numbers,
verdicts and reasons are the results', words are those of the claims.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from orbitlens.draw.figure import Figure
from orbitlens.draw.figure_png import png_of
from orbitlens.errors import InputError
from orbitlens_papers.claim import Finding, Kind, Protocol, Verdict
from orbitlens_papers.registry import STUDIES
from orbitlens_papers.result import StudyResult, merged, result_from_json
from orbitlens_papers.study import Study
from orbitlens_papers.terminal import interval

DOCS = Path(__file__).resolve().parent
RESULTS, PICTURES, README = DOCS / "results", DOCS / "img" / "studies", DOCS.parent / "README.md"
BEGIN, END = "<!-- {}: written by docs/make_studies.py -->", "<!-- end of {} -->"
MARKS = {
    Verdict.HOLDS: "**holds**",
    Verdict.FAILS: "**fails**",
    Verdict.NOT_SEEN: "not seen at this scale",
    Verdict.UNDECIDED: "undecided",
    Verdict.NOT_TESTABLE: "not testable",
}


def stored() -> list[StudyResult]:
    """Return the results that are kept, in the order of the registry and in today's words."""
    files = {name: RESULTS / f"{name}.json" for name in STUDIES}
    return [
        in_todays_words(result_from_json(json.loads(file.read_text(encoding="utf-8"))))
        for file in files.values()
        if file.is_file()
    ]


def in_todays_words(result: StudyResult) -> StudyResult:
    """Return a result whose title, gap and claims are worded as the study words them now.

    Raises:
        InputError: a claim's number is held against another threshold now; measure anew.
    """
    study = STUDIES[result.study]
    claims = {claim.key: claim for claim in study.claims}
    for finding in result.findings:
        old, new = finding.claim, claims[finding.claim.key]
        if (old.threshold, old.side, old.core) != (new.threshold, new.side, new.core):
            raise InputError(f"{result.study} {old.key}: its threshold has changed; measure anew.")
    findings = tuple(replace(f, claim=claims[f.claim.key]) for f in result.findings)
    return replace(result, title=study.title, gap=study.gap, findings=findings)


def keep(folder: Path) -> None:
    """Copy default-scale results and draw their figures."""
    RESULTS.mkdir(exist_ok=True)
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, study in STUDIES.items():
        data = _new(study, folder)
        if data is None:
            print(f"{name}: not in {folder}; the stored result stays as it is")
            continue
        text = json.dumps(shorter(data), separators=(",", ":"), ensure_ascii=False)
        (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        draw(study.figures(result_from_json(data)))


def _new(study: Study, folder: Path) -> object:
    """Return a whole result of the folder, or a part put into the stored one; None without both."""
    whole, part = (folder / f"{study.name}-default{which}.json" for which in ("", "-part"))
    if whole.is_file():
        return json.loads(whole.read_text(encoding="utf-8"))
    if not part.is_file():
        return None
    earlier, later = (
        result_from_json(json.loads(file.read_text(encoding="utf-8")))
        for file in (RESULTS / f"{study.name}.json", part)
    )
    both = in_todays_words(merged(earlier, later, [claim.key for claim in study.claims]))
    return json.loads(json.dumps(both.to_json()))  # as it is read from a file


def draw(figures: Iterable[Figure]) -> None:
    """Write figures as pictures."""
    for figure in figures:
        (PICTURES / f"{figure.name}.png").write_bytes(png_of(figure))


def shorter(value: object) -> object:
    """Return plain data with numbers of six digits: enough for a page and a picture."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [shorter(item) for item in value]
    if isinstance(value, dict):
        return {key: shorter(item) for key, item in value.items()}
    return value


# --- pages -----------------------------------------------------------------------------------


def page(result: StudyResult) -> str:
    """Return the page of one study."""
    study = STUDIES[result.study]
    proof = result.provenance
    number = result.paper.removeprefix("arXiv ")
    versions = ", ".join(f"{name} {version}" for name, version in proof.versions.items())
    lines = [
        f"# {result.title}",
        "",
        f"{study.question} A study of [{result.paper}](https://arxiv.org/abs/{number}).",
        "",
        *_verdicts(result),
        f"Read of the paper: {study.read}. Not shown by a pass: {result.gap}",
        *(
            ["", f"*At which scale*, where a claim is not tested as stated: {study.at}"]
            * bool(study.at)
        ),
        "",
        f'!!! note "Where the numbers come from"\n    Scale {result.scale}, '
        f"{result.seeds} seeds from {result.base_seed} on where a row does not say otherwise, "
        f"{proof.date}; "
        f"{result.seconds / 60:.1f} minutes of measuring, training runs that were there "
        f"before not counted; {proof.hardware}; {versions}. {_earlier(result)}"
        f"Models beside the package's own: {', '.join(result.models) or 'none'}. "
        f"{_data(result)}"
        f"`orbitlens study run {result.study}{' --data DIR' if result.sources else ''}` does it "
        "again.",
        "",
        "## Claims",
        "",
        "| | Claim | Protocol | Number | From | Wanted | Control | Verdict |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *(_row(finding) for finding in result.findings),
        "",
        "*Ours* are claims of our own theory or reading, counted apart from the paper's; *side* "
        "claims count for nothing: boundaries, stronger readings, controls of other claims, and "
        "statements of the paper that its verdict was not to rest on. Brackets are "
        "95 % intervals. A control is a variation under which the same measurement must fail; a "
        "positive control one that it must find. [What a verdict means](studies-how.md).",
        "",
        "## Figures",
        "",
    ]
    for figure in study.figures(result):
        lines += [
            f"### {figure.title}",
            "",
            f"![{figure.title}](img/studies/{figure.name}.png)",
            "",
            figure.caption,
            "",
        ]
    lines += ["## What was measured, and why against that threshold", ""]
    for finding in result.findings:
        claim = finding.claim
        lines += [
            f"**{claim.key}** {claim.text} *Source*: {claim.source}. *Protocol*: "
            f"{claim.kind.value}, {claim.protocol.value}. *Measured*: {claim.measured}. "
            f"*Holds if* {claim.wanted}: {claim.why}. *Control*: {claim.control or 'none'}."
            + (f" *Positive control*: {claim.positive}." if claim.positive else "")
            + (f" *Note*: {finding.reason}." if finding.reason else "")
            + _left_out(finding),
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"


def _earlier(result: StudyResult) -> str:
    """Say which claims are from earlier runs, and which those were."""
    keys: dict[str, list[str]] = {}
    for finding in result.findings:
        if (run := finding.origin) is not None:
            words = f"{run.seeds} seeds from {run.base_seed} on, {run.date}"
            keys.setdefault(words, []).append(finding.claim.key)
    return "".join(
        f"Claims {' '.join(own)} are from an earlier run: {words}. " for words, own in keys.items()
    )


def _data(result: StudyResult) -> str:
    return f"Data: {'; '.join(result.sources)}. " if result.sources else ""


def _left_out(finding: Finding) -> str:
    """Say what a measurement put into words itself, and which models were left out, and why."""
    data = finding.outcome.data
    note = f" *Observed*: {data['note']}." if data.get("note") else ""
    missing = data.get("missing", {})
    return note + "".join(f" *Left out*: {name}: {why}" for name, why in missing.items())


def _verdicts(result: StudyResult) -> list[str]:
    """Return the verdicts on theory and experiments, and how our own claims came out."""
    lines = []
    for kind, verdict in result.verdicts.items():
        findings = result.ranked("core", kind)
        given = _given(result, kind, findings)
        words = f"**{kind.value.capitalize()}: {verdict.value}{'' if given else '.'}**"
        counts = f" {_counts(findings)}" if findings else ""
        lines += [f"{words}{given and given + '.'}{counts}", ""]
    return [*lines, f"Claims of our own: {_counts(result.ranked('ours'))}", ""]


def _given(result: StudyResult, kind: Kind, findings: Sequence[Finding]) -> str:
    """Return what a verdict takes as given, where there is one."""
    given = STUDIES[result.study].given.get(kind)
    return f", given {given}" if given and findings else ""


def _counts(findings: Sequence[Finding]) -> str:
    """Return how many claims came out how."""
    found = [finding.verdict for finding in findings]
    words = {Verdict.HOLDS: "hold", Verdict.FAILS: "fail"}
    parts = [f"{found.count(k)} {words.get(k, k.value)}" for k in Verdict if found.count(k)]
    return f"{len(found)} claims: {', '.join(parts)}." if found else "no claims."


def _row(finding: Finding) -> str:
    claim, outcome = finding.claim, finding.outcome
    control = "–" if outcome.control is None else interval(claim.shown(outcome.control))
    if finding.control_failed is False:
        control += " **did not fail**"
    if outcome.positive is not None:
        found = "found" if finding.positive_found else "**not found**"
        control += f"; positive {interval(outcome.positive)} {found}"
    kind = claim.key if claim.rank == "core" else f"{claim.key} *{claim.rank}*"
    number, source = _number(finding)
    middle = (claim.protocol.value, number, source, claim.wanted, control)
    return line((kind, claim.text, *middle, MARKS[finding.verdict]))


def _number(finding: Finding) -> tuple[str, str]:
    """Return a finding's number with its interval, and what it was made from."""
    result = finding.outcome.result
    return ("–", "–") if result is None else (interval(finding.claim.shown(result)), result.how)


def line(cells: Sequence[str]) -> str:
    """Return a row of a table; a bar within a cell, such as that of a norm, does not end it."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


# --- the table of verdicts -------------------------------------------------------------------


def table(results: list[StudyResult], folder: str) -> str:
    """Return the verdicts on every paper: what was read, how it was tested, and with how many."""
    lines = [
        "| Paper | Read | Theory | protocol, n | Experiments | protocol, n | Ours |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for result in results:
        cells = [f"[{result.title}]({folder}studies-{result.study}.md), {result.paper}"]
        cells.append(STUDIES[result.study].read)
        for kind, verdict in result.verdicts.items():
            findings = result.ranked("core", kind)
            words = f"**{verdict.value}**{_given(result, kind, findings)}"
            cells += [_verdict_cell(findings, words), _protocol_cell(findings)]
        cells.append(_short_counts(result.ranked("ours")))
        lines.append(line(cells))
    return "\n".join(lines)


def _verdict_cell(findings: Sequence[Finding], verdict: str) -> str:
    return f"{verdict}: {_short_counts(findings)}" if findings else "–"


def _short_counts(findings: Sequence[Finding]) -> str:
    """Return the keys of claims by verdict: those that hold by number, the others by name."""
    found = {
        verdict: [f.claim.key for f in findings if f.verdict is verdict] for verdict in Verdict
    }
    parts = []
    if found[Verdict.HOLDS]:
        parts.append(f"{len(found[Verdict.HOLDS])} of {len(findings)} hold")
    others = [v for v in Verdict if v is not Verdict.HOLDS and found[v]]
    parts += [f"{' '.join(found[v])} {MARKS[v].strip('*')}" for v in others]
    return "; ".join(parts) or "–"


def _protocol_cell(findings: Sequence[Finding]) -> str:
    """Return the protocols of claims, and the smallest and largest n behind their numbers."""
    if not findings:
        return "–"
    tested = [finding for finding in findings if finding.outcome.result is not None]
    used = {finding.claim.protocol for finding in tested or findings}
    names = ", ".join(protocol.value for protocol in Protocol if protocol in used)
    sizes = [f.outcome.result.n for f in findings if f.outcome.result is not None]
    if not sizes:
        return names
    low, high = min(sizes), max(sizes)
    return f"{names}; {low}" if low == high else f"{names}; {low} to {high}"


INTRODUCTION = """# All papers side by side

Every core claim of every study and every claim of ours, with how it was tested, its number (95 %
intervals in brackets), what was wanted, and the verdict that follows; behind each paper, what even
a pass would not show. Written by `docs/make_studies.py` from the stored results. Side claims,
controls and figures are on the pages of the papers.
"""


def comparison(results: list[StudyResult]) -> str:
    """Return the page that sets all papers side by side."""
    lines = [INTRODUCTION]
    for result in results:
        lines += [
            f"## {result.title}",
            "",
            f"[{result.paper}](https://arxiv.org/abs/{result.paper.removeprefix('arXiv ')}). "
            + " ".join(part for part in _verdicts(result) if part)
            + f" [The study](studies-{result.study}.md).",
            "",
            "| | Claim | Protocol | Number | From | Wanted | Verdict |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        for finding in (*result.ranked("core"), *result.ranked("ours")):
            claim = finding.claim
            key = claim.key if claim.rank == "core" else f"{claim.key} *ours*"
            cells = (key, claim.text, claim.protocol.value, *_number(finding), claim.wanted)
            lines.append(line((*cells, MARKS[finding.verdict])))
        lines += ["", f"*Does not show*: {result.gap}", ""]
    return "\n".join(lines).rstrip() + "\n"


def data_table() -> str:
    """Return the data sets that studies look for, and what they use without them."""
    lines = ["| File | Study | Without it |", "| --- | --- | --- |"]
    lines += [
        f"| `{name}` | {study.name} | {instead} |"
        for study in STUDIES.values()
        for name, instead in study.data_files.items()
    ]
    return "\n".join(lines)


def between(text: str, name: str, content: str) -> str:
    """Return a text with what stands between the markers of that name replaced."""
    before, begin, rest = text.partition(BEGIN.format(name))
    _, end, after = rest.partition(END.format(name))
    assert begin and end, f"no markers of {name}"
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"


def wanted() -> dict[Path, str]:
    """Return every file that this script writes, with its text."""
    results = stored()
    files = {DOCS / f"studies-{result.study}.md": page(result) for result in results}
    files[DOCS / "studies-compared.md"] = comparison(results)
    index = DOCS / "studies.md"
    text = between(index.read_text(encoding="utf-8"), "studies", table(results, ""))
    files[index] = between(text, "data sets", data_table())
    files[README] = between(README.read_text(encoding="utf-8"), "studies", table(results, "docs/"))
    return files


def main() -> int:
    """Write, or check."""
    arguments = sys.argv[1:]
    if "--check" in arguments:
        old = [f.name for f, text in wanted().items() if not f.is_file() or f.read_text() != text]
        print(f"not up to date: {', '.join(old)}" if old else "all up to date")
        return 1 if old else 0
    if "--draw" in arguments:
        for result in stored():
            draw(STUDIES[result.study].figures(result))
    elif arguments:
        keep(Path(arguments[0]))
    for file, text in wanted().items():
        file.write_text(text, encoding="utf-8")
        print(f"{file.name}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
