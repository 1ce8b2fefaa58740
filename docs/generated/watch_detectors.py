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
    "by hand": "**Watch**, thresholds by hand (1.0; 0.98)",
    "score_bound": "**Watch**: score bound",
    "-effective_rank": "**Watch**: effective rank, small",
    "freezing or collapse": "**Watch**: either of these two",
    "risk": "**Watch**: readings joined",
}


def _stored(name: str = "watch-detectors.json") -> dict[str, Any]:
    stored: dict[str, Any] = json.loads((DOCS / name).read_text(encoding="utf-8"))
    return stored


def runs() -> str:
    """Return how the runs ended, by half."""
    halves = _stored()["halves"]
    titles = {"learn": "learned on", "judge": "judged"}
    rows = [[titles[h], *(counts.get(k, 0) for k in KINDS)] for h, counts in halves.items()]
    return table(("Half", "went well", "broke", "stalled"), rows)


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
    """Return every detector on the judged half, with frozen thresholds."""
    head = ("Detector", "AUROC in time", "at one rate", "at all", "warned in time")
    head += ("median steps ahead", "false alarms")
    rows = [
        [
            NAMES.get(name, f"**Watch**: {name}"),
            _with_interval(row["auroc"]),
            _number(row["auroc_at_one_rate"]["value"], 2),
            _number(row["auroc_ever"]["value"], 2),
            _percent(row["in_time"]),
            _with_interval(row["ahead"], 0),
            _percent(row["false_alarms"]),
        ]
        for name, row in _stored()["detectors"].items()
    ]
    return table(head, rows)


def by_kind() -> str:
    """Return AUROC and share warned of in time, by how runs failed."""
    rows = []
    for name, row in _stored()["detectors"].items():
        parts = [row["by kind"][kind] for kind in KINDS[1:]]
        cells = [_number(part["auroc"], 2) for part in parts]
        cells += [f"{part['in_time']:.0%}" for part in parts]
        rows.append([NAMES.get(name, name), *cells])
    head = ("Detector", "AUROC, broke", "AUROC, stalled", "in time, broke", "in time, stalled")
    return table(head, rows)


def rules() -> str:
    """Return what single alarms do, at thresholds by hand and at learned ones."""
    titles = {"freezing held 2": "`freezing` from", "cosine held 2": "C from"}
    titles["-effective_rank held 2"] = "effective rank up to"
    rows = []
    for key, row in _stored()["rules"].items():
        name, origin = key.rsplit(", ", 1)
        limit = f"{titles[name]} {abs(row['threshold']):.4g}, {origin}"
        cells = [f"{row['in_time']:.0%}", _number(row["ahead"], 0), f"{row['false_alarms']:.0%}"]
        rows.append([limit, *cells])
    return table(("Alarm", "warned in time", "median steps ahead", "false alarms"), rows)


def at_equal() -> str:
    """Return all detectors at thresholds that give equal false alarms on the judged runs."""
    rows = []
    for name, whole in _stored()["detectors"].items():
        row = whole["at equal false alarms"]
        rows.append([NAMES.get(name, name), f"{row['in_time']:.0%}", _number(row["ahead"], 0)])
    return table(("At 5 % false alarms", "warned in time", "median steps ahead"), rows)


def first_alarms() -> str:
    """Return which of the two alarms came first, in the judged half and in planted runs."""
    order = ("freezing", "collapse", "both at once", "neither")
    stored = _stored()
    rows = [
        [f"judged, {kind}", *(stored["first"][kind].get(o, 0) for o in order)] for kind in KINDS
    ]
    planted: dict[str, Counter[str]] = {}
    for run in stored["planted"]:
        planted.setdefault(run["planted"], Counter())[run["first"]] += 1
    rows += [[f"planted: {name}", *(c[o] for o in order)] for name, c in planted.items()]
    return table(("Runs", "freezing first", "collapse first", "at once", "neither"), rows)


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
