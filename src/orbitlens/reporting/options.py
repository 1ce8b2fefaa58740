"""How much a report computes."""

from dataclasses import dataclass

from orbitlens.order.options import AuditOptions
from orbitlens.running.inputs import NORMALISE


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """How much a report computes, and how images are normalised."""

    normalise: tuple[float, float] = NORMALISE
    max_tokens: int = 2048
    context: int = 64
    samples: int = AuditOptions.samples
    permutations: int = AuditOptions.permutations
    flows: int | None = None  # heads whose flow is simulated; None: as many as there is room for
    flow_growth: float = 4.0  # flows run until the fastest token could have grown by e to this
    controls: int = 3  # runs of each control, the untrained twin and shuffled tokens; 0: none
    cut: bool = False  # whether heads and layers are taken out one at a time, which costs passes
    seed: int = 0
