"""The figures of the saturated-attention study.

Enters: a result. Leaves: figures as data.
"""

from collections.abc import Sequence

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
    Layer,
    Level,
    Panel,
    Points,
    band,
)
from orbitlens_papers import estimate
from orbitlens_papers.result import StudyResult


def draw_figures(result: StudyResult) -> tuple[Figure, ...]:
    """Return all figures."""
    return (majority(result), certificates(result), circuits(result), learned(result))


# --- majority --------------------------------------------------------------------------------

HEADS = {
    "saturated": (BLUE, "saturated"),
    "soft 1": (GREEN, "soft, scores of noise × 1"),
    "soft 4": (YELLOW, "soft, × 4"),
    "soft 16": (PINK, "soft, × 16"),
    "hard": (ORANGE, "hard"),
}


def majority(result: StudyResult) -> Figure:
    """Draw who decides majority, and how softmax nears its limit."""
    data, limit = result.data("1a"), result.data("2a")
    x = [float(n) for n in data["lengths"]]
    layers: list[Layer] = [Level(at=0.5)]
    layers += [
        Curve(x=x, y=data["accuracies"][name], colour=colour, label=label, markers=True)
        for name, (colour, label) in HEADS.items()
    ]
    c = [float(value) for value in limit["sharpness"]]
    distances: list[Layer] = []
    for (n, values), colour in zip(limit["distances"].items(), (SKY, BLUE, INK), strict=True):
        kept = [(a, b) for a, b in zip(c, values, strict=True) if b > 1e-15]
        distances.append(
            Curve(
                x=[a for a, _ in kept],
                y=[b for _, b in kept],
                colour=colour,
                label=f"{n} tokens",
                markers=True,
            )
        )
    distances.append(
        Curve(
            x=[1.0, 36.0],
            y=[64 * 2.718281828**-1, 64 * 2.718281828**-36],
            colour=GREY,
            dashed=True,
            label="64 exp(−c)",
        )
    )
    return Figure(
        name="saturated-attention-majority",
        title="Averaging over ties decides majority; taking one token does not",
        caption="Left: share of random strings that one head gets right. The saturated head has "
        "equal scores; soft heads have scores of a little noise: the sharper, the less of the "
        "string they see. Right: largest difference between softmax(c a) and the saturated weights "
        "over whole-number scores, down to rounding; dashed: the bound for 64 tokens. Dotted: "
        "guessing.",
        panels=(
            Panel(
                layers=layers,
                title="random strings decided",
                x_label="length",
                y_label="share right",
                x_log=True,
                y_range=(0.45, 1.03),
            ),
            Panel(
                layers=distances,
                title="distance from the limit",
                x_label="sharpness c",
                y_label="largest difference",
                y_log=True,
                y_range=(1e-15, 100.0),
            ),
        ),
        height=3.8,
    )


# --- certificates ----------------------------------------------------------------------------


def certificates(result: StudyResult) -> Figure:
    """Draw how many bits decide what hard attention says, and what trained readers get wrong."""
    data = result.data("3c")
    x = [float(n) for n in data["lengths"]]
    sizes = data["certificates"]
    layers: list[Layer] = [
        Curve(x=x, y=sizes["random"], colour=GREY, label="random functions", markers=True),
        Curve(x=x, y=sizes["majority"], colour=BLUE, label="majority: (n + 1) / 2", markers=True),
        Curve(x=x, y=sizes["hard, 2 layers"], colour=PINK, label="hard, two layers", markers=True),
    ]
    most = _most_bits(result)
    layers += [
        Curve(x=x, y=[float(bits)] * len(x), colour=ORANGE, dashed=True, width=1.4,
              label="hard, one layer of 1, 2, 3 heads" if heads == 1 else "")
        for heads, bits in most.items()
    ]  # fmt: skip
    return Figure(
        name="saturated-attention-certificates",
        title="A few bits decide what hard attention says; majority needs half of them",
        caption="Left: fewest bits that make the output constant once fixed; two-layer models have "
        "random weights, and all restrictions are tried (mean over models). Right: strings of "
        "eleven bits that trained hard readers get wrong, and how many the certificate alone "
        "proves.",
        panels=(
            Panel(
                layers=layers,
                title="bits to fix",
                x_label="length of the string",
                y_label="bits",
                x_ticks=[(n, str(int(n))) for n in x],
                y_range=(0.0, max(sizes["random"]) + 1),
            ),
            _wrong(result),
        ),
        height=3.8,
    )


def _most_bits(result: StudyResult) -> dict[int, int]:
    data = result.data("3a")
    pairs = list(zip(data["heads"], data["bits"], strict=True))
    return {h: max(bits for heads, bits in pairs if heads == h) for h in sorted({*data["heads"]})}


def _wrong(result: StudyResult) -> Panel:
    data = result.data("3b")
    rows = data["trained"]
    n = data["strings"]
    layers: list[Layer] = []
    for name, colour, label, shift in (
        ("wrong", ORANGE, "trained hard readers", -0.08),
        ("sure", GREY, "at least, by certificate", 0.08),
    ):
        layers.append(
            Points(
                x=[row["heads"] + shift for row in rows],
                y=[row[name] / n for row in rows],
                colour=colour,
                label=label,
                size=7.0,
            )
        )
    layers.append(
        Points(x=[1.0, 2.0, 3.0], y=[0.0] * 3, colour=BLUE, label="saturated head", symbol="square")
    )
    return Panel(
        layers=layers,
        title="majority of eleven bits",
        x_label="heads",
        y_label="share of strings wrong",
        x_ticks=[(1.0, "1"), (2.0, "2"), (3.0, "3")],
        x_range=(0.5, 3.5),
        y_range=(-0.02, 0.52),
    )


# --- circuits and bits -----------------------------------------------------------------------


def circuits(result: StudyResult) -> Figure:
    """Draw depth and size of compiled layers, and the bits that outputs take."""
    data, tables = result.data("4b"), result.data("4c")
    x = [float(n) for n in data["lengths"]]
    depth = Panel(
        layers=[
            Curve(x=x, y=data["narrow"], colour=GREY, label="two wires a gate", markers=True),
            Curve(x=x, y=data["depth"], colour=BLUE, label="threshold gates", markers=True),
        ],
        title="depth",
        x_label="length",
        y_label="gates on the longest way",
        x_log=True,
        x_ticks=_powers(x),
        y_range=(0.0, max(data["narrow"]) + 1.5),
    )
    short = [float(n) for n in tables["short"]]
    size = Panel(
        layers=[
            Curve(x=x, y=data["wires"], colour=SKY, label="wires", markers=True),
            Curve(x=x, y=data["gates"], colour=BLUE, label="gates", markers=True),
            Curve(x=short, y=tables["tables"], colour=GREY, label="truth table", markers=True),
        ],
        title="size",
        x_label="length",
        y_label="number",
        x_log=True,
        y_log=True,
        x_ticks=_powers(x),
    )
    return Figure(
        name="saturated-attention-circuits",
        title="A saturated layer as a threshold circuit: the same depth at every length",
        caption="Left and middle: circuits compiled from layers with whole-number scores, equal to "
        "them on all strings of up to twelve bits (mean over layers). Right: bits of a head's "
        "output as an exact fraction; softmax, or a second layer over exact fractions, needs as "
        "many as there are tokens.",
        panels=(depth, size, _bits(result)),
        n_columns=3,
        height=3.5,
    )


def _powers(x: Sequence[float]) -> list[tuple[float, str]]:
    return [(n, str(int(n))) for n in x if int(n) & (int(n) - 1) == 0]


def _bits(result: StudyResult) -> Panel:
    data = result.data("5a")
    x = [float(n) for n in data["lengths"]]
    names = (
        ("doubling", GREY, "soft, weights 2^a"),
        ("two layers", PINK, "two layers, exact"),
        ("saturated", BLUE, "saturated head"),
    )
    return Panel(
        layers=[
            Curve(
                x=x,
                y=[float(bits) for bits in data["bits"][name]],
                colour=colour,
                label=label,
                markers=True,
            )
            for name, colour, label in names
        ],
        title="bits of a value",
        x_label="length",
        y_label="bits",
        x_log=True,
        y_log=True,
    )


# --- learned ---------------------------------------------------------------------------------

MODELS = {
    "none": (BLUE, "soft, no encoding"),
    "sinusoidal": (PINK, "soft, sinusoidal"),
    "learned": (YELLOW, "soft, learned"),
    "rotary": (GREEN, "soft, rotary"),
    "alibi": (SKY, "soft, ALiBi"),
    "LSTM": (GREY, "LSTM"),
    "soft reader": (INK, "soft reader"),
    "hard reader": (ORANGE, "hard reader"),
}


def learned(result: StudyResult) -> Figure:
    """Draw accuracy by length and model."""
    data = result.data("6a")
    x = [float(mean) for mean in data["means"]]
    layers: list[Layer] = [Level(at=0.5)]
    shown = {name: look for name, look in MODELS.items() if name in data["accuracies"]}
    for name, (colour, label) in shown.items():
        columns = list(zip(*data["accuracies"][name], strict=True))
        layers.append(band(x, columns, colour=colour, label=label))
    columns = list(zip(*data["clear"]["none"], strict=True))
    layers.append(
        Curve(
            x=x,
            y=[sum(column) / len(column) for column in columns],
            colour=BLUE,
            label="no encoding, lead > n/50",
            dashed=True,
        )
    )
    return Figure(
        name="saturated-attention-learned",
        title="Majority, learned at length 50: who keeps it on longer strings?",
        caption="Share of strings decided right by one-layer models after training on lengths of "
        "Binomial(100, ½); bands span the seeds, dotted is guessing. Dashed: no encoding, on "
        "strings whose lead is more than a fiftieth. Right: at mean length 250, with 95 % "
        "intervals over seeds (a single seed has none).",
        panels=(
            Panel(
                layers=layers,
                title="accuracy by length",
                x_label="mean length of the strings",
                y_label="share right",
                y_range=(0.45, 1.03),
            ),
            _far(data["accuracies"], shown),
        ),
        widths=(1.3, 1.0),
        height=4.2,
    )


def _far(accuracies: dict[str, list[list[float]]], shown: dict[str, tuple[str, str]]) -> Panel:
    means = [estimate.mean([row[-1] for row in accuracies[name]]) for name in shown]
    forest = Forest(
        names=[label for _, label in shown.values()],
        values=[f.value for f in means],
        low=[max(0.0, f.low) if f.n > 1 else f.value for f in means],
        high=[min(1.0, f.high) if f.n > 1 else f.value for f in means],
        colours=[colour for colour, _ in shown.values()],
    )
    return Panel(
        layers=[forest, Level(at=0.97, vertical=True, label="0.97")],
        title="at mean length 250",
        x_label="share right",
        x_range=(0.4, 1.03),
    )
