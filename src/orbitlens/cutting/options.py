"""What `cut` can be asked for."""

from dataclasses import dataclass

from orbitlens.cutting.parts import KINDS
from orbitlens.errors import InputError
from orbitlens.running.removal import PartKind


@dataclass(frozen=True, kw_only=True)
class CutOptions:
    """What is taken out, and on how much text it is measured."""

    kinds: tuple[PartKind, ...] = KINDS
    context: int | None = None  # tokens of a context
    max_tokens: int = 2048
    batch: int = 4  # contexts run at once
    # Estimate: layers cost a third of a pass each, those that clearly stay are dropped on the way.
    drop_losers: bool = False
    normalise: tuple[float, float] = (0.5, 0.5)  # mean and deviation of images' grey levels
    seed: int = 0  # of masks, and of random orders


def part_kinds(text: str) -> tuple[PartKind, ...]:
    """Return the kinds that a list names.

    Raises:
        InputError: one is not known.

    >>> part_kinds("layer,head")
    (<PartKind.LAYER: 'layer'>, <PartKind.HEAD: 'head'>)
    """
    names = [name.strip() for name in text.split(",")]
    known = [kind.value for kind in KINDS]
    for name in names:
        if name not in known:
            raise InputError(f"{name!r} is no kind of part; expected some of {', '.join(known)}.")
    return tuple(PartKind(name) for name in names)
