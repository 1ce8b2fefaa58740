"""The figures of the memorization study.

Enters: a result. Leaves: figures as data.
"""

import math
from collections.abc import Sequence

from orbitlens.draw.figure import (
    BLUE,
    GREEN,
    ORANGE,
    PINK,
    Curve,
    Figure,
    Layer,
    Level,
    Panel,
    Points,
    band,
)
from orbitlens_papers.memorization.axes import Rows, decades, guide, ticks
from orbitlens_papers.memorization.depths import separated
from orbitlens_papers.result import StudyResult


def draw_figures(result: StudyResult) -> tuple[Figure, ...]:
    """Return all figures."""
    first = (parameters(result), bits(result), trained(result), order(result))
    return (*first, separated(result))


# --- parameters ------------------------------------------------------------------------------


def parameters(result: StudyResult) -> Figure:
    """Draw parameters over N and over n."""
    data = result.data("2a")
    return Figure(
        name="memorization-parameters",
        title="Parameters that recall every label",
        caption="Left: weights and biases of networks that were built and asked for every label, "
        f"over the number of sequences. Slopes: construction {data['slope']:.2f} "
        f"({data['slope_per_log']:.2f} after division by log N), staircase "
        f"{data['plain_slope']:.2f}. Counting: fewer weights as long as the construction's "
        "longest cannot hold the labels. The staircase is the smaller one as long as N is small. "
        "Right: the same construction over the length of "
        f"sequences; the slope with one label per token is {result.data('3b')['slope']:.2f}.",
        panels=(_over_number(result), _over_length(result)),
        height=4.0,
    )


def _line(rows: Rows, x: str, y: str) -> tuple[list[float], list[float]]:
    """Return y over x, one point an x: counts do not depend on the seed."""
    points = {float(row[x]): float(row[y]) for row in rows}
    return sorted(points), [points[key] for key in sorted(points)]


def _trained_points(result: StudyResult) -> list[Layer]:
    """Return the fewest parameters that training made do with, mean over seeds."""
    rows = [row for searches in result.data("5a")["searches"] for row in searches if row["reached"]]
    length = result.data("5a")["searches"][0][-1]["length"]
    chosen = [row for row in rows if not row["each"] and row["length"] == length]
    if not chosen:  # at smoke scale nothing is learned
        return []
    x, y = _means(chosen, "n_sequences")
    label = f"trained, {length} tokens"
    return [Points(x=x, y=y, colour=PINK, symbol="diamond", size=7.0, label=label)]


def _over_number(result: StudyResult) -> Panel:
    data = result.data("2a")
    x, own = _line(data["rows"], "n_sequences", "parameters")
    _, plain = _line(data["plain"], "n_sequences", "parameters")
    _, bound = _line(data["rows"], "n_sequences", "bound")
    return Panel(
        layers=[
            Curve(x=x, y=plain, colour=ORANGE, label="staircase", markers=True),
            Curve(x=x, y=own, colour=BLUE, label="construction", markers=True),
            guide(x, own[0], 0.5, "∝ √N"),
            Curve(x=x, y=bound, colour=GREEN, label="bound by counting", markers=True),
            *_trained_points(result),
        ],
        title="8 tokens per sequence",
        x_label="sequences N",
        y_label="parameters",
        x_log=True,
        y_log=True,
        x_ticks=ticks(x),
        y_ticks=decades(own, plain, bound),
    )


def _over_length(result: StudyResult) -> Panel:
    data = result.data("3a")
    x, own = _line(data["rows"], "length", "parameters")
    _, each = _line(data["each"], "length", "parameters")
    many, few = (data[name][0]["n_sequences"] for name in ("rows", "each"))
    return Panel(
        layers=[
            Curve(
                x=x, y=own, colour=BLUE, label=f"one label per sequence, N = {many}", markers=True
            ),
            Curve(x=x, y=each, colour=PINK, label=f"one label per token, N = {few}", markers=True),
            guide(x, each[0], 0.5, "∝ √n"),
        ],
        title="longer sequences",
        x_label="tokens a sequence n",
        y_label="parameters",
        x_log=True,
        y_log=True,
        x_ticks=ticks(x),
        y_ticks=decades(own, each),
    )


# --- the price -------------------------------------------------------------------------------


def bits(result: StudyResult) -> Figure:
    """Draw the bits of the longest weight, and what floats make of the network."""
    return Figure(
        name="memorization-bits",
        title="The price: weights too long for any float",
        caption="Left: bits of the longest weight; its slope over N is "
        f"{result.data('4a')['slope']:.2f}. Right: share of wrong labels when every number of the "
        "same network is a float, and in whole numbers. Guessing among 8 labels is wrong 7 times "
        "in 8.",
        panels=(_bits_panel(result), _floats_panel(result)),
        height=3.8,
    )


def _bits_panel(result: StudyResult) -> Panel:
    data = result.data("2a")
    x, own = _line(data["rows"], "n_sequences", "bits")
    _, plain = _line(data["plain"], "n_sequences", "bits")
    return Panel(
        layers=[
            Level(at=53.0, label="a float64 holds 53"),
            Curve(x=x, y=own, colour=BLUE, label="construction", markers=True),
            Curve(x=x, y=plain, colour=ORANGE, label="staircase", markers=True),
            guide(x, own[0], 0.5, "∝ √N"),
        ],
        title="bits of the longest weight",
        x_label="sequences N",
        y_label="bits",
        x_log=True,
        y_log=True,
        x_ticks=ticks(x),
        y_ticks=decades(own, plain),
    )


def _floats_panel(result: StudyResult) -> Panel:
    rows = result.data("4b")["rows"]
    exact = result.data("1a")["rows"]
    shares = [{**row, "share": row["wrong"] / row["labels"]} for row in exact]
    layers: list[Layer] = [Level(at=7 / 8, label="guessing")]
    for name, colour, label in (("float32", PINK, "float32"), ("float64", ORANGE, "float64")):
        layers.append(_spread(rows, name, colour, label))
    layers.append(_spread(shares, "share", BLUE, "whole numbers"))
    places = ticks(sorted({float(row["n_sequences"]) for row in rows}))
    return Panel(
        layers=layers,
        title="wrong labels",
        x_label="sequences N",
        y_label="share of wrong labels",
        x_log=True,
        y_range=(-0.04, 1.04),
        x_ticks=places,
    )


def _spread(rows: Rows, field: str, colour: str, label: str) -> Curve:
    """Return the mean over seeds with a band from the smallest to the largest."""
    x = sorted({float(row["n_sequences"]) for row in rows})
    by = [[row[field] for row in rows if row["n_sequences"] == n] for n in x]
    return band(x, by, colour=colour, label=label)


# --- order -----------------------------------------------------------------------------------


def order(result: StudyResult) -> Figure:
    """Draw the ids of permuted sequences, with places in the map and without."""
    data = result.data("6a")
    wrong = {name: max(row["wrong"] for row in data[name]) for name in ("placed", "plain")}
    n = data["placed"][0]["n_sequences"]
    return Figure(
        name="memorization-order",
        title="Uniform attention cannot tell orders apart; places in the map can",
        caption="Ids of twelve sequences: three multisets of 8 tokens, each in four orders. Of "
        f"{n} such sequences with labels of their own, the network gets up to {wrong['plain']} "
        f"wrong without places in the map of tokens, and {wrong['placed']} with them.",
        panels=tuple(
            _ids(data["example"][key], title)
            for key, title in (
                ("no positions", "a map of the token"),
                ("positions", "a map of token and place"),
            )
        ),
        height=3.4,
    )


def _ids(ids: Sequence[int], title: str) -> Panel:
    layers: list[Layer] = []
    for family, (colour, symbol) in enumerate(
        ((BLUE, "circle"), (ORANGE, "square"), (GREEN, "diamond"))
    ):
        places = range(4 * family, 4 * family + 4)
        layers.append(
            Points(
                x=[float(k + 1) for k in places],
                y=[float(ids[k]) for k in places],
                colour=colour,
                symbol=symbol,
                label=f"multiset {family + 1}",
                size=8.0,
            )
        )
    n_ids = len(set(ids))
    return Panel(
        layers=layers,
        title=f"{title}: {n_ids} different ids of {len(ids)}",
        x_label="sequence",
        y_label="id",
        x_ticks=[(float(k), str(k)) for k in range(1, len(ids) + 1)],
    )


def marks(rows: Rows, x: str, colour: str, label: str) -> list[Layer]:
    """Return a mark a search, and a line through geometric means."""
    layers: list[Layer] = []
    for reached, symbol in ((True, "circle"), (False, "triangle-up")):
        chosen = [row for row in rows if row["reached"] is reached]
        if chosen:
            layers.append(
                Points(
                    x=[float(row[x]) for row in chosen],
                    y=[float(row["parameters"]) for row in chosen],
                    colour=colour,
                    symbol=symbol,
                    size=5.5,
                )
            )
    places, means = _means(rows, x)
    return [Curve(x=places, y=means, colour=colour, label=label), *layers]


def _means(rows: Rows, x: str) -> tuple[list[float], list[float]]:
    """Return the values of x, and the geometric mean of parameters at each."""
    places = sorted({float(row[x]) for row in rows})
    counts = [[row["parameters"] for row in rows if row[x] == place] for place in places]
    return places, [math.exp(sum(map(math.log, c)) / len(c)) for c in counts]


TRIANGLE = " A triangle: even the widest model did not learn it."


def trained(result: StudyResult) -> Figure:
    """Draw the fewest parameters that were enough in training."""
    searches = [row for rows in result.data("5a")["searches"] for row in rows]
    return Figure(
        name="memorization-trained",
        title="What training finds instead",
        caption="The fewest trained parameters with which a transformer of one block gets 99 % of "
        "random labels right, by a search over its width; one mark per seed, lines through their "
        "geometric means. Embeddings are random, fixed and not counted. Counting: 3 bits per label "
        f"over 32 per weight.{'' if all(row['reached'] for row in searches) else TRIANGLE}",
        panels=(_trained_lengths(searches), _trained_numbers(searches)),
        height=4.0,
    )


def _trained_lengths(searches: Rows) -> Panel:
    layers: list[Layer] = []
    for each, colour, what in ((False, BLUE, "a sequence"), (True, PINK, "a token")):
        rows = [row for row in searches if row["each"] is each]
        n = rows[0]["n_sequences"]
        chosen = [row for row in rows if row["n_sequences"] == n]
        layers += marks(chosen, "length", colour, f"one label {what}, N = {n}")
    lengths = sorted({float(row["length"]) for row in searches})
    return Panel(
        layers=layers,
        title="longer sequences",
        x_label="tokens a sequence n",
        y_label="fewest parameters",
        x_log=True,
        y_log=True,
        x_ticks=ticks(lengths),
        y_ticks=decades([float(row["parameters"]) for row in searches]),
    )


def _trained_numbers(searches: Rows) -> Panel:
    length = searches[-1]["length"]
    rows = [row for row in searches if not row["each"] and row["length"] == length]
    x, (first, *_) = _means(rows, "n_sequences")
    return Panel(
        layers=[
            *marks(rows, "n_sequences", BLUE, "trained"),
            guide(x, first, 0.5, "∝ √N"),
            Curve(
                x=x,
                y=[first * value / x[0] for value in x],
                colour=ORANGE,
                dashed=True,
                width=1.2,
                label="∝ N",
            ),
            Curve(x=x, y=[3 * n / 32 for n in x], colour=GREEN, label="bound by counting"),
        ],
        title=f"more sequences, {length} tokens each",
        x_label="sequences N",
        y_label="fewest parameters",
        x_log=True,
        y_log=True,
        x_ticks=ticks(x),
    )
