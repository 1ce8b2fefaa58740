"""Tables of docs/trace.md, from docs/trace-agreement.json (`benchmarks/agreement.py` writes it)."""

import json
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from generated.tables import table

from orbitlens.tracing import trace_result

DATA = json.loads((Path(__file__).parents[1] / "trace-agreement.json").read_text(encoding="utf-8"))
ROWS = DATA["rows"]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _listed(values: Iterable[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


SHOWN = ("plain", "frozen", "gaussian", "points", "chunks", "itself")


def agreement() -> str:
    """Return how well closures for raw distances agree with what was measured."""
    header = ["model, text", "closure", "sign, layers", "r, layers", "error", "r, heads"]
    header += ["sign, heads", "r, Σp²", "error, Σp²"]
    rows = []
    for row in ROWS:
        for name in SHOWN:
            layers, heads, sharpness = (
                row["closures"][name]["agreement"][key] for key in ("layers", "heads", "sharpness")
            )
            values = [layers["sign"], layers["pearson"], layers["mean_error"], heads["pearson"]]
            values += [heads["sign"], sharpness["pearson"], sharpness["mean_error"]]
            first = f"{row['model']}: {row['texts']}" if name == SHOWN[0] else ""
            shown = {"points": "**points**", "chunks": "chunks (resampled)"}.get(name, name)
            rows.append((first, shown, *map(_number, values)))
    return table(header, rows)


def by_layer() -> str:
    """Return measured, simulated and predicted log-changes, a line each."""
    rows = []
    for row in ROWS:
        lines = {"attention, measured": row["measured"], "simulated": row["simulated"]}
        lines["points"] = row["closures"]["points"]["layers"]
        lines |= {f"control: {name}": values for name, values in row["controls"].items()}
        first = f"{row['model']}: {row['texts']}"
        for what, values in lines.items():
            rows.append((first, what, _listed(values)))
            first = ""
    return table(["model, text", "what", "by layer"], rows)


def replay() -> str:
    """Return how far the flow of the whole stack ends from the model, and ALBERT's long run."""
    first = {row["model"]: row for row in reversed(ROWS) if row["replay"]}
    names = [name for name in dict.fromkeys(row["model"] for row in ROWS) if name in first]
    rows = []
    for name in names:
        one = first[name]["replay"][0]
        energy = first[name]["energy"][one["stack"]]
        rows.append((name, f"{one['relative_error'][-1]:.2f}", f"{one['cosine'][-1]:.2f}", energy))
    digits = {"depth": "d", "log_spread": ".2f", "cosine": ".2f", "clusters": "d", "update": ".2f"}
    beyond = [[format(x[key], form) for key, form in digits.items()] for x in DATA["albert_beyond"]]
    header = ["depth", "ln of squared pair distance", "mean cosine", "clusters (cosine 0.99)"]
    return "\n\n".join(
        [
            table(["model", "relative error", "mean cosine", "energy over depth"], rows),
            "ALBERT has one layer, which it applies 12 times. Applied again and again:",
            table([*header, "update"], beyond),
        ]
    )


def objects() -> str:
    """Return the objects of the JSON with their fields."""
    kinds = ("Trace", "LayerTrace", "AttentionTrace", "MlpTrace", "NormTrace", "HeadTrace")
    kinds += ("DirectionTrace", "HeadDirections", "DirectionReport", "DirectionAgreement")
    kinds += ("AgreementReport", "ClosureAgreement", "Agreement", "ReplayTrace", "SelfCheck")
    rows = []
    for name in kinds:
        kind = getattr(trace_result, name)
        first = kind.__doc__.strip().splitlines()[0]
        rows.append((name, first, ", ".join(f"`{field.name}`" for field in fields(kind))))
    return table(["Object", "Says", "Fields"], rows)
