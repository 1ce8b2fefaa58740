"""Claim 1: which permutations of a spectrogram's bins a separable model cannot see.

Enters: a bench. Leaves: outcomes, measured with the permutation tests of `orbitlens.order` on
models of the lab in float64, whose weights are random.

A layer within columns commutes with every permutation that sends columns to columns, a layer within
rows with those that send rows to rows. Both at once are the products of a permutation of rows and
one of columns: S_h x S_w, with h! w! elements in place of (hw)!.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from orbitlens.order.defect import permutation_defect
from orbitlens.order.permutations import Group, all_permutations, rows_and_columns
from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome

ORDERS = ("columns-rows", "rows-columns")
N_LABELS = 5
SAME = 1e-9  # relative change of logits up to which they count as the same
SPREAD = 0.3  # of random weights: large enough for every mechanism to show
CHUNK = 5040  # permutations at once


def random_model(
    generator: torch.Generator,
    grid: tuple[int, int],
    **switches: Any,  # noqa: ANN401 - of the lab
) -> Any:  # noqa: ANN401 - of transformers
    """Return a model over single bins, in float64, every weight random."""
    from orbitlens.orbit import OrbitConfig, OrbitForImageClassification

    config = OrbitConfig(
        **{
            "image_size": list(grid),
            "patch_size": 1,
            "hidden_size": 16,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "num_hidden_layers": 4,
            "mask": "full",
            "num_labels": N_LABELS,
            **switches,
        }
    )
    model = OrbitForImageClassification(config).double().eval()
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        is_gain = "norm" in name and name.endswith("weight")
        parameter.data = SPREAD * noise + (1.0 if is_gain else 0.0)
    return model.requires_grad_(False)


def silence_positions(model: Any, axis: str) -> Any:  # noqa: ANN401 - of transformers
    """Set the tables of places along columns, or along rows, to zero; return the model."""
    for name, parameter in model.named_parameters():
        if f"line_positions.{axis}." in name:
            parameter.data.zero_()
    return model


def logits_of(model: Any, pictures: Float[Tensor, "some height width"]) -> Tensor:  # noqa: ANN401
    """Return the logits of pictures."""
    logits: Tensor = model(pixel_values=pictures[:, None]).logits
    return logits


def time_defect(model: Any, shown: Float[Tensor, "height width"], seed: int) -> float:  # noqa: ANN401
    """Return how far logits move when the columns of a picture are permuted."""
    return _defect(lambda columns: logits_of(model, columns.T[None]), shown.T, None, seed)


def frequency_defect(model: Any, shown: Float[Tensor, "height width"], seed: int) -> float:  # noqa: ANN401
    """Return how far logits move when the rows of a picture are permuted."""
    return _defect(lambda rows: logits_of(model, rows[None]), shown, None, seed)


def bin_defect(
    model: Any,  # noqa: ANN401
    shown: Float[Tensor, "height width"],
    group: Group,
    seed: int,
) -> float:
    """Return how far logits move when the bins of a picture are permuted by a group."""
    shape = shown.shape
    return _defect(
        lambda bins: logits_of(model, bins.view(1, *shape)), shown.flatten(), group, seed
    )


def _defect(f: Callable[[Tensor], Tensor], items: Tensor, group: Group | None, seed: int) -> float:
    generator = torch.Generator().manual_seed(seed)
    chosen = group or all_permutations(len(items))
    return permutation_defect(f, items, chosen, n_trials=8, generator=generator)


def _draws(bench: Bench, what: str) -> list[tuple[int, torch.Generator]]:
    return [(seed, bench.generator(f"{what} of groups", seed)) for seed in bench.seeds]


def _shown(generator: torch.Generator, grid: tuple[int, int]) -> Tensor:
    return torch.randn(grid, generator=generator, dtype=torch.float64)


# --- claims 1a and 1b: one axis at a time ----------------------------------------------------


def blind_to_order(bench: Bench, *, axis: str) -> Outcome:
    """1a, 1b: change under permutations of columns, or rows, without places along that axis."""
    # Places within rows are places in time: without them the columns of a picture may be permuted.
    defect = time_defect if axis == "rows" else frequency_defect
    grid = bench.pick((6, 8), (12, 16), (24, 32))
    without, with_places = [], []
    for seed, generator in _draws(bench, axis):
        for order in ORDERS:
            model = random_model(generator, grid, attention="separable", axes=order)
            shown = _shown(generator, grid)
            with_places.append(defect(model, shown, seed))
            without.append(defect(silence_positions(model, axis), shown, seed))
    return Outcome(
        result=estimate.largest(without, of="models"),
        control=estimate.smallest(with_places, of="models"),
        data={"without": without, "with": with_places, "grid": list(grid)},
    )


# --- claim 1c: not all permutations ----------------------------------------------------------


def sees_the_grid(bench: Bench) -> Outcome:
    """1c: change under all permutations of bins, no positions; control: joint attention."""
    grid = bench.pick((6, 8), (12, 16), (24, 32))
    everything, products = all_permutations(math.prod(grid)), rows_and_columns(*grid)
    changes: dict[str, list[float]] = {"separable, all": [], "separable, products": []}
    changes |= {"joint, all": [], "joint, products": []}
    for seed, generator in _draws(bench, "bins"):
        for name, attention in (("separable", "separable"), ("joint", "softmax")):
            model = random_model(generator, grid, attention=attention, position="none")
            shown = _shown(generator, grid)
            changes[f"{name}, all"].append(bin_defect(model, shown, everything, seed))
            changes[f"{name}, products"].append(bin_defect(model, shown, products, seed))
    return Outcome(
        result=estimate.smallest(changes["separable, all"], of="models"),
        control=estimate.largest(changes["joint, all"], of="models"),
        data={"defects": changes, "grid": list(grid)},
    )


# --- claims 1d and 1e: exactly which ---------------------------------------------------------


def keeps(
    permutations: Int[Tensor, "count bins"], grid: tuple[int, int], axis: str
) -> Bool[Tensor, " count"]:
    """Say which permutations send every column to a column, or every row to a row."""
    n_columns = grid[1]
    line = permutations % n_columns if axis == "columns" else permutations // n_columns
    lines = line.view(-1, *grid)
    if axis == "columns":
        lines = lines.transpose(1, 2)
    return (lines == lines[:, :, :1]).all(dim=2).all(dim=1)


def expected_group(
    permutations: Int[Tensor, "count bins"], grid: tuple[int, int], name: str
) -> Bool[Tensor, " count"]:
    """Say which permutations a model is blind to by theory, positions taken away."""
    columns, rows = (keeps(permutations, grid, axis) for axis in ("columns", "rows"))
    by_name = {
        "separable": columns & rows,
        "columns": columns,
        "rows": rows,
        "joint": torch.ones(len(permutations), dtype=torch.bool),
    }
    return by_name[name]


def group_sizes(grid: tuple[int, int]) -> dict[str, int]:
    """Return the orders of these groups in closed form."""
    h, w = grid
    return {
        "separable": math.factorial(h) * math.factorial(w),
        "columns": math.factorial(h) ** w * math.factorial(w),
        "rows": math.factorial(w) ** h * math.factorial(h),
        "joint": math.factorial(h * w),
    }


SWITCHES: dict[str, dict[str, str]] = {
    "separable": {"attention": "separable"},
    "columns": {"attention": "separable", "axes": "columns"},
    "rows": {"attention": "separable", "axes": "rows"},
    "joint": {"attention": "softmax"},
}


def changes(
    model: Any,  # noqa: ANN401
    shown: Float[Tensor, "height width"],
    permutations: Int[Tensor, "count bins"],
) -> Float[Tensor, " count"]:
    """Return the relative change of logits under each permutation."""
    own = logits_of(model, shown[None])
    parts = [
        (logits_of(model, shown.flatten()[part].view(-1, *shown.shape)) - own).norm(dim=1)
        for part in permutations.split(CHUNK)
    ]
    return torch.cat(parts) / own.norm()


def census(bench: Bench) -> dict[str, Any]:
    """Return, for each kind of model, what every permutation of a small grid does to it."""

    def make() -> dict[str, Any]:
        grid = bench.pick((2, 3), (2, 4), (3, 3))
        every = torch.tensor(list(itertools.permutations(range(math.prod(grid)))))
        seeds = list(bench.seeds)[: bench.pick(1, 2, 2)]
        rows = [_counted(bench, every, grid, name, seed) for name in SWITCHES for seed in seeds]
        return {"grid": list(grid), "sizes": group_sizes(grid), "n": len(every), "rows": rows}

    return bench.once("census", make)


def _counted(
    bench: Bench, every: Tensor, grid: tuple[int, int], name: str, seed: int
) -> dict[str, Any]:
    generator = bench.generator(f"census of {name}", seed)
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "position": "none"}
    model = random_model(generator, grid, **small, **SWITCHES[name])
    moved = changes(model, _shown(generator, grid), every)
    blind = moved < SAME
    outside = moved[~blind]
    return {
        "model": name,
        "blind": int(blind.sum()),
        "wrong": {
            kind: int((blind != expected_group(every, grid, kind)).sum()) for kind in SWITCHES
        },
        "least": float(outside.min()) if len(outside) else None,
        "rounding": float(moved[blind].max()),
    }


def _wrong(rows: Sequence[dict[str, Any]], models: Sequence[str], kind: str | None) -> list[float]:
    chosen = [row for row in rows if row["model"] in models]
    return [float(row["wrong"][kind or row["model"]]) for row in chosen]


def exactly_products(bench: Bench) -> Outcome:
    """1d: permutations wrongly predicted, of all there are; control: joint attention."""
    counts = census(bench)
    return Outcome(
        result=estimate.largest(_wrong(counts["rows"], ["separable"], None), of="models"),
        control=estimate.smallest(_wrong(counts["rows"], ["joint"], "separable"), of="models"),
        data=counts,
    )


def exactly_lines(bench: Bench) -> Outcome:
    """1e: the same for models along one axis; control: one along both."""
    rows = census(bench)["rows"]
    both = _wrong(rows, ["separable"], "columns") + _wrong(rows, ["separable"], "rows")
    return Outcome(
        result=estimate.largest(_wrong(rows, ["columns", "rows"], None), of="models"),
        control=estimate.smallest(both, of="models"),
    )


blind_to_time = partial(blind_to_order, axis="rows")
blind_to_frequency = partial(blind_to_order, axis="columns")
