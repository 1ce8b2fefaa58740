"""Tables of docs/certificates.md: what theorems survive, as stated and tried; and the ledger."""

import json
from dataclasses import replace
from pathlib import Path

import torch
from generated.tables import table

from orbitlens.families.architecture import Position
from orbitlens.heads.head import make_head
from orbitlens.theory.certificates import NORMALISED, THEOREMS
from orbitlens.theory.plain import head_certificates

DOCS = Path(__file__).resolve().parents[1]


def theorems() -> str:
    """Return each theorem with the masks and encodings it survives."""
    rows = []
    for name, theorem in (THEOREMS | NORMALISED).items():
        rotary = "survives" if theorem.survives_rotary else "voids it"
        says = theorem.statement.replace("|", r"\|")
        rows.append((name, says, theorem.heads, theorem.survives_mask, rotary))
    return table(["", "Says that", "Heads", "Masks", "Rotary encoding"], rows)


def certified() -> str:
    """Return how many heads and layers of real models are certified, as benchmarks/certified.py."""
    rows = []
    for row in json.loads((DOCS / "certified.json").read_text(encoding="utf-8")):
        names = ("N1c", "N2", "N4", "any")
        heads = [f"{row['heads'].get(name, 0)}" for name in names]
        layers = [f"{row['layers'].get(name, 0)}" for name in names[1:]]
        rows.append((row["model"], f"{row['n_heads']}", *heads, f"{row['n_layers']}", *layers))
    columns = ["Model", "Heads", "N1c", "N2", "N4", "any", "Layers", "N2", "N4", "any"]
    return table(columns, rows)


def ledger() -> str:
    """Return the stored ledger of `orbitlens verify`."""
    stored = json.loads((DOCS / "verify-ledger.json").read_text(encoding="utf-8"))
    rows = [
        (e["name"], f"{e['held']:,}", f"{e['checked']:,}", e["violations"], _slack(e))
        for e in stored["entries"]
    ]
    columns = ["", "Held in", "Checked", "Violations", "Smallest slack"]
    broken = sum(entry["violations"] for entry in stored["entries"])
    head = f"**{stored['n_systems']:,} systems, {broken} violations** (seed {stored['seed']})."
    return f"{head}\n\n{table(columns, rows)}"


def _slack(entry: dict[str, float | None]) -> str:
    slack = entry["smallest_slack"]
    return "–" if slack is None else f"{slack:.1e}"


def tried() -> str:
    """Return which certificates hold for W = V = I under every encoding and mask."""
    eye = torch.eye(4, dtype=torch.float64)
    plain = make_head(eye, eye, eye, eye)
    masks = {"full": {}, "causal": {"causal": True}, "full, with a window": {"window": 8}}
    rows = []
    for mask, setting in masks.items():
        positions: dict[tuple[str, ...], list[str]] = {}
        for position in Position:
            head = replace(plain, position=position, **setting)
            holds = tuple("✓" if c.holds else "–" for c in head_certificates(head))
            positions.setdefault(holds, []).append(position.value)
        rows += [(mask, ", ".join(names), *holds) for holds, names in positions.items()]
    return table(["Mask", "Positions", *THEOREMS], rows)
