"""How much an audit measures."""

from dataclasses import dataclass

from orbitlens.running.inputs import NORMALISE


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """How many inputs, how long, under how many permutations, and what is read off them."""

    samples: int = 32
    permutations: int = 16  # of each input, dealt out where a model is asked at several places
    length: int | None = None  # tokens of a sample; 32 or what the model takes if not given
    seed: int = 0
    details: bool = True  # distances, windows, n-grams, positions and blocks
    slices: bool | None = None  # None: of models that are not too large for it
    normalise: tuple[float, float] = NORMALISE  # mean and deviation for images of whole numbers
