"""How a scan is made, beyond which model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orbitlens._types import Covariance


@dataclass(frozen=True, kw_only=True)
class ScanOptions:
    """How to scan, beyond which model."""

    layers: Sequence[int] | None = None  # all, if None
    context: int | None = None  # tokens; adds what a rotary encoding leaves of each rate
    covariances: Mapping[tuple[str, int], Covariance] | None = None  # (stack, layer) -> covariance
    exact: bool = False  # whole spectra of layers however wide
    device: str = "cpu"
