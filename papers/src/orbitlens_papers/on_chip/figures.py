"""Figures of the study of on-chip learning, drawn from a stored result alone.

Enters: a `StudyResult`. Leaves: figures.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from orbitlens.draw.figure import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    SKY,
    YELLOW,
    Curve,
    Figure,
    Forest,
    Heat,
    Layer,
    Level,
    Panel,
    band,
)
from orbitlens_papers.on_chip.shots_figure import shots
from orbitlens_papers.result import StudyResult

CHANCE = Level(at=0.2, label="guessing")
STARTS = (("linear", "identities", BLUE), ("random start", "random maps", GREY))
FADING = (
    ("1.0", "0 %", BLUE),
    ("0.95", "5 %", SKY),
    ("0.9", "10 %", GREEN),
    ("0.8", "20 %", ORANGE),
)


def draw_figures(result: StudyResult) -> tuple[Figure, ...]:
    """Return all figures."""
    return (shots(result), state(result), rules(result), trained(result))


# --- the state -------------------------------------------------------------------------------


def state(result: StudyResult) -> Figure:
    """Draw an episode and the synapses as the context goes by."""
    data = result.data("2a")["example"]
    pictures = data["pictures"]
    drawn = Panel(
        layers=[Heat(values=pictures, limits=(0.0, 1.0))],
        title="an episode: five drawings per class, and a question",
        y_ticks=_middles(pictures, 5, ("A", "B", "C", "D", "E")),
        x_ticks=_columns(pictures),
        y_label="class",
    )
    panels = [drawn]
    largest = max(abs(x) for rows in data["states"].values() for row in rows for x in row)
    for tokens, rows in data["states"].items():
        order = "".join("ABCDE"[k] for k in data["order"][: int(tokens)])
        words = order if len(order) <= 5 else f"{order[:5]}…"
        panels.append(
            Panel(
                layers=[
                    Heat(
                        values=rows,
                        y_names=list("ABCDE"),
                        limits=(-largest, largest),
                        colours="diverging",
                        bar="synapse",
                    )
                ],
                title=f"synapses after {tokens} token{'s' if tokens != '1' else ''}: {words}",
                x_label="key neuron",
                y_label="label neuron",
            )
        )
    return Figure(
        name="on-chip-learning-state",
        title="What the context writes",
        caption="One episode of held-out classes, and the state S, five label neurons of it, as "
        "each drawing adds its label times its key. A question is answered by S q.",
        panels=panels,
        height=2.6,
    )


def _middles(
    rows: Sequence[Sequence[float]], n: int, names: Sequence[str]
) -> list[tuple[float, str]]:
    side = len(rows) / n
    return [((k + 0.5) * side - 0.5, name) for k, name in enumerate(names)]


def _columns(rows: Sequence[Sequence[float]]) -> list[tuple[float, str]]:
    side = len(rows) / 5
    n = round(len(rows[0]) / side)
    names = [str(k + 1) for k in range(n - 1)] + ["asked"]
    return [((k + 0.5) * side - 0.5, name) for k, name in enumerate(names)]


# --- rules -----------------------------------------------------------------------------------


def rules(result: StudyResult) -> Figure:
    """Draw the gap between local rules and attention, memory traffic, and fading."""
    return Figure(
        name="on-chip-learning-rules",
        title="Local rules are attention",
        caption="Top: largest difference of logits between local updates and attention over the "
        "same tokens, over all seeds and episodes (gaps are exact zeros); and how many synapses "
        "read more than their own two neurons and a broadcast signal. Below: numbers that one "
        "token reads from memory, one head (what is needed, not a measured time); and accuracy by "
        "the place at which the one example of a class was shown, when synapses fade.",
        panels=(
            _gap_panel(result),
            _locality_panel(result),
            _traffic_panel(result),
            _fading_panel(result),
        ),
    )


def _gap_panel(result: StudyResult) -> Panel:
    layers: list[Layer] = []
    for key, precision, colours in (
        ("1a", "float32", (ORANGE, YELLOW)),
        ("1b", "float64", (BLUE, SKY)),
    ):
        curves = result.data(key)["curves"]
        for (arm, rule), colour in zip(
            (("linear", "state"), ("softmax", "slots")), colours, strict=True
        ):
            largest = [max(column) for column in zip(*curves[arm], strict=True)]
            shown = [(float(t), value) for t, value in enumerate(largest, 1) if value > 0]
            layers.append(
                Curve(
                    x=[t for t, _ in shown],
                    y=[value for _, value in shown],
                    colour=colour,
                    label=f"{rule}, {precision}",
                )
            )
    for key in ("1a", "1b"):
        threshold = result.finding(key).claim.threshold
        layers.append(Level(at=threshold, label="allowed"))
    return Panel(
        layers=layers,
        title="difference from attention",
        x_label="tokens so far",
        y_label="largest difference of logits",
        y_log=True,
        y_range=(1e-17, 1e-2),
    )


def _locality_panel(result: StudyResult) -> Panel:
    data = result.data("1c")
    names = {"two factors": "two factors", "three factors": "three factors", "delta": "delta rule"}
    shares = {name: [100 * n / data["synapses"] for n in data["counts"][name]] for name in names}
    forest = Forest(
        names=list(names.values()),
        values=[sum(row) / len(row) for row in shares.values()],
        low=[min(row) for row in shares.values()],
        high=[max(row) for row in shares.values()],
        colours=[BLUE, SKY, ORANGE],
    )
    return Panel(
        layers=[forest],
        title="synapses that read elsewhere",
        x_label="share of synapses (%)",
        x_range=(-5.0, 105.0),
    )


def _traffic_panel(result: StudyResult) -> Panel:
    data = result.data("1a")["traffic"]
    x, cache, state = ([float(n) for n in data[name]] for name in ("tokens", "cache", "state"))
    return Panel(
        layers=[
            Curve(x=x, y=cache, colour=ORANGE, label="keys and values", markers=True),
            Curve(x=x, y=state, colour=BLUE, label="state", markers=True),
        ],
        title="memory read by one token",
        x_label="tokens before it",
        y_label="numbers",
        x_log=True,
        y_log=True,
    )


def _fading_panel(result: StudyResult) -> Panel:
    recall = result.data("5b")["recall"]
    layers: list[Layer] = [CHANCE]
    for name, label, colour in FADING:
        columns = list(zip(*recall[name], strict=True))
        places = [float(k + 1) for k in range(len(columns))]
        layers.append(band(places, columns, colour=colour, label=f"{label} a token"))
    return Panel(
        layers=layers,
        title="synapses that fade",
        x_label="place of its class in the context",
        y_label="accuracy",
        x_ticks=[(float(k), str(k)) for k in range(1, 6)],
        y_range=(0.0, 1.02),
    )


# --- training and the official test ----------------------------------------------------------


def trained(result: StudyResult) -> Figure:
    """Draw training from two starts, and the official test where its data was given."""
    data = result.data("7a")
    panels = [_start_panel(result)]
    words = ""
    if "errors" in data:
        panels.append(_official_panel(data))
        words = (
            f" Right: errors on Omniglot's official test ({data['questions']} questions among 20 "
            "classes, one drawing each). Coloured: computed here, bars over seeds, trained on "
            "seven alphabets or on letters of a font; grey: published (outlines by the data's own "
            "demonstration, the others by Koch, Zemel and Salakhutdinov, 2015, with 30 alphabets "
            "to train on)."
        )
    return Figure(
        name="on-chip-learning-training",
        title="Training the learner" + (", and the official one-shot test" if words else ""),
        caption="Left: loss of training episodes from identity maps and from random ones; "
        f"lines are means over seeds, bands all seeds.{words}",
        panels=panels,
        n_columns=len(panels),
        widths=(1.0, 1.25)[: len(panels)],
        height=4.0,
    )


def _start_panel(result: StudyResult) -> Panel:
    data = result.data("6a")
    losses = data["losses"]
    layers: list[Layer] = [Level(at=math.log(data["way"]), label=f"guessing, ln {data['way']}")]
    for name, label, colour in STARTS:
        columns = list(zip(*losses[name], strict=True))
        steps = [10.0 * (k + 1) for k in range(len(columns))]
        layers.append(band(steps, columns, colour=colour, label=f"start: {label}", markers=False))
    return Panel(
        layers=layers,
        title="a plateau at chance",
        x_label="step",
        y_label="loss (nats)",
        y_range=(0.0, math.log(data["way"]) + 0.6),
    )


def _official_panel(data: Mapping[str, Any]) -> Panel:
    rows: list[tuple[str, Sequence[float], str]] = [
        ("linear attention", data["errors"]["linear"], BLUE),
        ("softmax attention", data["errors"]["softmax"], ORANGE),
        ("linear, trained on letters", data["errors"]["glyphs"], SKY),
        ("outlines (Hausdorff)", [data["outlines"]], GREEN),
        ("nearest pixels", [data["pixels"]], YELLOW),
        ("linear, untrained", data["errors"]["untrained"], PINK),
    ]
    rows += [(f"{name}, published", [error], GREY) for name, error in data["published"].items()]
    rows.sort(key=lambda row: sum(row[1]) / len(row[1]))
    forest = Forest(
        names=[name for name, _, _ in rows],
        values=[100 * sum(errors) / len(errors) for _, errors, _ in rows],
        low=[100 * min(errors) for _, errors, _ in rows],
        high=[100 * max(errors) for _, errors, _ in rows],
        colours=[colour for _, _, colour in rows],
    )
    return Panel(
        layers=[forest, Level(at=95.0, label="guessing", vertical=True)],
        title="official test, 20 classes, one drawing each",
        x_label="errors (%)",
        x_range=(0.0, 100.0),
    )
