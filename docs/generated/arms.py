"""Tables of docs/studies-arms.md: the arms of arXiv 2512.03058, from the runs in docs/experiments.

The orderings were fixed, and committed, before the first of these runs.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Ordering:
    """A claim about two arms: the held-out loss of `worse` exceeds that of `better`."""

    key: str
    worse: str
    better: str
    source: str
    least: float = 0.01  # nats; a hundredth would not matter to anybody


PAPER = "arXiv 2512.03058, experiments"
ORDERINGS = (
    Ordering(key="R1", worse="released-negative", better="released-positive", source=PAPER),
    Ordering(key="R2", worse="released-half", better="released-positive", source=PAPER),
    Ordering(key="R3", worse="plain", better="released-positive", source=PAPER),
    Ordering(key="D1", worse="plain", better="diagonal", source=PAPER),
    Ordering(key="T1", worse="theorem-negative", better="theorem-positive", source="ours"),
    Ordering(key="T2", worse="theorem-half", better="theorem-positive", source="ours"),
    Ordering(key="T3", worse="plain", better="theorem-positive", source="ours"),
    Ordering(key="C1", worse="plain", better="centred-fixed", source="ours"),
    Ordering(key="C2", worse="plain", better="centred", source="ours"),
    Ordering(
        key="P1", worse="averaging", better="plain", source="ours: positive control", least=0.1
    ),
)
