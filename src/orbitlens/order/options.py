"""How much an audit measures."""

from dataclasses import dataclass

from orbitlens.running.inputs import NORMALISE


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """How many inputs, how long, under how many permutations, and what is read off them."""

    samples: int = 64
    permutations: int = 64
    length: int | None = None  # tokens of a sample; 32 or what the model takes if not given
    seed: int = 0
    details: bool = True  # distances, windows, n-grams, positions and blocks
    slices: bool = True
    normalise: tuple[float, float] = NORMALISE  # mean and deviation for images of whole numbers
