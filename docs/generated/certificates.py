"""Tables of docs/certificates.md: what each theorem survives, as stated and as tried."""

from dataclasses import replace

import torch
from generated.tables import table

from orbitlens.families.architecture import Position
from orbitlens.heads.head import make_head
from orbitlens.theory.certificates import THEOREMS
from orbitlens.theory.plain import head_certificates


def theorems() -> str:
    """Return each theorem with the masks and encodings it survives."""
    rows = []
    for name, theorem in THEOREMS.items():
        rotary = "survives" if theorem.survives_rotary else "voids it"
        rows.append((name, theorem.statement.replace("|", r"\|"), theorem.survives_mask, rotary))
    return table(["", "Says that", "Masks", "Rotary encoding"], rows)


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
