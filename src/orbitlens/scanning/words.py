"""A scan in words: sentences built from its numbers, for a terminal and for a report.

"Aligned" and "opposed" are said of the two maps of a head; "gathers" and "spreads" only of what was
measured on tokens, and always of what: of directions.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from orbitlens.results.numbers import number_ranges
from orbitlens.scanning.scan_result import HeadScan, LayerScan, Orientation, Scan, TokenEffect

CLEAR = 0.01  # change of ln(1 - C) beyond which a head is said to gather or spread directions
EFFECT_WORDS = {
    "gathers": "gathers directions",
    "spreads": "spreads directions",
    "neither": "does neither clearly",
}
PROPERTY = "That is a property of two maps; what a head does to tokens is measured on text"

Place = tuple[LayerScan, HeadScan]


def scan_summary(scan: Scan) -> str:
    """Return all sentences, with how a text is given in Python."""
    return " ".join(scan_sentences(scan, how=": scan(model, text=...) or trace(model, text)"))


def scan_sentences(scan: Scan, *, how: str = "") -> list[str]:
    """Return what a scan says: what heads did on text, if that was read; then their maps.

    `how` follows the remark that tokens are measured on text.
    """
    heads = [head for _, head in scan.heads()]
    if not heads:
        return ["No head was scanned."]
    return [
        *text_sentences(scan),
        _count_sentence(heads, f"of {len(heads)} heads"),
        *([f"{PROPERTY}{how}."] if scan.text is None else []),
        _layers_sentence(scan.layers),
        _extremes_sentence(scan),
        *_context_sentence(scan),
    ]


def count_sentence(scan: Scan, shared: Mapping[str, Sequence[int]]) -> str:
    """Say how many heads are aligned and opposed; those of layers that share weights count once.

    `shared` names, for each layer of a stack, the first one with the same weights.
    """
    own = [
        head
        for layer, head in scan.heads()
        if shared.get(layer.stack, range(layer.layer + 1))[layer.layer] == layer.layer
    ]
    heads = f"of {len(own)} heads"
    if len(own) < sum(1 for _ in scan.heads()):
        heads += f" (shared by {len(scan.layers)} layers)"
    return _count_sentence(own, heads)


# --- the maps, from weights alone ------------------------------------------------------------


def _count_sentence(heads: Sequence[HeadScan], which: str) -> str:
    counts = Counter(head.orientation for head in heads)
    return (
        f"From the weights alone: {which}, {counts[Orientation.ALIGNED]} have a value map aligned "
        f"with their score map, {counts[Orientation.OPPOSED]} one opposed to it, and "
        f"{counts[Orientation.NEUTRAL]} are neutral (within 3 sigma of randomly turned maps)."
    )


def _layers_sentence(layers: Sequence[LayerScan]) -> str:
    up = [layer.layer for layer in layers if layer.expansion_index > 0]
    if len(up) == len(layers):
        return "Summed over heads, the index is above 0 in every layer."
    if not up:
        return "Summed over heads, the index is above 0 in no layer."
    which = f"{len(up)} of {len(layers)} layers ({number_ranges(up)})"
    return f"Summed over heads, the index is above 0 in {which}."


def _extremes_sentence(scan: Scan) -> str:
    """Name the most aligned and the most opposed head, where a head is one beyond chance."""
    heads = sorted(scan.heads(), key=lambda pair: -pair[1].expansion_index)
    aligned = [pair for pair in heads if pair[1].orientation is Orientation.ALIGNED]
    opposed = [pair for pair in heads if pair[1].orientation is Orientation.OPPOSED]
    largest = (
        f"The most aligned is {_indexed(scan, aligned[0])}"
        if aligned
        else f"None is aligned: the largest index is that of {_indexed(scan, heads[0])}"
    )
    smallest = (
        f"the most opposed is {_indexed(scan, opposed[-1])}"
        if opposed
        else f"none is opposed: the smallest index is that of {_indexed(scan, heads[-1])}"
    )
    return f"{largest}; {smallest}."


def _named(scan: Scan, pair: Place) -> str:
    layer, head = pair
    place = f"{layer.stack} " if len(scan.model.stacks) > 1 else ""
    return f"{place}layer {layer.layer} head {head.head}"


def _indexed(scan: Scan, pair: Place) -> str:
    return f"{_named(scan, pair)} ({pair[1].expansion_index:+.2f})"


def _context_sentence(scan: Scan) -> list[str]:
    turned = [head.rotary for _, head in scan.heads() if head.rotary is not None]
    if not turned:
        return []
    kept = sorted(reading.survival for reading in turned)
    return [
        f"In a context of {turned[0].context} tokens the rotary encoding leaves a median of "
        f"{kept[len(kept) // 2]:.0%} of a head's rates (from {kept[0]:.0%} to {kept[-1]:.0%})."
    ]


# --- tokens, measured on text ----------------------------------------------------------------


def effect_kind(effect: TokenEffect) -> str:
    """Return a key of `EFFECT_WORDS`: what was measured of a head, where it is clear."""
    if abs(effect.log_change) <= CLEAR:
        return "neither"
    return "gathers" if effect.log_change < 0 else "spreads"


def text_sentences(scan: Scan) -> list[str]:
    """Say what heads did to the directions of a text's tokens; nothing where none was read."""
    effects = [(pair, pair[1].on_text) for pair in scan.heads() if pair[1].on_text is not None]
    if scan.text is None or not effects:
        return []
    counts = Counter(effect_kind(effect) for _, effect in effects)
    raw = sum(
        (pair[1].expansion_index > 0) == (effect.raw_log_change > 0) for pair, effect in effects
    )
    small = f"; {counts['neither']} change ln(1 − C) by {CLEAR:g} or less"
    return [
        f"Measured on {scan.text.n_tokens:,} tokens, {counts['gathers']} of {len(effects)} heads "
        f"gather directions and {counts['spreads']} spread them{small * bool(counts['neither'])}.",
        _strongest_sentence(scan, effects, scan.text.closure),
        f"The index of the weights has the sign of what a head does to raw distances in {raw} of "
        f"{len(effects)}.",
    ]


def _strongest_sentence(
    scan: Scan, effects: Sequence[tuple[Place, TokenEffect]], closure: str
) -> str:
    pair, effect = max(effects, key=lambda one: abs(one[1].log_change))
    return (
        f"The strongest, {_named(scan, pair)}, {EFFECT_WORDS[effect_kind(effect)]} "
        f"({effect.log_change:+.3f}; {closure} predicts {effect.predicted:+.3f})."
    )
