"""The figures of the memorization study.

Enters: a result. Leaves: figures as data.
"""

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
from orbitlens_papers.memorization.axes import Rows, decades, guide, marks, ticks
from orbitlens_papers.memorization.figures_trained import trained
from orbitlens_papers.result import StudyResult


def figures(result: StudyResult) -> tuple[Figure, ...]:
    """Return all figures."""
    return (parameters(result), bits(result), trained(result), order(result))


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
        f"sequences; the slope with one label a token is {result.data('3b')['slope']:.2f}.",
        panels=(_over_number(result), _over_length(result)),
        height=4.0,
    )


def _line(rows: Rows, x: str, y: str) -> tuple[list[float], list[float]]:
    """Return y over x, one point an x: counts do not depend on the seed."""
    found = {float(row[x]): float(row[y]) for row in rows}
    return sorted(found), [found[key] for key in sorted(found)]


def _trained_points(result: StudyResult) -> list[Layer]:
    """Return the fewest parameters that training made do with, mean over seeds."""
    rows = [row for found in result.data("5a")["searches"] for row in found if row["reached"]]
    length = result.data("5a")["searches"][0][-1]["length"]
    chosen = [row for row in rows if not row["each"] and row["length"] == length]
    if not chosen:  # at smoke scale nothing is learned
        return []
    line = marks(chosen, "n_sequences", PINK, "")[0]
    assert isinstance(line, Curve)
    label = f"trained, {length} tokens"
    return [Points(x=line.x, y=line.y, colour=PINK, symbol="diamond", size=7.0, label=label)]


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
        title="8 tokens a sequence",
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
            Curve(x=x, y=own, colour=BLUE, label=f"one label a sequence, N = {many}", markers=True),
            Curve(x=x, y=each, colour=PINK, label=f"one label a token, N = {few}", markers=True),
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
