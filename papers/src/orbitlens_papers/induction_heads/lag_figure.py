"""The figure of claim 7: two layers trained as a whole on lags that are drawn anew.

Enters: a result. Leaves: a figure as data.
"""

from collections.abc import Mapping
from typing import Any

from orbitlens.draw.figure import BLUE, GREEN, GREY, ORANGE, Figure, Layer, Panel, Points, band
from orbitlens_papers.result import StudyResult

LAYERS = (("2", "two layers", BLUE), ("1", "one layer", ORANGE))


def random_lags(result: StudyResult) -> Figure:
    """Draw accuracy by lag, where the second layer looks, and what comes first in training."""
    data = result.data("7a")
    return Figure(
        name="induction-heads-random-lags",
        title="Two layers trained as a whole, on lags drawn anew for every sequence",
        caption="Left: share of next tokens that are right, by lag; models are trained on even "
        "lags (dots below) alone, bands span the seeds. Middle: attention of the best head of the "
        "last layer to the place behind the present token's earlier occurrence, and to the same "
        "places where the second pass has its tokens in another order; a point a seed. Right: "
        "the score (first less second), layer one's attention to the token in front, and accuracy "
        "over training, all seeds.",
        panels=(_by_lag(data), _looks_where(data), _over_training(data)),
        n_columns=3,
        height=3.5,
    )


def _by_lag(data: Mapping[str, Any]) -> Panel:
    layers: list[Layer] = []
    for key, label, colour in LAYERS:
        rows = [run["by_lag"] for run in data["runs"][key]]
        lags = sorted(int(lag) for lag in rows[0])
        columns = [[row[str(lag)] for row in rows] for lag in lags]
        layers.append(band([float(k) for k in lags], columns, colour=colour, label=label))
    trained = [float(lag) for lag in data["trained_on"]]
    layers.append(Points(x=trained, y=[-0.04] * len(trained), colour=GREY, size=4.0))
    return Panel(
        layers=layers,
        title="by lag, also untrained ones",
        x_label="lag",
        x_ticks=[(lag, f"{lag:g}") for lag in trained[::2]],
        y_label="share of tokens right",
        y_range=(-0.08, 1.05),
    )


def _looks_where(data: Mapping[str, Any]) -> Panel:
    layers: list[Layer] = []
    for place, (key, label, colour) in enumerate(LAYERS):
        for shift, what in ((-0.18, "same"), (0.18, "reordered")):
            values = [run[what] for run in data["runs"][key]]
            x = [place + shift + 0.03 * (k - (len(values) - 1) / 2) for k in range(len(values))]
            shade = colour if what == "same" else GREY
            name = label if what == "same" else "reordered" if place == 0 else ""
            layers.append(Points(x=x, y=values, colour=shade, label=name, size=6.0))
    return Panel(
        layers=layers,
        title="where the last layer looks",
        y_label="attention behind the earlier one",
        x_ticks=[(float(k), label) for k, (_, label, _) in enumerate(LAYERS)],
        x_range=(-0.5, 1.5),
        y_range=(-0.03, 1.05),
    )


def _over_training(data: Mapping[str, Any]) -> Panel:
    rows = (
        ("induction", BLUE, "induction score"),
        ("in_front", GREEN, "on the token in front"),
        ("accuracy", GREY, "share right"),
    )
    layers: list[Layer] = []
    for key, colour, label in rows:
        columns = list(zip(*(look[key] for look in data["looks"]), strict=True))
        steps = data["looks"][0]["step"]
        layers.append(band(steps, columns, colour=colour, label=label, markers=False))
    return Panel(
        layers=layers,
        title="what comes first",
        x_label="training step",
        y_label="attention, or share",
        y_range=(-0.03, 1.05),
    )
