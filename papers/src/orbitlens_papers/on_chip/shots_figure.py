"""The figure of accuracies: by shots, on both populations, by alphabet, and in whole numbers.

Enters: a `StudyResult`. Leaves: a figure.
"""

from collections.abc import Mapping
from typing import Any

from orbitlens.draw.figure import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    YELLOW,
    Figure,
    Layer,
    Level,
    Panel,
    Points,
    band,
)
from orbitlens_papers.result import StudyResult

ARMS = (
    ("learner", "linear: two factors", BLUE),
    ("softmax", "softmax: slots", ORANGE),
    ("prototypes", "nearest class mean", GREEN),
    ("gradient step", "one gradient step", PINK),
    ("pixels", "nearest pixels", YELLOW),
    ("random labels", "labels at random", GREY),
)
WIDTHS = ("8", "6", "4", "2")  # bits
LEAST = 0.05  # errors in percent that an axis of logarithms shows


def shots(result: StudyResult) -> Figure:
    """Draw accuracy by shots and by alphabet, and what whole numbers lose."""
    data, letters = result.data("2a"), result.data("2f")
    return Figure(
        name="on-chip-learning-shots",
        title="Learning new classes from the context, weights frozen",
        caption="Above: errors among five classes never seen in training, on the population of all "
        "other claims and on the letters of 2f; lines are means over seeds, bands all seeds. Below "
        "left: by what was held out, with one example a class (small) and with five. Right: "
        "accuracy lost where keys, queries, values and synapses are whole numbers. Data: "
        f"{data['source']}; {letters['source']}.",
        panels=(
            _shots_panel(data, _population(data)),
            _shots_panel(letters, "letters of a font, held out"),
            _folds_panel(data),
            _bits_panel(result),
        ),
    )


def _population(data: Mapping[str, Any]) -> str:
    name = str(data["source"]).partition(" ")[0]
    return f"{name}, held out" if name == "Omniglot" else "glyphs, held out"


def _folds_panel(data: Mapping[str, Any]) -> Panel:
    """Draw errors of the learner and of the nearest class mean for each fold."""
    held = data["held out"]
    most, few = (data["shots"].index(n) for n in (max(data["shots"]), min(data["shots"])))
    rows = data["curves"]["learner"]
    order = sorted(range(len(held)), key=lambda k: rows[k][most])
    y = [float(len(order) - k) for k in range(len(order))]
    layers: list[Layer] = []
    for name, label, colour in (ARMS[0], ARMS[2]):
        for place, size in ((most, 8.0), (few, 4.5)):
            errors = [100 * (1 - data["curves"][name][k][place]) for k in order]
            words = label if size > 5 else ""
            layers.append(Points(x=errors, y=y, colour=colour, label=words, size=size))
    return Panel(
        layers=layers,
        title="five classes, by what was held out",
        x_label="errors (%)",
        x_log=True,
        x_ticks=[(tick, f"{tick:g}") for tick in (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)],
        y_range=(0.4, len(order) + 0.6),
        y_ticks=[(place, held[k]) for place, k in zip(y, order, strict=True)],
    )


def _shots_panel(data: Mapping[str, Any], title: str) -> Panel:
    layers: list[Layer] = [Level(at=80.0, label="guessing")]
    places = [float(n) for n in data["shots"]]
    lowest = 10.0
    for name, label, colour in ARMS:
        if name not in data["curves"]:
            continue
        rows = [[max(100 * (1 - share), LEAST) for share in row] for row in data["curves"][name]]
        lowest = min(lowest, *(min(row) for row in rows))
        layers.append(band(places, list(zip(*rows, strict=True)), colour=colour, label=label))
    ticks = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
    return Panel(
        layers=layers,
        title=title,
        x_label="examples a class in the context",
        y_label="errors (%)",
        y_log=True,
        y_range=(0.8 * lowest, 110.0),
        x_ticks=[(place, f"{place:g}") for place in places],
        y_ticks=[(tick, f"{tick:g}") for tick in ticks if tick > 0.8 * lowest],
    )


def _bits_panel(result: StudyResult) -> Panel:
    data = result.data("3a")
    accuracy = data["accuracy"]
    layers: list[Layer] = [
        Level(at=100 * result.finding("3a").claim.threshold, label="allowed"),
        Level(at=0.0),
    ]
    for shots, colour in ((1, ORANGE), (5, BLUE)):
        place = data["shots"].index(shots)
        columns = [
            [
                100 * (exact[place] - whole[place])
                for exact, whole in zip(accuracy["0"], accuracy[bits], strict=True)
            ]
            for bits in WIDTHS
        ]
        words = f"{shots} example{'s' if shots > 1 else ''} a class"
        layers.append(
            band([float(k) for k in range(len(WIDTHS))], columns, colour=colour, label=words)
        )
    return Panel(
        layers=layers,
        title="in whole numbers",
        x_label="bits",
        y_label="accuracy lost (points)",
        x_ticks=[(float(k), bits) for k, bits in enumerate(WIDTHS)],
    )
