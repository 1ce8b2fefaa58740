"""The figures of the separable-attention study.

Enters: a result. Leaves: figures as data.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from orbitlens.draw.figure import (
    BLUE,
    GREY,
    INK,
    PINK,
    SKY,
    YELLOW,
    Curve,
    Figure,
    Layer,
    Level,
    Panel,
    Points,
)
from orbitlens_papers.result import StudyResult
from orbitlens_papers.separable.figures_trained import accuracy, attention, axes

KINDS = (
    ("joint", GREY, "joint"),
    ("rows", SKY, "rows alone"),
    ("columns", YELLOW, "columns alone"),
    ("separable", BLUE, "separable"),
)


def figures(result: StudyResult) -> tuple[Figure, ...]:
    """Return all figures."""
    return (symmetry(result), costs(result), accuracy(result), axes(result), attention(result))


# --- symmetry --------------------------------------------------------------------------------


def symmetry(result: StudyResult) -> Figure:
    """Draw how many permutations each model is blind to, and how far logits move."""
    census, bins = result.data("1d"), result.data("1c")["defects"]
    h, w = census["grid"]
    return Figure(
        name="separable-attention-symmetry",
        title="Which permutations of a spectrogram's bins does a model not see?",
        caption=f"Left: permutations of a grid of {h} × {w} bins that leave the logits of random "
        f"models without positions unchanged, all {census['n']:,} tried; crosses are the orders of "
        "the groups of theory. Right: largest change of logits on larger grids when columns "
        "(time), rows (frequency) or all bins are permuted, with and without the table of places "
        "along that axis; one mark a model, dotted: the threshold.",
        panels=(_census(census), _moved(result, bins)),
        height=3.8,
    )


def _census(census: Mapping[str, Any]) -> Panel:
    layers: list[Layer] = []
    sizes = [float(census["sizes"][name]) for name, _, _ in KINDS]
    for place, (name, colour, _) in enumerate(KINDS):
        counts = [float(row["blind"]) for row in census["rows"] if row["model"] == name]
        layers.append(Points(x=[float(place)] * len(counts), y=counts, colour=colour, size=11.0))
    layers.append(
        Points(
            x=[float(place) for place in range(len(KINDS))],
            y=sizes,
            colour=INK,
            symbol="x",
            size=6.0,
            label="theory",
        )
    )
    return Panel(
        layers=layers,
        title="permutations without effect",
        y_label="number",
        y_log=True,
        y_range=(min(sizes) / 2, max(sizes) * 2),
        y_ticks=[(size, f"{size:,.0f}") for size in sizes],
        x_range=(-0.5, len(KINDS) - 0.5),
        x_ticks=[(float(place), label) for place, (_, _, label) in enumerate(KINDS)],
    )


def _moved(result: StudyResult, bins: Mapping[str, Sequence[float]]) -> Panel:
    time, pitch = result.data("1a"), result.data("1b")
    rows: tuple[tuple[str, Sequence[float], str], ...] = (
        ("time,\nno table", time["without"], BLUE),
        ("time,\ntable", time["with"], SKY),
        ("frequency,\nno table", pitch["without"], BLUE),
        ("frequency,\ntable", pitch["with"], SKY),
        ("all bins,\nseparable", bins["separable, all"], PINK),
        ("all bins,\njoint", bins["joint, all"], GREY),
    )
    layers: list[Layer] = []
    for place, (_, values, colour) in enumerate(rows):
        shown = [max(float(value), 1e-17) for value in values]
        layers.append(Points(x=[float(place)] * len(shown), y=shown, colour=colour, size=7.0))
    layers.append(Level(at=1e-9))
    return Panel(
        layers=layers,
        title="what a permutation changes",
        y_label="relative change of logits",
        y_log=True,
        x_range=(-0.6, len(rows) - 0.4),
        x_ticks=[(float(place), name) for place, (name, _, _) in enumerate(rows)],
        legend=False,
    )


# --- cost ------------------------------------------------------------------------------------


def costs(result: StudyResult) -> Figure:
    """Draw parameters of positions and multiply-adds of attention by input size."""
    data = result.data("2a")
    slopes, more = data["slopes"], result.data("2c")["slopes"]
    return Figure(
        name="separable-attention-cost",
        title="What attention over bins costs as the spectrogram grows",
        caption="One block: two layers of width 32 over single bins, 3 : 4 as the shape of all "
        "inputs. Marks are counted in the models, lines are the closed forms; exponents of the "
        "height are fitted from 24 on.",
        panels=(
            _growth(data, "parameters", slopes, "parameters of positions"),
            _growth(data, "multiply-adds", more, "multiply-adds of attention"),
        ),
        height=3.6,
    )


def _growth(data: Mapping[str, Any], what: str, slopes: dict[str, float], title: str) -> Panel:
    heights = [float(grid[0]) for grid in data["grids"]]
    layers: list[Layer] = []
    for kind, colour in (("joint", GREY), ("separable", BLUE)):
        exact = [float(value) for value in data[f"{kind}, formula"][what]]
        counted = [float(value) for value in data[kind][what]]
        label = f"{kind}: exponent {slopes[kind]:.2f}"
        layers.append(Curve(x=heights, y=exact, colour=colour, label=label))
        layers.append(Points(x=heights, y=counted, colour=colour, size=7.0))
    return Panel(
        layers=layers,
        title=title,
        x_label="height of the input, bins",
        y_label="number",
        x_log=True,
        y_log=True,
        x_ticks=[(height, str(int(height))) for height in heights],
    )
