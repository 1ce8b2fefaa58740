"""The figures of the token-dynamics study.

Enters: a result. Leaves: figures as data; what was not testable is left out.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from orbitlens.draw.figure import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALETTE,
    YELLOW,
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


def draw_figures(result: StudyResult) -> tuple[Figure, ...]:
    """Return all figures that the result has data for."""
    return (phase_map(result), rates(result), rotary(result), *trained_figures(result))


# --- regimes ---------------------------------------------------------------------------------


def phase_map(result: StudyResult) -> Figure:
    """Draw the plane of A's eigenvalues with what simulated systems did."""
    points = result.data("1e")["map"]
    first = {"grows": ORANGE, "both": YELLOW, "shrinks": BLUE}
    words = {
        "grows": "grows in every direction",
        "both": "grows in one, shrinks in another",
        "shrinks": "shrinks in every direction",
    }
    last = {"diverging": ORANGE, "mixed": YELLOW, "converging": BLUE}
    early = [_marks(points, "first", kind, colour, words[kind]) for kind, colour in first.items()]
    late = [_marks(points, "fate", kind, colour, kind) for kind, colour in last.items()]
    notes = (
        (1.0, 1.72, "A ≻ 0: diverge"),
        (-1.0, -1.72, "A ≺ 0: converge"),
        (-1.0, 1.72, "indefinite: mixed"),
        (1.0, -1.72, "indefinite: mixed"),
    )
    return Figure(
        name="token-dynamics-regimes",
        title="Regimes by the eigenvalues of the alignment A = WV⁻¹",
        caption=f"Each mark is one of {len(points)} simulated systems of 8 tokens in the plane, "
        "with random W ≻ 0, placed by the two eigenvalues of its symmetric alignment A. Left: "
        "what the cloud's variance has done by t = 2, over all directions. Right: where the "
        "largest token went by t = 30. “Mixed” is where a cloud starts; growth in one direction "
        "wins in the end.",
        panels=(
            _plane("at first (t = 2)", early, notes),
            _plane("in the long run (t = 30)", late, notes),
        ),
        height=4.6,
    )


def _marks(
    points: Sequence[Mapping[str, Any]], field: str, kind: str, colour: str, label: str
) -> Points:
    chosen = [p for p in points if p[field] == kind]
    symbols = {ORANGE: "triangle-up", BLUE: "triangle-down", YELLOW: "diamond"}
    return Points(
        x=[p["a"] for p in chosen],
        y=[p["b"] for p in chosen],
        label=f"{label} ({len(chosen)})",
        colour=colour,
        symbol=symbols[colour],
        size=4.6,
        opacity=0.75,
    )


def _plane(title: str, layers: Sequence[Layer], notes: Sequence[tuple[float, float, str]]) -> Panel:
    axes = [Level(at=0.0), Level(at=0.0, vertical=True)]
    return Panel(
        layers=[*axes, *layers],
        title=title,
        x_label="first eigenvalue of A",
        y_label="second eigenvalue of A",
        x_range=(-1.9, 1.9),
        y_range=(-2.0, 2.0),
        notes=notes,
    )


# --- rates and conditions --------------------------------------------------------------------


def rates(result: StudyResult) -> Figure:
    """Draw the decay with its theory line, and how often the sign rule is right."""
    return Figure(
        name="token-dynamics-rates",
        title="How fast tokens converge, and when the sign rule is right",
        caption="Left: size of the largest token of systems with A ≺ 0, full attention and causal. "
        "Near zero attention is uniform and the pull is cubic, which leaves t^(−1/2); under a "
        "causal mask the first token is pulled linearly, and decay is exponential. Right: share "
        "of definite systems whose fate is what the sign of sym(A) says, as antisymmetric parts "
        "of W and A grow; bands are 95 % intervals.",
        panels=(_decay_panel(result), _rule_panel(result)),
        widths=(1.15, 1.0),
        height=3.9,
    )


def _decay_panel(result: StudyResult) -> Panel:
    data = result.data("1d")
    layers: list[Layer] = []
    for name, colour, label in (
        ("curves", BLUE, "full attention"),
        ("curves_causal", ORANGE, "causal mask"),
    ):
        for number, curve in enumerate(data[name]):
            kept = [(t, s) for t, s in zip(curve["t"], curve["log_size"], strict=True) if s > -9.2]
            layers.append(
                Curve(
                    x=[t for t, _ in kept],
                    y=[math.exp(s) for _, s in kept],
                    colour=colour,
                    label=label if number == 0 else "",
                    width=1.1,
                    opacity=0.65,
                )
            )
    span = [10.0, 1000.0]
    layers.append(
        Curve(
            x=span,
            y=[1.6 * t**-0.5 for t in span],
            colour="#22262E",
            dashed=True,
            label="theory: t^(−1/2)",
            width=2.0,
        )
    )
    return Panel(
        layers=layers,
        title="decay towards zero",
        x_label="time (depth)",
        y_label="largest token, relative to the start",
        x_log=True,
        y_log=True,
        y_range=(1e-4, 2.0),
    )


def _rule_panel(result: StudyResult) -> Panel:
    rows = result.data("2b")["rows"]
    layers: list[Layer] = []
    for mask, colour in (("full", BLUE), ("causal", ORANGE)):
        chosen = [row for row in rows if row["mask"] == mask]
        x = [row["twist"] for row in chosen]
        layers.append(
            Curve(
                x=x,
                y=[row["share"] for row in chosen],
                low=[row["low"] for row in chosen],
                high=[row["high"] for row in chosen],
                colour=colour,
                label=f"{mask} attention" if mask == "full" else "causal mask",
                markers=True,
            )
        )
    return Panel(
        layers=[Level(at=0.9, label="threshold"), *layers],
        title="the sign rule without symmetry",
        x_label="size of the antisymmetric parts (1: a random matrix's)",
        y_label="share of systems predicted correctly",
        y_range=(0.4, 1.03),
    )


# --- rotary ----------------------------------------------------------------------------------


def rotary(result: StudyResult) -> Figure:
    """Draw the slow-down by context and base, simulated against the closure."""
    rows = result.data("4b")["rows"]
    panels = []
    for sign, title in ((1.0, "distances grow (V = I)"), (-1.0, "distances shrink (V = −I)")):
        layers: list[Layer] = []
        bases = sorted({row["base"] for row in rows if row["base"]})
        for colour, base in zip((GREEN, BLUE, ORANGE, *PALETTE), bases, strict=False):
            layers += _base_layers(
                [row for row in rows if row["base"] == base and row["sign"] == sign], base, colour
            )
        unturned = next(row["unturned"] for row in rows if row["sign"] == sign)
        layers.append(Level(at=unturned, label="without rotary encoding", colour=GREY))
        panels.append(
            Panel(
                layers=layers,
                title=title,
                x_label="tokens of context",
                y_label="log-change of pair distances by t = 2",
                x_log=True,
                x_ticks=[(float(n), str(n)) for n in sorted({row["context"] for row in rows})],
            )
        )
    return Figure(
        name="token-dynamics-rotary",
        title="What a rotary encoding leaves of both regimes: simulated, and by the closure",
        caption="Marks: simulated Gaussian tokens in 8 dimensions with W = I, many at each of the "
        "positions 0 … n − 1 (bars: all seeds). Lines: the Gaussian closure with W averaged over "
        "the offsets of the context, in which fast rotations cancel. This is for W = I; in "
        "trained heads planes may cancel at offset 0 and not in a context (claim 4d).",
        panels=panels,
        height=3.8,
    )


def _base_layers(rows: Sequence[Mapping[str, Any]], base: float, colour: str) -> list[Layer]:
    x = [float(row["context"]) for row in rows]
    means = [sum(row["simulated"]) / len(row["simulated"]) for row in rows]
    return [
        Curve(x=x, y=[row["closure"] for row in rows], colour=colour, width=1.6),
        Points(
            x=x,
            y=means,
            low=[min(row["simulated"]) for row in rows],
            high=[max(row["simulated"]) for row in rows],
            colour=colour,
            label=f"base {base:g}",
            size=6.5,
        ),
    ]


PLACES = (
    ("6a", "sinusoidal encoding, text"),
    ("6b", "sinusoidal encoding, MNIST"),
    ("6c", "rotary encoding, text"),
    ("6d", "rotary encoding, digits"),
)


def trained_figures(result: StudyResult) -> tuple[Figure, ...]:
    """Return what there is data for."""
    drawn = []
    if result.data("5a").get("models"):
        drawn.append(heads(result))
    tested = [key for key, _ in PLACES if result.finding(key).verdict is not Verdict.NOT_TESTABLE]
    if tested:
        drawn.append(refinements(result, tested))
    return tuple(drawn)


# --- trained models --------------------------------------------------------------------------


def heads(result: StudyResult) -> Figure:
    """Draw predicted against measured for every head, and heads by orientation."""
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
        "zero raw distances grow. Right: share of heads whose value map is aligned with their "
        "score map, or opposed to it, by the weights alone, beyond what randomly turned maps are.",
        panels=(
            Panel(
                layers=[*layers, Level(at=0.0), Level(at=0.0, vertical=True)],
                title="what heads do to distances",
                x_label="predicted log-change",
                y_label="measured log-change",
            ),
            _orientations(rows),
        ),
        widths=(1.25, 1.0),
        height=4.2,
    )


def _orientations(rows: Sequence[Mapping[str, Any]]) -> Panel:
    layers: list[Layer] = []
    for name, colour in (("opposed", BLUE), ("aligned", ORANGE)):
        shares = [row["orientations"][name] / sum(row["orientations"].values()) for row in rows]
        sign = -1.0 if name == "opposed" else 1.0
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
        x_label="share of heads: opposed to the left, aligned to the right",
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
        "“released-negative” and “released-positive” hold the signs of stored matrices, as the "
        "released code does (not those of the maps that heads apply); “anti” and “guard” hold "
        "⟨V, W⟩ ≤ 0 and ≥ 0 in every head. Orange: the interval is above zero; blue: below; "
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
