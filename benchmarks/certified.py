"""How many heads and layers of real models have a certificate that speaks of normalised tokens.

    python benchmarks/certified.py --json docs/certified.json stories260K-llama-hf orbit-nano-rotary

For every head N1c, N2 and N4 of its own flow, for every layer N2 and N4 of all its heads together
(docs/certificates.md). Thresholds are those of the library, fixed before the first run: a floor of
the entropy counts from 1 % of ln 128 on. Weights alone are read.
"""

import argparse
import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from orbitlens.heads.layers import AttentionLayer
from orbitlens.running.model import load
from orbitlens.theory.certificates import Certificate
from orbitlens.theory.maps import HeadMaps
from orbitlens.theory.normalised import (
    CONTEXT,
    normalised_head_certificates,
    normalised_layer_certificates,
    sharpness_statement,
)
from orbitlens.theory.sharpness import score_spread


def read_layer(layer: AttentionLayer) -> tuple[list[list[Certificate]], list[Certificate]]:
    """Return the certificates of each head, and of the layer."""
    d = layer.stack.d_model
    length = None if layer.stack.norm is None else math.sqrt(d)
    total, size, shift = np.zeros((d, d)), 0.0, layer.b_o.clone()
    heads, spreads = [], []
    for head in layer:
        maps = HeadMaps.of(head)
        heads.append(list(normalised_head_certificates(head, maps, length=length)))
        total += (maps.out @ maps.value.T).numpy()
        size += (maps.out.norm() * maps.value.norm()).item()
        shift += head.value_shift
        bound = None if length is None else score_spread
        spreads.append(bound and bound(head, maps, length=length, n_tokens=CONTEXT))
    still = not bool(shift.any())
    whole = normalised_layer_certificates(
        [layer.head(0)], total, scale=size, length=length, still=still
    )
    return heads, [*whole, sharpness_statement(spreads, CONTEXT)]


def read_model(name: str) -> dict[str, object]:
    """Return how many heads and layers of a model each certificate holds for, and why not."""
    heads: list[list[Certificate]] = []
    layers: list[list[Certificate]] = []
    model = load(name)
    for layer in model.layers():
        of_heads, of_layer = read_layer(layer)
        heads += of_heads
        layers.append(of_layer)
    return {
        "model": Path(name).name,
        "norm": str(model.architecture.stacks[0].norm or "behind"),
        "causal": model.architecture.stacks[0].causal,
        "n_heads": len(heads),
        "heads": _counts(heads),
        "n_layers": len(layers),
        "layers": _counts(layers),
        "missing": dict(_missing([*heads, *layers]).most_common()),
    }


def _counts(owners: list[list[Certificate]]) -> dict[str, int]:
    counts = Counter(c.name for owner in owners for c in owner if c.holds)
    counts["any"] = sum(any(c.holds for c in owner) for owner in owners)
    return dict(sorted(counts.items()))


def _missing(owners: list[list[Certificate]]) -> Counter[str]:
    """Return the first hypothesis that fails, of each certificate that does not hold."""
    return Counter(
        f"{c.name}: {next(h.name for h in c.hypotheses if not h.holds)}"
        for owner in owners
        for c in owner
        if not c.holds
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = [read_model(name) for name in given.models]
    given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
