"""Tables of docs/mechanisms.md, from what `benchmarks/mechanisms.py` stored in mechanisms.json."""

import json
from pathlib import Path
from typing import Any

from generated.tables import table

from orbitlens.tracing.mechanism_result import THRESHOLDS

ROWS = json.loads((Path(__file__).parents[1] / "mechanisms.json").read_text(encoding="utf-8"))[
    "rows"
]
REAL = [row for row in ROWS if row["text"] != "random tokens"]
DIGITS = {"induction": 2, "previous": 2, "saturation": 2, "margin": 1}
SHOWN = {"previous": "in front"}


def thresholds() -> str:
    """Return the thresholds of the scores."""
    return (
        ", ".join(f"{SHOWN.get(name, name)} {value:g}" for name, value in THRESHOLDS.items()) + "."
    )


def _findings(row: dict[str, Any]) -> dict[str, Any]:
    return {finding["score"]: finding for finding in row["mechanisms"]["findings"]}


def _best(finding: dict[str, Any]) -> str:
    digits = DIGITS[finding["score"]]
    best, twin = (f"{finding[key]:.{digits}f}" for key in ("best", "twin_largest"))
    return f"{best} ({finding['best_head']}), {twin}"


def _count(row: dict[str, Any], score: str, *, bold: bool) -> str:
    heads = _findings(row)[score]["heads"]
    count = f"{len(heads)} of {len(row['mechanisms']['heads'])}"
    return f"**{count}**" if bold and heads else count


def _loss_drops(row: dict[str, Any]) -> str:
    losses = [row["mechanisms"]["repetition"][key] for key in ("losses", "twin_losses")]
    drops = [one["reordered"] - one["repeated"] for one in losses]
    return ", ".join(f"{round(drop, 2) + 0.0:+.2f}" for drop in drops)  # no -0.0


def induction() -> str:
    """Return the best induction and previous-token heads of each model."""
    header = ["model", "induction: best, twin's", "heads", "loss drop, twin's"]
    rows = []
    for row in ROWS:
        scores = _findings(row)
        first = (_best(scores["induction"]), _count(row, "induction", bold=True), _loss_drops(row))
        last = (_best(scores["previous"]), _count(row, "previous", bold=True))
        rows.append((row["model"], *first, *last))
    return table([*header, "in front: best, twin's", "heads"], rows)


def _mean_share(heads: list[dict[str, Any]]) -> str:
    values = [head["margin_share"] for head in heads if head["margin_share"] is not None]
    return f"{sum(values) / len(values) if values else 0.0:.2f}"


def saturation() -> str:
    """Return saturation and margin of each model, and the control with two untrained models."""
    rows = []
    for row in ROWS:
        scores, heads = _findings(row), row["mechanisms"]["heads"]
        cells = [row["model"]]
        for score in ("saturation", "margin"):
            cells += [_best(scores[score]), _count(row, score, bold=False)]
        shares = _mean_share(heads), _mean_share([head["twin"] for head in heads])
        rows.append((*cells, ", ".join(shares)))
    header = ["model", "saturation: most, twin's", "heads", "margin: widest, twin's", "heads"]
    untrained = sum(len(x["heads"]) for row in ROWS for x in row["untrained_findings"])
    total = sum(len(row["mechanisms"]["heads"]) for row in ROWS)
    return table([*header, "share: mean, twin's"], rows) + (
        f"\n\nThe same with a second untrained model in the place of each model: {untrained} heads "
        f"above the\nthresholds, of {total} heads and all four scores."
    )


def _having(score: str) -> str:
    names = [row["model"] for row in REAL if _findings(row)[score]["heads"]]
    return f"{len(names)} of {len(REAL)}" + (f" ({', '.join(names)})" if names else "")


def in_words() -> str:
    """Return one sentence on the real models; the text below it rests on what is asserted."""
    heads = {row["model"]: _findings(row)["induction"]["heads"] for row in ROWS}
    assert heads["built by hand"] == ["1.0"]
    assert heads["built by hand, copying cut"] == []
    assert heads["trained to repeat"]
    assert all(name.startswith("1.") for name in heads["trained to repeat"])
    assert not any(heads[row["model"]] for row in REAL)
    alibi = next(row for row in REAL if row["model"] == "orbit-nano-alibi")
    assert not _findings(alibi)["saturation"]["heads"]
    for row in REAL:
        shares = [h["margin_share"] - h["twin"]["margin_share"] for h in row["mechanisms"]["heads"]]
        assert abs(sum(shares)) / len(shares) < 0.05
    return (
        f"Of the real models, {_having('induction')} have induction heads, {_having('previous')} "
        f"heads that look at the token in\nfront, {_having('saturation')} heads more saturated "
        f"than their twin, and {_having('margin')}\nheads with a wider margin."
    )


def _cell(head: dict[str, Any], score: str) -> str:
    digits, pair = DIGITS[score], (head[score], head["twin"][score])
    return ", ".join("–" if x is None else f"{round(x, digits) + 0.0:.{digits}f}" for x in pair)


def every_head() -> str:
    """Return a section a model, with the scores of all its heads."""
    header = ["head", "induction, twin's", "in front", "saturation", "margin"]
    sections = []
    for row in ROWS:
        repetition = row["mechanisms"]["repetition"]
        setting = (
            f"{row['mechanisms']['n_contexts']} contexts of {row['text']}; {repetition['n_draws']} "
            f"draws of {repetition['half']} random tokens, run twice."
        )
        rows = [
            (f"{head['layer']}.{head['head']}", *(_cell(head, score) for score in DIGITS))
            for head in row["mechanisms"]["heads"]
        ]
        parts = [f"### {row['model']}", " ".join(row["words"]), setting, table(header, rows)]
        sections.append("\n\n".join(parts))
    return "\n\n".join(sections)
