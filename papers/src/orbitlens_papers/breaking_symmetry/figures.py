"""The figures of the breaking-symmetry study.

Enters: a result. Leaves: figures as data; what was not testable is left out.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from orbitlens.draw.figure import (
    BLUE,
    GREEN,
    ORANGE,
    PINK,
    Curve,
    Figure,
    Heat,
    Layer,
    Level,
    Panel,
    band,
)
from orbitlens_papers.breaking_symmetry.figures_trained import trained_figures
from orbitlens_papers.result import StudyResult

RESIDUALS = {"all": BLUE, "attention": GREEN, "mlp": PINK, "none": ORANGE}
NAMES = {
    "all": "all residuals",
    "attention": "attention's only",
    "mlp": "MLPs' only",
    "none": "no residuals",
}


def figures(result: StudyResult) -> tuple[Figure, ...]:
    """Return all figures that the result has data for."""
    return (two_by_two(result), positions(result), identity(result), *trained_figures(result))


# --- the 2 x 2 -------------------------------------------------------------------------------


def two_by_two(result: StudyResult) -> Figure:
    """Draw by how much order moves a prediction, by encoding, mask and depth."""
    rows = result.data("1a")["table"]
    encodings = list(dict.fromkeys(row["position"] for row in rows))
    columns = [("full", 1), ("full", 2), ("causal", 1), ("causal", 2)]
    values, texts = [], []
    for position in encodings:
        found = [
            next(
                row["largest"]
                for row in rows
                if (row["position"], row["mask"], row["layers"]) == (position, *column)
            )
            for column in columns
        ]
        values.append([max(-16.0, math.log10(max(value, 1e-16))) for value in found])
        texts.append([_size(value) for value in found])
    heat = Heat(
        values=values,
        x_names=[_column(*column) for column in columns],
        y_names=["no encoding" if name == "none" else name for name in encodings],
        texts=texts,
        limits=(-16.0, 0.5),
    )
    return Figure(
        name="breaking-symmetry-2x2",
        title="What breaks the symmetry: encodings, masks and depth",
        caption="Largest relative change of the prediction when tokens 1 … n − 1 are permuted; "
        "random weights, float64. 1e-15 is rounding: order is invisible. Right: the smallest "
        "counterexample. Three tokens that are mere numbers, W = V = 1, layers x + softmax(xxᵀ)x: "
        "only two causal layers tell (1, 2, ½) from (2, 1, ½). Two tokens have no order to "
        "change, one layer sees a set.",
        panels=(
            Panel(layers=[heat], title="order sensitivity of random models"),
            _counterexample(result),
        ),
        widths=(1.7, 1.0),
        height=3.7,
    )


def _column(mask: str, n_layers: int) -> str:
    return f"{mask}, {n_layers} layer{'s' if n_layers > 1 else ''}"


def _size(value: float) -> str:
    return f"{value:.2f}" if value > 1e-3 else f"{value:.0e}"


def _counterexample(result: StudyResult) -> Panel:
    found = result.data("2b")["counterexample"]["rows"]
    values = [[abs(row["output"] - row["swapped"])] for row in found]
    texts = [[f"{row['output']:.4f}\n{row['swapped']:.4f}"] for row in found]
    names = [_column(row["mask"], row["layers"]) for row in found]
    heat = Heat(
        values=values,
        x_names=["last token out"],
        y_names=names,
        texts=texts,
        limits=(0.0, 0.1),
    )
    return Panel(layers=[heat], title="(1, 2, ½) above, (2, 1, ½) below")


# --- position --------------------------------------------------------------------------------


def positions(result: StudyResult) -> Figure:
    """Draw what random models know of position, by layer."""
    readings = result.data("4a")["readings"]
    panels = []
    for what, title, label, chance in (
        ("place", "position, by a linear probe", "held-out R²", 0.0),
        ("adjacency", "neighbours, by similarity", "how often the neighbour is closer", 0.5),
    ):
        layers: list[Layer] = [Level(at=chance, label="chance")]
        for mask, colour in (("causal", ORANGE), ("full", BLUE)):
            layers.append(_band([row[what] for row in readings[mask]], colour, f"{mask} mask"))
        panels.append(
            Panel(
                layers=layers,
                title=title,
                x_label="layer (0: the embedding)",
                y_label=label,
                x_ticks=_layers(len(readings["causal"][0][what])),
            )
        )
    return Figure(
        name="breaking-symmetry-position",
        title="What states know of position, before any training",
        caption="Untrained models without position encoding on independent random tokens; bands "
        "span the seeds. The first causal layer averages over more tokens the further back it "
        "looks, which a linear probe can read; with full attention there is nothing to read.",
        panels=panels,
        height=3.5,
    )


def _layers(n: int) -> list[tuple[float, str]]:
    return [(float(k), str(k)) for k in range(n)]


def _band(rows: Sequence[Sequence[float]], colour: str, label: str) -> Curve:
    columns = list(zip(*rows, strict=True))
    return band([float(k) for k in range(len(columns))], columns, colour=colour, label=label)


# --- identity --------------------------------------------------------------------------------


def identity(result: StudyResult) -> Figure:
    """Draw which token each slice stands for, with and without residuals."""
    data: Mapping[str, Any] = result.data("5a")
    panels = [
        Panel(
            layers=[
                Heat(
                    values=data["tables"][name],
                    limits=(0.0, 1.0),
                    x_names=_numbers(data["tables"][name]),
                    y_names=_numbers(data["tables"][name]),
                    bar="accuracy",
                )
            ],
            title=f"last layer, {NAMES[name]}",
            x_label="token j",
            y_label="slice k",
        )
        for name in ("all", "none")
    ]
    lines: list[Layer] = [Level(at=0.0)]
    lines += [_band(data["peaks"][name], colour, NAMES[name]) for name, colour in RESIDUALS.items()]
    panels.append(
        Panel(
            layers=lines,
            title="lead of the own token",
            x_label="layer (0: the embedding)",
            y_label="own token − best other",
            x_ticks=_layers(len(data["peaks"]["all"][0])),
        )
    )
    return Figure(
        name="breaking-symmetry-slices",
        title="Which token does a slice stand for, with and without residual connections?",
        caption="How often a linear probe reads token j off the state above token k, on held-out "
        "inputs of independent tokens; untrained causal models without encoding. A dark "
        "diagonal: slice k stands for token k. Without residual connections states mix the tokens "
        "seen so far, and the first token wins.",
        panels=panels,
        n_columns=3,
        height=3.3,
    )


def _numbers(table: Sequence[Sequence[float]]) -> list[str]:
    return [str(k + 1) for k in range(len(table))]
