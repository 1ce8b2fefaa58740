"""How many heads and layers of real models have a certificate that speaks of normalised tokens.

    python benchmarks/certified.py --json docs/certified.json stories260K-llama-hf orbit-nano-rotary

What a scan says: for every head N1c, N2 and N4 of its own flow, for every layer N2 and N4 of all
its heads together (docs/certificates.md). Thresholds are those of the library, fixed before the
first run: a floor of the entropy counts from 1 % of ln 128 on. Weights alone are read.
"""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from orbitlens.running.model import load
from orbitlens.scanning.api import scan
from orbitlens.theory.certificates import Certificate


def read_model(name: str) -> dict[str, object]:
    """Return how many heads and layers of a model each certificate holds for, and why not."""
    model = load(name)
    layers = scan(model).layers
    heads = [head.certificates for layer in layers for head in layer.heads]
    sums = [layer.certificates for layer in layers]
    return {
        "model": Path(name).name,
        "norm": str(model.architecture.stacks[0].norm or "behind"),
        "causal": model.architecture.stacks[0].causal,
        "n_heads": len(heads),
        "heads": _counts(heads),
        "n_layers": len(layers),
        "layers": _counts(sums),
        "missing": dict(_missing([*heads, *sums]).most_common()),
    }


def _counts(owners: Sequence[Sequence[Certificate]]) -> dict[str, int]:
    counts = Counter(c.name for owner in owners for c in owner if c.holds)
    counts["any"] = sum(any(c.holds for c in owner) for owner in owners)
    return dict(sorted(counts.items()))


def _missing(owners: Sequence[Sequence[Certificate]]) -> Counter[str]:
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
