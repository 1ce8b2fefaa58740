"""The figures of the tokenization study.

Enters: a result. Leaves: figures as data.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from orbitlens.draw.figure import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    SKY,
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
from orbitlens_papers.result import StudyResult
from orbitlens_papers.tokenization.regimes import LAST, SOON, STARTS, WIDTHS
from orbitlens_papers.tokenization.source import ENTROPY, UNIGRAM, block_loss

Rows = Sequence[Mapping[str, Any]]
COIN, BEST = Level(at=UNIGRAM, label="a coin, ln 2"), Level(at=ENTROPY, label="entropy H")
LOSS = "loss (nats per character)"


def draw_figures(result: StudyResult) -> tuple[Figure, ...]:
    """Return all figures."""
    return (unigrams(result), trained(result), ratios(result), boundary(result))


# --- unigram models --------------------------------------------------------------------------


def unigrams(result: StudyResult) -> Figure:
    """Draw losses of unigram models by size of the dictionary, and by order of the source."""
    return Figure(
        name="tokenization-unigrams",
        title="Unigram models over tokens",
        caption="Left: loss on held-out text of the switching source of order 2, by size of the "
        "dictionary; bands reach from the smallest to the largest of the seeds, and the line of "
        "blocks is its closed form. The bound on LZW is that of the theorem with constants as "
        "generally known; for small sizes it is off the scale. Right: share of the gap closed by "
        "byte pairs as the source's memory grows: a small dictionary helps as long as tokens are "
        "longer than the memory.",
        panels=(_sizes_panel(result), _orders_panel(result)),
        widths=(1.25, 1.0),
        height=4.2,
    )


def _band(
    by_seed: Sequence[Rows], field: str, *, x: Sequence[float], colour: str, label: str
) -> Curve:
    values = [[rows[k][field] for rows in by_seed] for k in range(len(by_seed[0]))]
    return band(x, values, colour=colour, label=label)


def _sizes_panel(result: StudyResult) -> Panel:
    layers: list[Layer] = [COIN, BEST]
    for key, label, colour in (("1a", "byte pairs", BLUE), ("2a", "LZW phrases", ORANGE)):
        rows = result.data(key)["rows"]
        x = [float(row["size"]) for row in rows[0]]
        layers.append(_band(rows, "loss", x=x, colour=colour, label=label))
    second = result.data("3a")["second"]
    lengths = [row["block"] for row in second[0]]
    layers += [
        Curve(
            x=[2.0**r for r in lengths],
            y=[block_loss(2, r) for r in lengths],
            colour=GREEN,
            label="blocks, closed form",
        ),
        Points(
            x=[2.0**r for r in lengths],
            y=[row["loss"] for row in second[0]],
            colour=GREEN,
            symbol="square",
            label="blocks, measured",
        ),
        _bound(result),
    ]
    return Panel(
        layers=layers,
        title="order 2, by size of the dictionary",
        x_label="tokens in the dictionary",
        y_label=LOSS,
        x_log=True,
        y_range=(0.48, 0.78),
        x_ticks=[(float(d), f"{d:,}") for d in (2, 4, 10, 30, 100, 300, 1000)],
    )


def _bound(result: StudyResult) -> Curve:
    pairs = [(float(size), value) for size, value in result.data("2c")["bound"].items()]
    shown = [(size, value) for size, value in pairs if math.isfinite(value)]
    return Curve(
        x=[size for size, _ in shown],
        y=[value for _, value in shown],
        colour=GREY,
        dashed=True,
        label="bound on LZW",
    )


def _orders_panel(result: StudyResult) -> Panel:
    orders = result.data("5b")["orders"]
    x = [float(order) for order in orders]
    layers: list[Layer] = [Level(at=0.0), Level(at=1.0, label="entropy H")]
    for place, (size, colour) in enumerate(((10, BLUE), (100, SKY))):
        values = [[rows[place]["closed"] for rows in orders[order]] for order in orders]
        layers.append(band(x, values, colour=colour, label=f"{size} byte pairs"))
    return Panel(
        layers=layers,
        title="by order of the source",
        x_label="order k: letters back",
        y_label="share of the gap closed",
        x_log=True,
        x_ticks=[(value, f"{value:g}") for value in x],
    )


# --- trained models --------------------------------------------------------------------------

ARMS = (
    ("letters", "letters", BLUE),
    ("pairs", "ten byte pairs, as many tokens", ORANGE),
    ("pairs, equal characters", "ten byte pairs, as many characters", PINK),
)


def trained(result: StudyResult) -> Figure:
    """Draw losses by step: in the paper-like regime, and with and without positions."""
    blind = result.data("6a")
    others = (("learned", "learned positions", BLUE), ("blind", "no positions", GREY))
    return Figure(
        name="tokenization-trained",
        title="Transformers over letters and over tokens",
        caption="Held-out loss by step on the source of order 2; lines are means over seeds, bands "
        "all of them. Left: one layer of width 16, all weights "
        "N(0, 0.02²), embeddings tied; ten equally likely byte pairs already cost little, before "
        "any training. Right: one layer of width 64 with torch's own start, over letters: order "
        "needs positions.",
        panels=(
            _steps_panel(
                [(result.data("4a")["arms"][key], label, c) for key, label, c in ARMS],
                "the paper-like regime",
            ),
            _steps_panel(
                [(blind[key], label, c) for key, label, c in others], "a wider model, letters"
            ),
        ),
        height=4.2,
    )


def _steps_panel(arms: Sequence[tuple[Rows, str, str]], title: str) -> Panel:
    layers: list[Layer] = [COIN, BEST]
    for rows, label, colour in arms:
        steps = [float(step) for step in rows[0]["steps"]]
        values = [[row["losses"][k] for row in rows] for k in range(len(steps))]
        layers.append(band(steps, values, colour=colour, label=label, markers=False))
    return Panel(layers=layers, title=title, x_label="step", y_label=LOSS, y_range=(0.47, 0.76))


# --- the ratio of steps ----------------------------------------------------------------------


def ratios(result: StudyResult) -> Figure:
    """Draw the steps of each seed's pair to two shares of the gap."""
    by_share = {
        share: result.data(key)["steps"]
        for key, share in (("4e", "nine tenths"), ("4f", "seven tenths"))
    }
    n = sum(known is None for steps in by_share.values() for own in steps.values() for known in own)
    crosses = "Crosses are runs that had not got there when their budget ended: they need more."
    return Figure(
        name="tokenization-ratios",
        title="Steps that letters and byte pairs need for the same share of the gap",
        caption="A line a seed; one layer of width 16, windows of 128 tokens, order 2. "
        + (crosses if n else "All runs got there within their budgets."),
        panels=[_took(steps, share) for share, steps in by_share.items()],
        height=3.8,
    )


def _took(steps: Mapping[str, Sequence[float | None]], share: str) -> Panel:
    layers: list[Layer] = []
    for letters, pairs in zip(steps["letters"], steps["pairs"], strict=True):
        y = [
            float(most if x is None else max(x, 1.0))
            for x, most in ((pairs, SOON), (letters, LAST))
        ]
        layers.append(Curve(x=[0.0, 1.0], y=y, colour=GREY, width=1.0))
        for x, at, known in ((0.0, y[0], pairs), (1.0, y[1], letters)):
            symbol, colour = ("x", PINK) if known is None else ("circle", BLUE)
            layers.append(Points(x=[x], y=[at], colour=colour, symbol=symbol, size=6.0))
    return Panel(
        layers=layers,
        title=f"{share} of the gap",
        y_label="steps",
        y_log=True,
        x_range=(-0.3, 1.3),
        x_ticks=[(0.0, "ten byte pairs"), (1.0, "letters")],
        y_ticks=[(float(n), f"{n}") for n in (10, 30, 100, 300, 700)],
        legend=False,
    )


# --- the boundary ----------------------------------------------------------------------------


def boundary(result: StudyResult) -> Figure:
    """Draw steps to half the gap over width and start, and over order."""
    data = result.data("5a")
    note = data["note"]
    return Figure(
        name="tokenization-boundary",
        title="Where letters are slow, and where they are not",
        caption=f"Steps until a transformer of two layers over letters has closed half of the gap, "
        f"mean over seeds. {note[0].upper()}{note[1:]}.",
        panels=(_heat(data), _variants(data)),
        height=3.6,
    )


def _words(steps: Sequence[int], most: int) -> str:
    return f"> {most}" if min(steps) >= most else f"{fmean(steps):.0f}"


def _heat(data: Mapping[str, Any]) -> Panel:
    cells, most = data["cells"], data["most"]
    widths = [w for w in WIDTHS if f"{w} {STARTS[0]}" in cells]
    table = [[cells[f"{w} {start}"] for start in STARTS] for w in widths]
    heat = Heat(
        values=[[fmean(steps) for steps in row] for row in table],
        x_names=["N(0, 0.02²), tied", "torch's own"],
        y_names=[f"width {w}" for w in widths],
        texts=[[_words(steps, most) for steps in row] for row in table],
        limits=(0.0, float(most)),
        bar="steps to half the gap",
    )
    return Panel(layers=[heat], title="order 2", x_label="start of weights")


def _variants(data: Mapping[str, Any]) -> Panel:
    """Draw the widest model with one thing changed at a time."""
    cells, most = data["cells"], data["most"]
    names = [name for name in cells if "," in name]
    first = names[0].split(",")[0]
    rows = {"as on the left": cells[first]} | {name.split(", ")[1]: cells[name] for name in names}
    means = [fmean(steps) for steps in rows.values()]
    forest = Forest(
        names=list(rows),
        values=means,
        low=[float(min(steps)) for steps in rows.values()],
        high=[float(max(steps)) for steps in rows.values()],
        colours=[GREEN if mean <= SOON else BLUE for mean in means],
    )
    return Panel(
        layers=[forest, Level(at=float(SOON), label=f"{SOON} steps", vertical=True)],
        title=f"width {first.split()[0]}, torch's own start",
        x_label="steps to half the gap; bars: all seeds",
        x_range=(0.0, max(1.05 * most, 330.0)),
    )
