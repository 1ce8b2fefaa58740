"""The figures of the breaking-symmetry study.

Enters: a result. Leaves: figures as data; what was not testable is left out.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from orbitlens.draw.figure import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PINK,
    Curve,
    Figure,
    Forest,
    Heat,
    Layer,
    Level,
    Panel,
    band,
)
from orbitlens_papers import estimate
from orbitlens_papers.claim import Verdict
from orbitlens_papers.result import StudyResult

RESIDUALS = {"all": BLUE, "attention": GREEN, "mlp": PINK, "none": ORANGE}
NAMES = {
    "all": "all residuals",
    "attention": "attention's only",
    "mlp": "MLPs' only",
    "none": "no residuals",
}


def draw_figures(result: StudyResult) -> tuple[Figure, ...]:
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
        changes = [
            next(
                row["largest"]
                for row in rows
                if (row["position"], row["mask"], row["layers"]) == (position, *column)
            )
            for column in columns
        ]
        values.append([max(-16.0, math.log10(max(value, 1e-16))) for value in changes])
        texts.append([_size(value) for value in changes])
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
    rows = result.data("2b")["counterexample"]["rows"]
    values = [[abs(row["output"] - row["swapped"])] for row in rows]
    texts = [[f"{row['output']:.4f}\n{row['swapped']:.4f}"] for row in rows]
    names = [_column(row["mask"], row["layers"]) for row in rows]
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
    data: Mapping[str, Any] = result.data("5c")
    panels = [
        _table(data["tables"][name], f"last layer, {NAMES[name]}") for name in ("all", "none")
    ]
    panels.append(_leads(data["peaks"]))
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


def trained_identity(result: StudyResult) -> Figure:
    """Draw the same in models that have learnt to add, by layer."""
    data: Mapping[str, Any] = result.data("5a")
    panels = _tables_and_leads(data["tables"], data["peaks"])
    return Figure(
        name="breaking-symmetry-trained-slices",
        title="Which digit does a slice stand for in models that have learnt to add?",
        caption="How often a linear probe reads digit j of the question off the state above digit "
        "k, on held-out questions; causal models without encoding, trained on two-digit addition. "
        "Tables: the first seed. Lines: the lead by layer, bands span the seeds "
        "whose model with all residuals answers 99 % of questions; those without residuals are of "
        "the same seeds after as many steps, and most have learnt less.",
        panels=panels,
        n_columns=3,
        height=3.3,
    )


def _tables_and_leads(
    tables: Mapping[str, Sequence[Sequence[float]]],
    peaks: Mapping[str, Sequence[Sequence[float]]],
) -> list[Panel]:
    panels = [_table(tables[name], f"last layer, {NAMES[name]}") for name in ("all", "none")]
    return [*panels, _leads(peaks)]


def _table(values: Sequence[Sequence[float]], title: str) -> Panel:
    names = _numbers(values)
    heat = Heat(values=values, limits=(0.0, 1.0), x_names=names, y_names=names, bar="accuracy")
    return Panel(layers=[heat], title=title, x_label="token j", y_label="slice k")


def _leads(peaks: Mapping[str, Sequence[Sequence[float]]]) -> Panel:
    lines: list[Layer] = [Level(at=0.0)]
    lines += [
        _band(peaks[name], colour, NAMES[name])
        for name, colour in RESIDUALS.items()
        if name in peaks
    ]
    return Panel(
        layers=lines,
        title="lead of the own token",
        x_label="layer (0: the embedding)",
        y_label="own token − best other",
        x_ticks=_layers(len(peaks["all"][0])),
    )


def _numbers(table: Sequence[Sequence[float]]) -> list[str]:
    return [str(k + 1) for k in range(len(table))]


CELLS = {
    "learned, causal": (GREEN, "learned encoding, causal"),
    "rotary, causal": (PINK, "rotary encoding, causal"),
    "none, causal": (ORANGE, "no encoding, causal"),
    "none, full": (BLUE, "no encoding, full"),
}


def trained_figures(result: StudyResult) -> tuple[Figure, ...]:
    """Return what there is data for."""
    drawn = []
    if result.data("1b").get("models"):
        drawn.append(real_models(result))
    if result.finding("5a").verdict is not Verdict.NOT_TESTABLE:
        drawn.append(trained_identity(result))
    if result.finding("3a").verdict is not Verdict.NOT_TESTABLE:
        drawn.append(addition(result))
    return tuple(drawn)


def addition(result: StudyResult) -> Figure:
    """Draw exact match over training by variant, and what residuals bring."""
    data = result.data("3a")
    layers: list[Layer] = [
        Level(at=data["ceiling"], label="order-blind ceiling (exact)", colour=INK)
    ]
    layers += [
        _learning_curve(data["curves"][name], colour, label)
        for name, (colour, label) in CELLS.items()
        if name in data["curves"]
    ]
    return Figure(
        name="breaking-symmetry-addition",
        title=f"Learning {data['digits']}-digit addition: encodings, masks and residuals",
        caption="Left: share of whole answers that are right on held-out pairs, over training; "
        "bands are 95 % intervals over seeds (the range where there are two)."
        " The ceiling is the best that any predictor can do "
        "which sees tokens but not their order, by enumerating all pairs. Right: token accuracy "
        "on two-digit addition after 2,000 steps by encoding and residual connections, causal; "
        "bars are 95 % intervals.",
        panels=(
            Panel(
                layers=layers,
                title="exact match on held-out pairs",
                x_label="training step",
                y_label="share of answers right",
                y_range=(-0.03, 1.05),
            ),
            _residuals(result),
        ),
        widths=(1.2, 1.0),
        height=4.2,
    )


def _learning_curve(curves: Sequence[Mapping[str, Any]], colour: str, label: str) -> Curve:
    columns = list(zip(*(curve["accuracy"] for curve in curves), strict=True))
    means = [estimate.mean(column) for column in columns]
    few = len(curves) < 3  # two seeds make an interval that says nothing: show both
    low = [min(c) if few else max(0.0, f.low) for c, f in zip(columns, means, strict=True)]
    high = [max(c) if few else min(1.0, f.high) for c, f in zip(columns, means, strict=True)]
    return Curve(
        x=[0.0, *curves[0]["step"]],
        y=[0.0, *(f.value for f in means)],
        low=[0.0, *low],
        high=[0.0, *high],
        colour=colour,
        label=label,
        markers=True,
    )


def _residuals(result: StudyResult) -> Panel:
    # 6b holds models with all residuals and without any, 6c and 6d those with one kind.
    parts = [result.data(key) for key in ("6b", "6c", "6d")]
    scores = {name: rows for part in parts for name, rows in part.get("scores", {}).items()}
    scores |= parts[0].get("encoded", {})
    shades = {"all": BLUE, "attention": GREEN, "mlp": PINK, "none": ORANGE}
    names = {"all": "all", "attention": "attention's", "mlp": "MLPs'", "none": "none"}
    rows = [(key, key.partition(", ")[2], estimate.mean(values)) for key, values in scores.items()]
    forest = Forest(
        names=[f"{key.partition(',')[0]} · {names[kept]}" for key, kept, _ in rows],
        values=[mean.value for _, _, mean in rows],
        low=[max(0.0, mean.low) for _, _, mean in rows],
        high=[min(1.0, mean.high) for _, _, mean in rows],
        colours=[shades[kept] for _, kept, _ in rows],
    )
    return Panel(
        layers=[forest, Level(at=0.1, vertical=True, label="guessing", colour=GREY)],
        title="encoding · residuals kept",
        x_label="token accuracy, two digits",
        x_range=(0.0, 1.03),
    )


def real_models(result: StudyResult) -> Figure:
    """Draw the 2 x 2 of trained models with numbers."""
    rows = result.data("1b")["models"]
    cells = ("nope_full", "nope_causal", "pe_full", "pe_causal")
    names = ("neither", "mask alone", "encoding alone", "both")
    values = [[row["cells"].get(cell, float("nan")) for cell in cells] for row in rows]
    one = [row["one_layer"] for row in rows]
    table = [[_log(v) for v in [*line, first]] for line, first in zip(values, one, strict=True)]
    texts = [[_words(v) for v in [*line, first]] for line, first in zip(values, one, strict=True)]
    heat = Heat(
        values=table,
        texts=texts,
        x_names=[*names, "mask, 1 layer"],
        y_names=[row["model"] for row in rows],
        limits=(-8.0, 0.5),
    )
    return Figure(
        name="breaking-symmetry-models",
        title="Trained models with encoding and mask switched off, one at a time",
        caption="Largest relative change of the prediction when earlier tokens are permuted, "
        "float32. 1e-7 to 1e-5 is rounding: order is invisible. Last column: without encoding, "
        "causal, cut behind the first layer. A model that was trained with full attention has no "
        "mask of its own; “both” and “mask alone” then show what a mask would do.",
        panels=(Panel(layers=[heat]),),
        n_columns=1,
        height=0.9 + 0.42 * len(rows),
    )


def _log(value: float | None) -> float:
    if value is None or math.isnan(value):
        return -8.0
    return max(-8.0, math.log10(max(value, 1e-9)))


def _words(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.2f}" if value >= 5e-3 else f"{value:.0e}"
