"""Claim 2: what separable attention costs, in parameters of positions and in multiply-adds.

Enters: a bench. Leaves: outcomes. Models are built without memory (torch's meta device), parameters
are counted in them, and multiply-adds by torch's own counter while they run.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome

WIDTH, HEADS = 32, 4
N_LAYERS = 2  # one block of the paper: a layer along each axis
KINDS = {"separable": "separable", "joint": "softmax"}
EXPONENTS = {"parameters": 1.0, "multiply-adds": 3.0}  # of the height, the shape held


def counted(grid: tuple[int, int], attention: str) -> dict[str, int]:
    """Return the parameters of positions and the multiply-adds of attention for one picture."""
    from torch.utils.flop_counter import FlopCounterMode

    from orbitlens.orbit import OrbitConfig, OrbitForImageClassification

    switches: dict[str, Any] = {
        "attention": attention,
        "image_size": list(grid),
        "patch_size": 1,
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": N_LAYERS,
        "mask": "full",
        "num_labels": 2,
    }
    with torch.device("meta"):
        model = OrbitForImageClassification(OrbitConfig(**switches)).eval()
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model(pixel_values=torch.zeros(1, 1, *grid, device="meta"))
    # Scores and mixtures are the only products of batches of matrices; a multiply-add is two.
    products = counter.get_flop_counts()["Global"][torch.ops.aten.bmm]
    places = [p.numel() for name, p in model.named_parameters() if "positions" in name]
    return {"parameters": sum(places), "multiply-adds": products // 2}


def formula(grid: tuple[int, int], kind: str) -> dict[str, int]:
    """Return the same in closed form, class tokens included; d is the width.

    Separable: d (h + w + 2) and 2 d (w (h + 1)² + h (w + 1)²); joint: d (hw + 1), 4 d (hw + 1)².
    """
    h, w = grid
    if kind == "joint":
        return {"parameters": WIDTH * (h * w + 1), "multiply-adds": 4 * WIDTH * (h * w + 1) ** 2}
    pairs = w * (h + 1) ** 2 + h * (w + 1) ** 2
    return {"parameters": WIDTH * (h + w + 2), "multiply-adds": 2 * WIDTH * pairs}


def costs(bench: Bench) -> dict[str, Any]:
    """Return counts over grids of one shape, for both kinds."""

    def make() -> dict[str, Any]:
        factors = bench.pick((2, 4, 8, 16), (1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 32, 64))
        grids = [(12 * k, 16 * k) for k in factors]
        table: dict[str, Any] = {"grids": [list(grid) for grid in grids]}
        for kind, attention in KINDS.items():
            rows = [counted(grid, attention) for grid in grids]
            table[kind] = {key: [row[key] for row in rows] for key in rows[0]}
            exact = [formula(grid, kind) for grid in grids]
            table[f"{kind}, formula"] = {key: [row[key] for row in exact] for key in exact[0]}
        return table

    return bench.once("costs", make)


def slope(x: Sequence[int | float], y: Sequence[int | float]) -> float:
    """Return the slope of log y over log x, by least squares.

    >>> round(slope([1, 2, 4], [3, 12, 48]), 9)
    2.0
    """
    a, b = [math.log(v) for v in x], [math.log(v) for v in y]
    middle, level = sum(a) / len(a), sum(b) / len(b)
    top = sum((p - middle) * (q - level) for p, q in zip(a, b, strict=True))
    return top / sum((p - middle) ** 2 for p in a)


def grows_like(bench: Bench, *, what: str) -> Outcome:
    """2a, 2c: distance of the exponent from 1 or 3; control: joint attention."""
    table, wanted = costs(bench), EXPONENTS[what]
    # Small grids feel their class tokens: exponents are those of the larger ones.
    heights = [float(grid[0]) for grid in table["grids"] if grid[0] >= 24]
    slopes = {kind: slope(heights, table[kind][what][-len(heights) :]) for kind in KINDS}
    off = {kind: abs(value - wanted) for kind, value in slopes.items()}
    return Outcome(
        result=estimate.largest([off["separable"]], of="families of grids"),
        control=estimate.smallest([off["joint"]], of="families of grids"),
        data={"slopes": slopes, **table},
    )


def as_predicted(bench: Bench) -> Outcome:
    """2b: counted ratio of multiply-adds against (h + w) / 2hw; control: joint for separable."""
    table = costs(bench)
    off: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for k, (h, w) in enumerate(table["grids"]):
        if h < 24:
            continue
        joint = table["joint"]["multiply-adds"][k]
        for kind in KINDS:
            ratio = table[kind]["multiply-adds"][k] / joint
            off[kind].append(abs(ratio * 2 * h * w / (h + w) - 1))
    return Outcome(
        result=estimate.largest(off["separable"], of="grids"),
        control=estimate.smallest(off["joint"], of="grids"),
        data={"off": off["separable"]},
    )
