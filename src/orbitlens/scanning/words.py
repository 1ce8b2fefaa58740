"""A scan in words: sentences built from its numbers, for a terminal and for a report."""

from collections import Counter
from collections.abc import Mapping, Sequence

from orbitlens.scanning.scan_result import HeadScan, LayerScan, Scan, Tendency


def scan_sentences(scan: Scan) -> list[str]:
    """Return what a scan says: counts of heads, layers, the strongest heads, the context."""
    counts = _counts([head for _, head in scan.heads()])
    if not counts:
        return ["No head was scanned."]
    return [
        f"Of {counts.total()} heads, {counts[Tendency.SPREADS]} spread tokens apart, "
        f"{counts[Tendency.GATHERS]} gather them, and {counts[Tendency.NEUTRAL]} do neither beyond "
        "chance (3 sigma of randomly turned maps).",
        _layers_sentence(scan.layers),
        _strongest_sentence(scan),
        *_context_sentence(scan),
    ]


def count_sentence(scan: Scan, shared: Mapping[str, Sequence[int]]) -> str:
    """Say how many heads spread and gather; those of layers that share weights count once.

    `shared` names, for each layer of a stack, the first one with the same weights.
    """
    own = [
        head
        for layer, head in scan.heads()
        if shared.get(layer.stack, range(layer.layer + 1))[layer.layer] == layer.layer
    ]
    counts = _counts(own)
    heads = f"{len(own)} heads"
    if len(own) < sum(1 for _ in scan.heads()):
        heads += f" (shared by {len(scan.layers)} layers)"
    spread = "spreads" if counts[Tendency.SPREADS] == 1 else "spread"
    return (
        f"Read from the weights alone, {counts[Tendency.SPREADS]} of {heads} {spread} tokens, "
        f"{counts[Tendency.GATHERS]} gather them, and {counts[Tendency.NEUTRAL]} are no different "
        "from randomly turned maps."
    )


def _counts(heads: Sequence[HeadScan]) -> Counter[Tendency]:
    return Counter(head.tendency for head in heads)


def _layers_sentence(layers: Sequence[LayerScan]) -> str:
    up = [layer.layer for layer in layers if layer.expansion_index > 0]
    if len(up) == len(layers):
        return "Summed over heads, every layer leans to spreading."
    if not up:
        return "Summed over heads, every layer leans to gathering."
    return (
        f"Summed over heads, {len(up)} of {len(layers)} layers lean to spreading "
        f"({number_ranges(up)}), the others to gathering."
    )


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


def _strongest_sentence(scan: Scan) -> str:
    """Name the strongest spreader and gatherer, where a head is one beyond chance."""
    heads = sorted(scan.heads(), key=lambda pair: -pair[1].expansion_index)
    spreaders = [pair for pair in heads if pair[1].tendency is Tendency.SPREADS]
    gatherers = [pair for pair in heads if pair[1].tendency is Tendency.GATHERS]
    if spreaders and gatherers:
        return (
            f"The strongest spreader is {_named(scan, spreaders[0], 'index ')}, the strongest "
            f"gatherer {_named(scan, gatherers[-1])}."
        )
    if spreaders:
        return (
            f"The strongest spreader is {_named(scan, spreaders[0], 'index ')}; no head gathers "
            f"tokens, and the smallest index is that of {_named(scan, heads[-1])}."
        )
    largest = f"the largest index is that of {_named(scan, heads[0])}"
    if gatherers:
        return (
            f"The strongest gatherer is {_named(scan, gatherers[-1], 'index ')}; no head spreads "
            f"tokens, and {largest}."
        )
    return f"Of the indices, {largest}, the smallest that of {_named(scan, heads[-1])}."


def _named(scan: Scan, pair: tuple[LayerScan, HeadScan], what: str = "") -> str:
    layer, head = pair
    place = f"{layer.stack} " if len(scan.model.stacks) > 1 else ""
    return f"{place}layer {layer.layer} head {head.head} ({what}{head.expansion_index:+.2f})"


def _context_sentence(scan: Scan) -> list[str]:
    turned = [head.rotary for _, head in scan.heads() if head.rotary is not None]
    if not turned:
        return []
    kept = sorted(reading.survival for reading in turned)
    return [
        f"In a context of {turned[0].context} tokens the rotary encoding leaves a median of "
        f"{kept[len(kept) // 2]:.0%} of a head's rates (from {kept[0]:.0%} to {kept[-1]:.0%})."
    ]
