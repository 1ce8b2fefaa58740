"""A cut in the words of other tools: mergekit's slices, llama.cpp's list of layers."""

import json
from collections.abc import Collection, Iterator
from itertools import groupby


def runs(n_layers: int, cut: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yield the stretches of layers that stay, as [first, last + 1).

    >>> list(runs(6, {2, 3}))
    [(0, 2), (4, 6)]
    """
    kept = [layer for layer in range(n_layers) if layer not in cut]
    for _, group in groupby(enumerate(kept), key=lambda pair: pair[1] - pair[0]):
        layers = [layer for _, layer in group]
        yield layers[0], layers[-1] + 1


def mergekit_slices(model: str, n_layers: int, cut: Collection[int]) -> str:
    """Return the YAML by which mergekit builds the model without some layers.

    The name is quoted as JSON has it, which YAML reads too: names of models are not to be trusted.
    """
    lines = ["slices:"]
    for first, end in runs(n_layers, cut):
        lines += [
            "  - sources:",
            f"      - model: {json.dumps(model)}",
            f"        layer_range: [{first}, {end}]",
        ]
    return "\n".join([*lines, "merge_method: passthrough", ""])
