"""Planted faults, one by one: what is said of them, the loss that shows them, and their repair.

Enters: rotary models (folders or GGUF files) and a text. Leaves: JSON, one row a model and fault:
what was said, the loss as loaded and under the best hypothesis, and how far the loss of the copy
that `positions` repaired is from that of the sound model. Faults: rows of all layers, or of the
middle one, where the other pairing has them; and, where config.json has a setting for it, a base
that is not the trained one, and a rotated layer that is left out.

    python benchmarks/positions_faults.py orbit-nano-rotary MODEL --text FILE --out FILE
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from orbitlens.encodings.api import positions
from orbitlens.encodings.options import PositionsOptions
from orbitlens.encodings.positions_result import Positions
from orbitlens.encodings.repair import write_repaired
from orbitlens.encodings.rows import row_orders
from orbitlens.files import write_result
from orbitlens.running.model import Model, load

Plant = Callable[[Path, Path], None]  # from the sound model to a new place


def converted(model: Model, layers: list[int]) -> Plant:
    """Move rows to where the other pairing has them."""

    def plant(source: Path, target: Path) -> None:
        stack = model.architecture.stacks[0]
        orders = {}
        for layer in layers:
            spec = stack.layers[layer].rotary
            assert spec is not None
            orders |= row_orders(stack, layer, spec.pairing.other, spec.d_rotary)
        write_repaired(source, target, {name: order.argsort() for name, order in orders.items()})

    return plant


def configured(change: Callable[[dict[str, Any]], object]) -> Plant:
    """Change config.json."""

    def plant(source: Path, target: Path) -> None:
        shutil.copytree(source, target)
        file = target / "config.json"
        config = json.loads(file.read_text(encoding="utf-8"))
        change(config)
        file.write_text(json.dumps(config), encoding="utf-8")

    return plant


def faults(model: Model) -> Iterator[tuple[str, Plant]]:
    """Yield the faults that can be planted into a model."""
    stack = model.architecture.stacks[0]
    turned = [k for k, layer in enumerate(stack.layers) if layer.rotary is not None]
    middle = turned[len(turned) // 2]
    yield "all layers converted", converted(model, turned)
    yield f"layer {middle} converted", converted(model, [middle])
    if not Path(model.checkpoint.path).is_dir():
        return
    config = model.checkpoint.config
    rope = next((key for key in ("rope_parameters", "rope_scaling") if config.get(key)), None)
    if "rotary_base" in config:
        yield "base 100 in the config", configured(lambda c: c.update(rotary_base=100.0))
        left = [k for k in turned if k != middle]
        named = f"layer {middle} not rotated by the config"
        yield named, configured(lambda c: c.update(rotary_layers=left))
    elif rope is not None:
        yield "base 100 in the config", configured(lambda c: c[rope].update(rope_theta=100.0))
    elif "rope_theta" in config:
        yield "base 100 in the config", configured(lambda c: c.update(rope_theta=100.0))


def rows(path: str, text: Path, options: PositionsOptions) -> Iterator[dict[str, Any]]:
    """Yield one row a fault, the sound model first."""
    model = load(path)
    source = Path(model.checkpoint.path)
    sound = positions(model, text, options=options)
    known = {"model": model.name, "text": text.name, "tokens": sound.n_tokens}
    yield known | {"fault": "none"} | _said(sound)
    for name, plant in faults(model):
        with tempfile.TemporaryDirectory() as place:
            broken, repaired = Path(place) / "broken", Path(place) / "repaired"
            plant(source, broken)
            there = broken / source.name if source.is_file() else broken
            found = positions(there, text, options=options, repair_to=repaired)
            copy = repaired / source.name if source.is_file() else repaired
            again = positions(copy, text, options=options)
        off = abs(_loss(again) - _loss(sound))
        yield known | {"fault": name} | _said(found) | {"off after repair": off}


def _said(found: Positions) -> dict[str, Any]:
    losses = [trial for trial in found.trials[1:] if trial.loss is not None]
    best = min(losses, key=lambda trial: trial.loss or 0.0)
    return {
        "disagreeing": [layer.layer for layer in found.disagreeing()],
        "unanswered": len(found.layers) - len(list(found.answered())),
        "base": None if found.repair is None else found.repair.base,
        "as loaded": _loss(found),
        "best": best.name,
        "best loss": best.loss,
    }


def _loss(found: Positions) -> float:
    loss = found.trials[0].loss
    assert loss is not None
    return loss


def main() -> None:
    """Plant, read, repair, and write what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--max-tokens", type=int, default=1024)
    parser.add_argument("--context", type=int)
    parser.add_argument("--out", type=Path, required=True, help="rows are added to those there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    asked = PositionsOptions(
        max_tokens=options.max_tokens, context=options.context, bases=(100.0, 1e4, 1e5)
    )
    found = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else []
    for path in options.models:
        for row in rows(path, options.text, asked):
            found = [r for r in found if (r["model"], r["fault"]) != (row["model"], row["fault"])]
            found.append(row)
            write_result(options.out, (json.dumps(found, indent=1) + "\n").encode())
            print(row, flush=True)


if __name__ == "__main__":
    main()
