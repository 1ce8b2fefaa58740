"""The figures of the separable-attention study.

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

KINDS = (
    ("joint", GREY, "joint"),
    ("rows", SKY, "rows alone"),
    ("columns", YELLOW, "columns alone"),
    ("separable", BLUE, "separable"),
)


def draw_figures(result: StudyResult) -> tuple[Figure, ...]:
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
        "along that axis; one mark per model, dotted: the threshold.",
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


ARMS = {
    "separable": (BLUE, "separable"),
    "rows first": (GREEN, "rows, then columns"),
    "joint": (GREY, "joint, equal size"),
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
        f"model gains over each, paired over {data['of']}. Models of two layers over tokens of "
        "2 × 2 bins, trained on mixed clips of voices that are moved in frequency.",
        panels=(_accuracies(data), _gains(data)),
        widths=(1.15, 1.0),
        height=4.2,
    )


def _interval(values: Sequence[float]) -> tuple[float, float, float]:
    mean = estimate.mean(values)
    if mean.n == 1:
        return mean.value, mean.value, mean.value
    return mean.value, mean.low, mean.high


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
        title="accuracy (processor seconds per run)",
        x_label="share of clips right",
        x_range=(0.0, 1.02),
        y_range=(0.4, n + 0.6),
        y_ticks=ticks,
        legend=False,
    )


def _gains(data: Mapping[str, Any]) -> Panel:
    accuracies = data["accuracies"]
    others = [name for name in ARMS if name in accuracies and not name.startswith("separable")]
    rows = []
    for name in others:
        pairs = zip(accuracies["separable"], accuracies[name], strict=False)
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
        f"headline ({result.data('3a')['source']}) by step, the first seed of each of its "
        f"{result.data('3a')['of']}; bands span these runs.",
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
    for name in ("separable", "rows first", "joint", "separable, shuffled labels"):
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
        f"{_word(data, look['predicted'])}. Every column, or every row, has a copy of the token, "
        "which looks nowhere else.",
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
