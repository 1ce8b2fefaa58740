"""The figures of the token-dynamics study that need trained models.

Enters: a result. Leaves: figures as data, or nothing where claims were not testable.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from orbitlens.draw.figure import (
    BLUE,
    GREY,
    ORANGE,
    PALETTE,
    Curve,
    Figure,
    Forest,
    Layer,
    Level,
    Panel,
    Points,
)
from orbitlens_papers.claim import Verdict
from orbitlens_papers.result import StudyResult

PLACES = (
    ("6a", "absolute encoding, text"),
    ("6b", "absolute encoding, digits"),
    ("6c", "rotary encoding, text"),
    ("6d", "rotary encoding, digits"),
)


def trained_figures(result: StudyResult) -> tuple[Figure, ...]:
    """Return what there is data for."""
    found = []
    if result.data("5a").get("models"):
        found.append(heads(result))
    tested = [key for key, _ in PLACES if result.finding(key).verdict is not Verdict.NOT_TESTABLE]
    if tested:
        found.append(refinements(result, tested))
    return tuple(found)


# --- trained models --------------------------------------------------------------------------


def heads(result: StudyResult) -> Figure:
    """Draw predicted against measured for every head, and heads by tendency."""
    rows = result.data("5a")["models"]
    layers: list[Layer] = []
    ends = [value for row in rows for value in (*row["predicted"], *row["measured"])]
    low, high = min(ends), max(ends)
    layers.append(
        Curve(
            x=[low, high], y=[low, high], colour=GREY, dashed=True, width=1.2, label="as predicted"
        )
    )
    for number, row in enumerate(rows):
        layers.append(
            Points(
                x=row["predicted"],
                y=row["measured"],
                colour=PALETTE[number % len(PALETTE)],
                symbol=("circle", "square", "diamond", "triangle-up")[number // len(PALETTE) % 4],
                label=row["model"],
                size=4.5,
                opacity=0.75,
            )
        )
    return Figure(
        name="token-dynamics-heads",
        title="Heads of trained models: predicted, and measured on text",
        caption="Left: log-change of the mean squared distance between tokens by each head, "
        "predicted from its weights and the statistics of other contexts, and measured. Above "
        "zero tokens are spread, below gathered. Right: share of heads whose value map points "
        "along (spreads) or against (gathers) their score map, by the weights alone, beyond what "
        "randomly turned maps do.",
        panels=(
            Panel(
                layers=[*layers, Level(at=0.0), Level(at=0.0, vertical=True)],
                title="what heads do to distances",
                x_label="predicted log-change",
                y_label="measured log-change",
            ),
            _tendencies(rows),
        ),
        widths=(1.25, 1.0),
        height=4.2,
    )


def _tendencies(rows: Sequence[Mapping[str, Any]]) -> Panel:
    layers: list[Layer] = []
    for name, colour in (("gathers", BLUE), ("spreads", ORANGE)):
        shares = [row["tendencies"][name] / sum(row["tendencies"].values()) for row in rows]
        sign = -1.0 if name == "gathers" else 1.0
        for place, share in enumerate(shares):
            layers.append(
                Curve(
                    x=[0.0, sign * share],
                    y=[float(len(rows) - place)] * 2,
                    colour=colour,
                    width=9.0,
                    label=name if place == 0 else "",
                )
            )
    return Panel(
        layers=[*layers, Level(at=0.0, vertical=True)],
        title="heads by their weights alone",
        x_label="share of heads: gathering to the left, spreading to the right",
        x_range=(-1.05, 1.05),
        y_ticks=[(float(len(rows) - k), row["model"]) for k, row in enumerate(rows)],
        y_range=(0.4, len(rows) + 0.6),
        x_ticks=[(-1.0, "1"), (-0.5, "½"), (0.0, "0"), (0.5, "½"), (1.0, "1")],
    )


# --- refinements -----------------------------------------------------------------------------


def refinements(result: StudyResult, tested: Sequence[str]) -> Figure:
    """Draw what each variant adds to the plain model's loss, with intervals."""
    return Figure(
        name="token-dynamics-refinements",
        title="Variants that converge or diverge, against the plain model",
        caption="Held-out loss of each variant less that of the plain model with the same seeds, "
        "data and order, in nats; bars are 95 % intervals. Right of zero: worse. "
        "“definite-negative” and “anti” hold heads in the converging regime, “definite-positive” "
        "and “guard” in the diverging one. Orange: the interval is above zero; blue: below; "
        "grey: contains it.",
        panels=tuple(_forest(result, key, name) for key, name in PLACES if key in tested),
        height=2.7,
    )


def _forest(result: StudyResult, key: str, title: str) -> Panel:
    rows = result.data(key)["against_none"]
    low = [-1.0 if row["low"] is None else row["low"] for row in rows.values()]
    high = [1.0 if row["high"] is None else row["high"] for row in rows.values()]
    colours = [ORANGE if a > 0 else BLUE if b < 0 else GREY for a, b in zip(low, high, strict=True)]
    forest = Forest(
        names=list(rows),
        values=[row["value"] for row in rows.values()],
        low=low,
        high=high,
        colours=colours,
    )
    return Panel(
        layers=[forest, Level(at=0.0, vertical=True)],
        title=title,
        x_label="loss less the plain model's (nats)",
    )
