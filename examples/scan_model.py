"""List the heads of a model that spread and gather most.

    python examples/scan_model.py [MODEL] [COUNT]

MODEL is a folder, a .gguf file or a hub name; without one, a tiny model is made on the spot.
"""

import sys
import tempfile
from pathlib import Path

import orbitlens
from orbitlens.cli.demo import write_demo_model


def show_extremes(model, count=5):
    scan = orbitlens.scan(orbitlens.load_checkpoint(model))
    ranked = sorted(scan.heads(), key=lambda pair: pair[1].expansion_index)
    print(f"{scan.model.family}: {len(ranked)} heads, expansion index and alignment in sigmas")
    for title, pairs in (("gather", ranked[:count]), ("spread", ranked[: -count - 1 : -1])):
        print(f"\nheads that {title} most")
        for layer, head in pairs:
            place = f"{layer.stack} {layer.layer}.{head.head}"
            print(f"  {place:12} {head.expansion_index:+.3f}  {head.alignment_sigmas:+7.1f}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    count = int(arguments[1]) if len(arguments) > 1 else 5
    if arguments:
        show_extremes(arguments[0], count)
    else:
        with tempfile.TemporaryDirectory() as folder:
            show_extremes(write_demo_model(Path(folder) / "demo-model"), count)
