"""What `positions` can be asked for."""

from dataclasses import dataclass

BASES = (100.0, 500.0, 1e3, 1e4, 1e5, 5e5, 1e6, 1e7)


@dataclass(frozen=True, kw_only=True)
class PositionsOptions:
    """How much is run, and what is tried."""

    shuffles: int = 0  # of coordinates within heads, for p-values; 0: none
    bases: tuple[float, ...] = BASES  # tried where the model runs; empty: none
    context: int | None = None  # tokens of a context
    max_tokens: int = 2048
    batch: int = 8
    seed: int = 0
