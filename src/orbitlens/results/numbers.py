"""Numbers as sentences write them."""

from collections.abc import Sequence


def number_ranges(numbers: Sequence[int], dash: str = "-") -> str:
    """Write whole numbers with their runs drawn together.

    >>> number_ranges([0, 1, 2, 5])
    '0-2, 5'
    """
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}{dash}{p[-1]}" for p in parts)
