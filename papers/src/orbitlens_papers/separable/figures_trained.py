"""The figures of what separable models learn, and where they look.

Enters: a result. Leaves: figures as data.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from orbitlens.draw.figure import (
    BLUE,
    GREEN,
    GREY,
    INK,
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
    Points,
    band,
)
from orbitlens_papers import estimate
from orbitlens_papers.result import StudyResult
from orbitlens_papers.separable.sound import ENVELOPES

ARMS = {
    "separable": (BLUE, "separable"),
    "separable, equal time": (ORANGE, "the same, a third of the steps"),
    "joint": (GREY, "joint, same bins"),
    "patches": (PINK, "joint, 2 × 2 patches"),
    "cnn": (GREEN, "small CNN"),
    "logistic": (YELLOW, "logistic regression"),
    "separable, shuffled labels": (INK, "separable, shuffled labels"),
}


# --- accuracy --------------------------------------------------------------------------------


def accuracy(result: StudyResult) -> Figure:
    """Draw accuracies, paired differences and what they cost."""
    data = result.data("3a")
    return Figure(
        name="separable-attention-accuracy",
        title="Separable beside joint attention of equal size",
        caption=f"Clips: {data['source']}. Left: accuracy of each arm on clips of "
        f"{'speakers' if data['of'] == 'speakers' else 'sounds'} it was not trained on, a dot a "
        f"{data['of'][:-1]}, bars are 95 % intervals; dotted: chance. Right: what the separable "
        f"model gains over each, paired over {data['of']}.",
        panels=(_accuracies(data), _gains(data)),
        widths=(1.15, 1.0),
        height=4.2,
    )


def _interval(values: Sequence[float]) -> tuple[float, float, float]:
    found = estimate.mean(values)
    if found.n == 1:
        return found.value, found.value, found.value
    return found.value, found.low, found.high


def _accuracies(data: Mapping[str, Any]) -> Panel:
    shown = [name for name in ARMS if name in data["accuracies"]]
    n = len(shown)
    layers: list[Layer] = [Level(at=data["chance"], vertical=True)]
    for place, name in enumerate(shown):
        values, y = data["accuracies"][name], float(n - place)
        middle, low, high = _interval(values)
        colour = ARMS[name][0]
        layers.append(
            Points(x=values, y=[y - 0.18] * len(values), colour=colour, size=5.0, opacity=0.6)
        )
        layers.append(Curve(x=[max(low, 0.0), min(high, 1.0)], y=[y, y], colour=colour, width=2.4))
        layers.append(Points(x=[middle], y=[y], colour=colour, symbol="square", size=7.0))
    seconds = data["seconds"]
    ticks = [
        (float(n - place), f"{ARMS[name][1]} ({fmean(seconds[name]):.0f} s)")
        for place, name in enumerate(shown)
    ]
    return Panel(
        layers=layers,
        title="accuracy (processor seconds a run)",
        x_label="share of clips right",
        x_range=(0.0, 1.02),
        y_range=(0.4, n + 0.6),
        y_ticks=ticks,
        legend=False,
    )


def _gains(data: Mapping[str, Any]) -> Panel:
    found = data["accuracies"]
    others = [name for name in ARMS if name in found and not name.startswith("separable")]
    rows = []
    for name in others:
        pairs = zip(found["separable"], found[name], strict=False)
        rows.append(_interval([100 * (a - b) for a, b in pairs]))
    forest = Forest(
        names=[f"over {ARMS[name][1]}" for name in others],
        values=[row[0] for row in rows],
        low=[row[1] for row in rows],
        high=[row[2] for row in rows],
        colours=[ARMS[name][0] for name in others],
    )
    return Panel(
        layers=[forest, Level(at=0.0, vertical=True)],
        title="gain of the separable model",
        x_label="points of accuracy",
    )


# --- axes ------------------------------------------------------------------------------------

MADE = {
    "separable": (BLUE, "columns, then rows"),
    "rows first": (GREEN, "rows, then columns"),
    "columns only": (YELLOW, "columns alone"),
    "rows only": (SKY, "rows alone"),
    "patches": (PINK, "joint, 2 × 2 patches"),
}
FACTORS = (
    ("accuracy", "all 12 classes"),
    ("pattern", "harmonic pattern"),
    ("envelope", "envelope"),
)


def axes(result: StudyResult) -> Figure:
    """Draw what each axis alone can learn, and how quickly models learn."""
    factors = result.data("4a")["factors"]
    layers: list[Layer] = []
    shown = [name for name in MADE if name in factors]
    for k, name in enumerate(shown):
        shift = 0.14 * (k - (len(shown) - 1) / 2)
        rows = [_interval(factors[name][key]) for key, _ in FACTORS]
        layers.append(
            Points(
                x=[place + shift for place in range(len(FACTORS))],
                y=[row[0] for row in rows],
                low=[max(row[1], 0.0) for row in rows],
                high=[min(row[2], 1.0) for row in rows],
                colour=MADE[name][0],
                label=MADE[name][1],
                size=7.0,
            )
        )
    layers.append(Curve(x=[-0.45, 0.45], y=[1 / 12] * 2, colour=GREY, dashed=True, width=1.2))
    layers.append(Curve(x=[0.55, 1.45], y=[1 / 3] * 2, colour=GREY, dashed=True, width=1.2))
    layers.append(
        Curve(x=[1.55, 2.45], y=[1 / 4] * 2, colour=GREY, dashed=True, width=1.2, label="chance")
    )
    return Figure(
        name="separable-attention-axes",
        title="Both axes are needed where sounds differ along both",
        caption="Left: made sounds of three harmonic patterns and four envelopes, means over seeds "
        "with 95 % intervals (a single seed has none). Right: accuracy on held-out clips of the "
        f"headline ({result.data('3a')['source']}) by step, bands span the runs.",
        panels=(
            Panel(
                layers=layers,
                title="made sounds",
                y_label="share right",
                x_ticks=[(float(place), label) for place, (_, label) in enumerate(FACTORS)],
                x_range=(-0.5, 2.5),
                y_range=(0.0, 1.03),
            ),
            _learning(result.data("3a")),
        ),
        widths=(1.1, 1.0),
        height=4.2,
    )


def _learning(data: Mapping[str, Any]) -> Panel:
    layers: list[Layer] = [Level(at=data["chance"])]
    for name in ("separable", "joint", "patches", "separable, shuffled labels"):
        curves = data["curves"][name]
        steps = [float(step) for step, _, _ in curves[0]]
        columns = [[curve[k][1] for curve in curves] for k in range(len(steps))]
        layers.append(band(steps, columns, colour=ARMS[name][0], label=ARMS[name][1]))
    return Panel(
        layers=layers,
        title="learning",
        x_label="step",
        y_label="share of clips right",
        y_range=(0.0, 1.03),
    )


# --- attention -------------------------------------------------------------------------------


def attention(result: StudyResult) -> Figure:
    """Draw one clip, and where the class token of the trained model looks in each layer."""
    data = result.data("3a")
    look = data["look"]
    top = max(max(max(row) for row in layer) for layer in look["maps"])
    clip = Panel(
        layers=[_heat(look["clip"], (-2.5, 2.5), "diverging")],
        title=_word(data, look["label"]),
        x_label="time",
        y_label="frequency",
    )
    panels = [clip]
    for number, values in enumerate(look["maps"]):
        axis = "columns" if number % 2 == 0 else "rows"
        panels.append(
            Panel(
                layers=[_heat(values, (0.0, top), "sequential")],
                title=f"layer {number}: {axis}",
                x_label="time",
            )
        )
    return Figure(
        name="separable-attention-looks",
        title="Where the class token looks: along frequency, then along time",
        caption=f"One held-out clip ({data['source']}), log power from low (red) to high (blue), "
        f"and the class token's attention in a trained model, mean over heads; it answered "
        f"{_word(data, look['said'])}. Every column, or every row, has a copy of the token, which "
        "looks nowhere else.",
        panels=panels,
        n_columns=len(panels),
        height=2.8,
    )


def _heat(values: Sequence[Sequence[float]], limits: tuple[float, float], colours: str) -> Heat:
    return Heat(
        values=values,
        limits=limits,
        colours=colours,
        x_names=[""] * len(values[0]),
        y_names=[""] * len(values),
    )


def _word(data: Mapping[str, Any], label: int) -> str:
    if data["of"] == "speakers":
        return f"“{('zero one two three four five six seven eight nine'.split())[label]}”"
    pattern, envelope = divmod(label, len(ENVELOPES))
    return f"pattern {pattern + 1}, {ENVELOPES[envelope]}"
