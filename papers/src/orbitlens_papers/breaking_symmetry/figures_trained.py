"""The figures of the breaking-symmetry study that need trained models.

Enters: a result. Leaves: figures as data, or nothing where claims were not testable.
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
)
from orbitlens_papers import estimate
from orbitlens_papers.claim import Verdict
from orbitlens_papers.result import StudyResult

CELLS = {
    "learned, causal": (GREEN, "learned encoding, causal"),
    "rotary, causal": (PINK, "rotary encoding, causal"),
    "none, causal": (ORANGE, "no encoding, causal"),
    "none, full": (BLUE, "no encoding, full"),
}


def trained_figures(result: StudyResult) -> tuple[Figure, ...]:
    """Return what there is data for."""
    found = []
    if result.data("1b").get("models"):
        found.append(real_models(result))
    if result.finding("3a").verdict is not Verdict.NOT_TESTABLE:
        found.append(addition(result))
    return tuple(found)


def addition(result: StudyResult) -> Figure:
    """Draw exact match over training by variant, and what residuals bring."""
    data = result.data("3a")
    layers: list[Layer] = [
        Level(at=data["ceiling"], label="order-blind ceiling (exact)", colour=INK)
    ]
    layers += [
        _band(data["curves"][name], colour, label)
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
        "on two-digit addition after equal training by encoding and residual connections, causal; "
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


def _band(curves: Sequence[Mapping[str, Any]], colour: str, label: str) -> Curve:
    columns = list(zip(*(curve["accuracy"] for curve in curves), strict=True))
    found = [estimate.mean(column) for column in columns]
    few = len(curves) < 3  # two seeds make an interval that says nothing: show both
    low = [min(c) if few else max(0.0, f.low) for c, f in zip(columns, found, strict=True)]
    high = [max(c) if few else min(1.0, f.high) for c, f in zip(columns, found, strict=True)]
    return Curve(
        x=[0.0, *curves[0]["step"]],
        y=[0.0, *(f.value for f in found)],
        low=[0.0, *low],
        high=[0.0, *high],
        colour=colour,
        label=label,
        markers=True,
    )


def _residuals(result: StudyResult) -> Panel:
    scores = result.data("6b")["scores"]
    shades = {"all": BLUE, "attention": GREEN, "mlp": PINK, "none": ORANGE}
    names = {"all": "all", "attention": "attention's", "mlp": "MLPs'", "none": "none"}
    rows = [(key, key.partition(", ")[2], estimate.mean(values)) for key, values in scores.items()]
    forest = Forest(
        names=[f"{key.partition(',')[0]} · {names[kept]}" for key, kept, _ in rows],
        values=[found.value for _, _, found in rows],
        low=[max(0.0, found.low) for _, _, found in rows],
        high=[min(1.0, found.high) for _, _, found in rows],
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
