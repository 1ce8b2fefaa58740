"""Tables of docs/studies-regimes.md, from docs/experiments/regimes.json."""

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from generated.tables import table

STORED = Path(__file__).parents[1] / "experiments/regimes.json"
INTENDED = {"released-positive": "1", "released-half": "0.5", "released-negative": "0"}


def _stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8"))
    return found


def start() -> str:
    """Return the share of positive directions of fresh layers, by start."""
    data = _stored()
    rows = []
    for each in data["start"]:
        query = "orthogonal" if each["orthogonal"] else f"normal, {each['spread']:g}"
        shares = [f"{each[name]:.2f}" for name in ("stored", "forward", "heads", "score")]
        cells = (query, f"{each['spread']:g}", each["arm"], INTENDED[each["arm"]], *shares)
        rows.append((*cells, f"{each['value_norm']:.0f}"))
    header = (
        "Q starts",
        "deviation",
        "arm",
        "intended",
        "sym(QKᵀV⁻¹), stored",
        "sym(QᵀKV⁻¹), applied",
    )
    ends = ("heads with their output map", "applied QᵀK", "‖V‖")
    return table((*header, *ends), rows)


def training() -> str:
    """Return signs, sizes and directions before and after a short training."""
    rows = []
    for arm, run in _stored()["trained"].items():
        history = run["history"]
        for look in (history[0], history[-1]):
            noted = look["watched"]
            last = look is history[-1]
            layer = run.get("last" if last else "first")
            shares = [f"{layer[n]:.2f}" if layer else "–" for n in ("stored", "forward")]
            rows.append(
                (
                    arm.replace("none", "plain"),
                    str(look["step"]),
                    *shares,
                    f"{fmean(noted['signs']['positive']):.2f}",
                    f"{fmean(noted['signs']['value_norm']):.1f}",
                    " ".join(f"{c:.2f}" for c in noted["directions"]),
                    f"{run['loss']:.3f}" if last else "",
                )
            )
    header = ("arm", "step", "stored", "applied, layer", "applied, heads", "‖V‖ of a head")
    return table((*header, "C by layer", "held-out loss"), rows)
