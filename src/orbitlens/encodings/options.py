"""What `positions` can be asked for."""

from collections.abc import Sequence
from dataclasses import dataclass

BASES = (100.0, 500.0, 1e3, 1e4, 1e5, 5e5, 1e6, 1e7)


@dataclass(frozen=True, kw_only=True)
class ReachOptions:
    """How the reach of a context is asked for."""

    trained: int | None = None  # tokens of a context in training; None: as the config says
    furthest: float = 4.0  # times that
    rows: int = 32  # short texts, and long ones, at most
    max_tokens: int = 16_384  # of short texts, and of long ones
    measure: bool = True  # run long rows too, where the text is long enough
    order: bool = True  # swap neighbours further and further back
    advise: bool = True  # try ways to stretch a rotary encoding
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class PositionsOptions:
    """How much is run, and what is tried."""

    layers: Sequence[int] | None = None  # all, if None; of every stack
    shuffles: int = 0  # of coordinates within heads, for p-values; 0: none
    bases: tuple[float, ...] = BASES  # tried where the model runs; empty: none
    context: int | None = None  # tokens of a context
    max_tokens: int = 2048
    batch: int = 8
    seed: int = 0
    reach: ReachOptions | None = None  # None: how far a context reaches is not asked
