"""Tables of absolute positions: which rows were trained, how alike neighbours are, what repeats.

Enters: a table, one row a position. Leaves: a `TableReading`. A trained table is smooth: a row is
like the one before it. Rows that training never met are as they were drawn, and like no other.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

SMOOTH = 9  # rows of the running median of likeness
TRAINED = 0.5  # of the median likeness of neighbours: rows below it are not like trained ones
LIKE = 0.2  # least median likeness for which an end can be told
FEWEST_ROWS = 16
PERIODIC = 0.5  # share of the variance over positions in one frequency and its neighbours


@dataclass(frozen=True, kw_only=True)
class TableReading:
    """A table of absolute positions."""

    n_rows: int
    neighbours: float  # median cosine of a row and the next, around the table's mean
    trained: int | None  # rows from the first on that look trained; None: cannot tell
    norm_first: float  # median norm of rows that look trained, or of all
    norm_rest: float | None  # of the others
    rank: float  # directions that the rows use: participation ratio of the spectrum
    period: float | None  # tokens a turn of the strongest frequency, where it dominates
    period_share: float  # of the variance over positions, in that frequency
    variance_share: float | None  # position's part of the variance of what layer 0 reads


def table_reading(
    table: Float[Tensor, "position d_embedding"],
    tokens: Float[Tensor, "any d_embedding"] | None = None,
) -> TableReading:
    """Read a table; with the table of tokens, also how much of layer 0 is position."""
    likeness = neighbour_cosines(table - table.mean(dim=0))
    trained = _trained_rows(neighbour_cosines(table))  # the mean of some rows would be in all
    norms = table.norm(dim=1)
    used = table if trained is None else table[:trained]
    period, share = _strongest(used)
    return TableReading(
        n_rows=len(table),
        neighbours=float(likeness.median()) if len(likeness) else 0.0,
        trained=trained,
        norm_first=float(norms[: trained or len(norms)].median()),
        norm_rest=float(norms[trained:].median()) if trained and trained < len(norms) else None,
        rank=_participation(used),
        period=period if share >= PERIODIC else None,
        period_share=share,
        variance_share=None if tokens is None else _variance_share(used, tokens),
    )


def neighbour_cosines(
    table: Float[Tensor, "position d_embedding"],
) -> Float[Tensor, " any"]:
    """Return the cosine of every row with the next."""
    unit = table / table.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return (unit[1:] * unit[:-1]).sum(dim=1)


def _trained_rows(likeness: Float[Tensor, " any"]) -> int | None:
    """Return how many rows from the first on are like their neighbours."""
    if len(likeness) < FEWEST_ROWS:
        return None
    width = min(SMOOTH, len(likeness) // 2)
    windows = likeness.unfold(0, width, 1).median(dim=1).values
    usual = float(windows[: max(1, len(windows) // 4)].median())
    if usual < LIKE:
        return None
    below = (windows < TRAINED * usual).nonzero()[:, 0]
    if not len(below):
        return len(likeness) + 1
    first = int(below[0])
    after = windows[first:]
    if float((after < TRAINED * usual).double().mean()) < 0.9:  # it comes back: no end
        return len(likeness) + 1
    return first + width // 2 + 1


def _participation(table: Float[Tensor, "position d_embedding"]) -> float:
    squares = torch.linalg.svdvals(table - table.mean(dim=0)).square()
    return float(squares.sum().square() / squares.square().sum().clamp(min=1e-30))


def _strongest(table: Float[Tensor, "position d_embedding"]) -> tuple[float | None, float]:
    """Return the period with most of the variance over positions, and its share with its sides."""
    n = len(table)
    if n < FEWEST_ROWS:
        return None, 0.0
    power = torch.fft.rfft(table - table.mean(dim=0), dim=0).abs().square().sum(dim=1)
    power[:2] = 0.0  # the mean, and what turns once: a drift
    total = float(power.sum())
    if total <= 0:
        return None, 0.0
    top = int(power.argmax())
    share = float(power[top - 1 : top + 2].sum()) / total
    return n / top, share


def _variance_share(
    positions: Float[Tensor, "position d_embedding"], tokens: Float[Tensor, "any d_embedding"]
) -> float:
    of_positions, of_tokens = (float(t.double().var(dim=0).sum()) for t in (positions, tokens))
    return of_positions / max(of_positions + of_tokens, 1e-30)
