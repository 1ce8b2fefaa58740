"""Table of docs/atlas.md, from the stored atlas."""

from pathlib import Path

from generated.tables import table

from orbitlens.surveying.atlas_result import Atlas

STORED = Path(__file__).resolve().parents[1] / "atlas.json"
SHOWN = {
    "family": "family", "parameters": "parameters", "layers": "layers", "heads": "heads",
    "encoding": "encoding", "rotated by weights": "rotated", "aligned": "aligned",
    "opposed": "opposed", "gathering layers": "gathering directions", "C first": "C first",
    "C last": "C last", "massive": "massive", "tokens": "tokens",
}  # fmt: skip


def summary() -> str:
    """Return what the atlas says in words."""
    return Atlas.load(STORED).summary()


def models() -> str:
    """Return one row a model."""
    rows = [
        [str(row["model"]), *(_cell(name, row[name]) for name in SHOWN)]
        for row in Atlas.load(STORED).rows()
    ]
    return table(("model", *SHOWN.values()), rows)


def _cell(name: str, value: str | int | float | None) -> str:
    if value is None:
        return "–"
    if name in {"aligned", "opposed"}:
        return f"{value:.0%}"
    if name == "parameters":
        return f"{value:,}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
