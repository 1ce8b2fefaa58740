"""Measure which regime the released arms of arXiv 2512.03058 are in; store docs/experiments.

    python docs/make_regimes.py --text TEXT [--folder FOLDER]

Layers are the lab's own (`orbit/arms.py`), rebuilt from formulas. First at initialisation, over how
wide the first weights spread and how Q starts; then through a short training. What is stored is
printed by docs/studies-regimes.md.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from make_studies import shorter
from torch import Tensor

from orbitlens.heads.head import make_head
from orbitlens.heads.refined import n_negative, released_maps
from orbitlens.lab.recipe import build_model
from orbitlens.lab.run import run_config, run_hash, task_of
from orbitlens.lab.training import train
from orbitlens.orbit import OrbitForCausalLM
from orbitlens.orbit.arms import UNIT
from orbitlens.orbit.switches import RELEASED, THEOREM
from orbitlens.running.loading import quiet_transformers
from orbitlens.theory.maps import HeadMaps

STORED = Path(__file__).resolve().parent / "experiments/regimes.json"
WIDTH, HEADS, DRAWS = 192, 3, 5  # the width and heads of the paper's image model
SPREADS = (0.02, 0.1, 0.3)


def share(matrix: Tensor) -> float:
    """Return the share of positive eigenvalues of a matrix's symmetric part."""
    values = torch.linalg.eigvalsh((matrix + matrix.mT) / 2)
    return float((values > 0).double().mean())


def read_layer(maps: tuple[Tensor, ...], out: Tensor, n_heads: int) -> dict[str, float]:
    """Return the signs of the stored matrices, of the layer's own maps and of its heads'."""
    q, k, v = maps
    inverse = torch.linalg.inv(v)
    width = len(q) // n_heads
    signs = [0, 0]
    for head in range(n_heads):
        rows = slice(head * width, (head + 1) * width)
        factors = (q[rows].T, k[rows].T, v[rows].T, out[:, rows].T)
        for side, n in enumerate(HeadMaps.of(make_head(*factors)).alignment_signs):
            signs[side] += n
    return {
        "stored": share(q @ k.T @ inverse),
        "forward": share(q.T @ k @ inverse),
        "heads": signs[0] / sum(signs),
        "score": share(q.T @ k),
        "value_norm": float(v.norm()),
    }


def mean_of(readings: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each number."""
    return {name: sum(r[name] for r in readings) / len(readings) for name in readings[0]}


def at_start(arm: str, spread: float, *, orthogonal: bool) -> dict[str, float]:
    """Return the mean reading of freshly drawn layers."""
    readings = []
    for draw in range(DRAWS):
        generator = torch.Generator().manual_seed(draw)
        drawn = torch.randn(4, WIDTH, WIDTH, generator=generator, dtype=torch.float64) * spread
        query, score, alignment, out = drawn
        query = torch.linalg.qr(query)[0] if orthogonal else query
        for free in (score, alignment):
            free.diagonal().fill_(UNIT)
        maps = released_maps(query, score, alignment, negative=n_negative(arm, WIDTH))
        readings.append(read_layer(maps, out, HEADS))
    return mean_of(readings)


def trained(arm: str, text: str, folder: Path) -> dict[str, Any]:
    """Return what a short training does: history of the log, and the last model's layers."""
    config = run_config(
        {
            "task": "text", "file": text, "context": 32, "batch": 4, "position": "sinusoidal",
            "norm": "post", "layers": 4, "width": 64, "measure": True, "steps": 300,
            "lr": 1e-3, "warmup": 100, "judged": 256, "refinement": arm,
        }
    )  # fmt: skip
    with quiet_transformers():
        result = train(config, folder)
        model = OrbitForCausalLM.from_pretrained(folder / run_hash(config) / "model")
        first = build_model(config, task_of(config))
    found: dict[str, Any] = {"loss": result.loss, "history": (result.measured or {})["history"]}
    if arm in RELEASED:
        found |= {"first": layers_of(first), "last": layers_of(model)}
    return found


@torch.no_grad()
def layers_of(model: Any) -> dict[str, float]:  # noqa: ANN401 - a model of transformers
    """Return the mean reading of a released model's layers."""
    readings = []
    for block in model.double().model.layers:
        layer = block.self_attn
        maps = released_maps(*layer.qkv_proj.weight.chunk(3), negative=layer.qkv_proj.negative)
        readings.append(read_layer(maps, layer.o_proj.weight, layer.n_heads))
    return mean_of(readings)


def main(words: list[str]) -> None:
    """Measure and store; the file is written after every part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--text", required=True)
    parser.add_argument("--folder", type=Path, default=Path("out/regimes"))
    given = parser.parse_args(words)
    kept: dict[str, Any] = {"width": WIDTH, "heads": HEADS, "draws": DRAWS, "start": []}
    for orthogonal in (True, False):
        for spread in SPREADS:
            for arm in RELEASED:
                reading = at_start(arm, spread, orthogonal=orthogonal)
                place = {"arm": arm, "spread": spread, "orthogonal": orthogonal}
                kept["start"].append(place | reading)
    for arm in ("none", *RELEASED, *THEOREM):
        kept.setdefault("trained", {})[arm] = trained(arm, given.text, given.folder)
        STORED.write_text(json.dumps(shorter(kept)) + "\n", encoding="utf-8")
        print(arm, kept["trained"][arm]["loss"], flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
