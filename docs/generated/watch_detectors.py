"""Tables of docs/watch.md, from the stored experiment of benchmarks/watch_detectors.py."""

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from generated.tables import table

DOCS = Path(__file__).resolve().parents[1]
KINDS = ("well", "broke", "stalled")
NAMES = {
    "peak rate": "peak learning rate (known before)",
    "loss": "loss, from step 40 on",
    "loss rise": "loss above its best",
    "loss spike": "loss spike, in deviations of the last 20",
    "gradient": "gradient norm",
    "gradient spike": "gradient norm over the median of the last 20",
    "-gradient": "gradient norm, small",
    "max_logit": "largest attention logit",
    "spectral_norm": "spectral norm",
    "sign_alignment": "alignment of signs (arXiv 2510.04202, our reading)",
    "sign_alignment held 4": "the same, in four readings in a row",
    "sign_alignment_max held 4": "the same, largest over maps",
    "risk of loss and gradient": "loss and gradient joined",
    "any alarm": "**Watch**: any of the three alarms",
    "collapse": "**Watch**: `collapse` (rank of directions)",
    "gathering": "**Watch**: `gathering` (rise of C)",
    "freezing": "**Watch**: `freezing` (size of scores)",
    "-effective_rank": "reading: effective rank, lengths of tokens included",
    "score_bound": "reading: score bound",
    "score_top": "reading: spectral norm of score maps",
    "risk": "readings joined (no alarm)",
}


def _stored(name: str = "watch-detectors.json") -> dict[str, Any]:
    stored: dict[str, Any] = json.loads((DOCS / name).read_text(encoding="utf-8"))
    return stored


def runs() -> str:
    """Return how the runs ended, by group."""
    groups = _stored()["groups"]
    titles = {"learn": "learned on", "judge": "judged"}
    rows = [[titles[g], *(counts.get(k, 0) for k in KINDS)] for g, counts in groups.items()]
    return table(("Runs", "went well", "broke", "stalled"), rows)


def _rows_of() -> list[tuple[str, Mapping[str, Any]]]:
    """Return title and numbers of all detectors, in the order of `NAMES`."""
    found = _stored()["detectors"]
    return [(title, found[name]) for name, title in NAMES.items()]


def _number(value: float | None, digits: int) -> str:
    return "never" if value is None else f"{value:.{digits}f}"


def _with_interval(found: Mapping[str, Any], digits: int = 2) -> str:
    low, high = (_number(v, digits) for v in found["interval"])
    value = _number(found["value"], digits)
    return value if value == low == high else f"{value} ({low} to {high})"


def _percent(found: Mapping[str, Any]) -> str:
    value = found["value"]
    return "–" if value is None else f"{value:.0%}"


def detectors() -> str:
    """Return every detector on the judged runs, with frozen thresholds."""
    head = ("Detector", "AUROC in time", "at one rate", "at all", "warned in time")
    head += ("median steps ahead", "false alarms")
    rows = [
        [
            title,
            _with_interval(row["auroc"]),
            _number(row["auroc_at_one_rate"]["value"], 2),
            _number(row["auroc_ever"]["value"], 2),
            _percent(row["in_time"]),
            _with_interval(row["ahead"], 0),
            _percent(row["false_alarms"]),
        ]
        for title, row in _rows_of()
    ]
    return table(head, rows)


def by_kind() -> str:
    """Return AUROC and share warned of in time, by how runs failed."""
    rows = []
    for title, row in _rows_of():
        parts = [row["by kind"][kind] for kind in KINDS[1:]]
        cells = [_number(part["auroc"], 2) for part in parts]
        cells += [f"{part['in_time']:.0%}" for part in parts]
        rows.append([title, *cells])
    head = ("Detector", "AUROC, broke", "AUROC, stalled", "in time, broke", "in time, stalled")
    return table(head, rows)


def alarms() -> str:
    """Return how often each kind of alarm was right and wrong, with intervals."""
    rows = []
    for kind, row in _stored()["alarms"].items():
        limit = f"{row['threshold']:g}" if "threshold" in row else ""
        name = f"`{kind}`" if limit else kind
        counts = ((row["in_time"], row["failed"]), (row["ever"], row["failed"]))
        shares = [_share(*count) for count in (*counts, (row["false"], row["sound"]))]
        broke = row["broke"]
        rows.append([name, limit, *shares, f"{broke['in_time']} of {broke['failed']}"])
    head = ("Alarm", "threshold", "in time", "at any time", "in sound runs", "broke, in time")
    return table(head, rows)


def _share(k: int, n: int) -> str:
    low, high = wilson(k, n)
    return f"{k} of {n}: {k / n:.0%} ({low:.0%} to {high:.0%})"


def at_equal() -> str:
    """Return all detectors at thresholds that give equal false alarms on the judged runs."""
    rows = []
    for title, whole in _rows_of():
        row = whole["at equal false alarms"]
        cells = [f"{row['in_time']:.0%}", _number(row["ahead"], 0), f"{row['false_alarms']:.0%}"]
        rows.append([title, *cells])
    return table(("Detector", "warned in time", "median steps ahead", "false alarms"), rows)


def first_alarms() -> str:
    """Return which alarm came first in planted runs."""
    order = ("freezing", "collapse", "neither")
    planted: dict[str, Counter[str]] = {}
    for run in _stored()["planted"]:
        planted.setdefault(run["planted"], Counter())[run["first"]] += 1
    rows = [
        [name, *(c[o] for o in order), sum(c.values()) - sum(c[o] for o in order)]
        for name, c in planted.items()
    ]
    return table(("Planted", "freezing first", "collapse first", "neither", "other"), rows)


def wilson(k: int, n: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of `k` in `n` (Wilson)."""
    z = 1.96
    centre, spread = k + z * z / 2, z * math.sqrt(k * (n - k) / n + z * z / 4)
    return (centre - spread) / (n + z * z), (centre + spread) / (n + z * z)


def acts() -> str:
    """Return the share of runs with an alarm that ended well, by what was done before it."""
    ends: dict[str, list[bool]] = {}
    for run in _stored()["acts"]:
        for arm, kind in run["ends"].items():
            ends.setdefault(arm, []).append(kind == "well")
    rows = []
    for arm, saved in ends.items():
        low, high = wilson(sum(saved), len(saved))
        share = f"{sum(saved) / len(saved):.0%} ({low:.0%} to {high:.0%})"
        rows.append([arm, len(saved), sum(saved), share])
    return table(("From the state before the alarm", "runs", "ended well", "share"), rows)
