"""The figure of the memorization study that needs trained networks.

Enters: a result. Leaves: a figure as data.
"""

from orbitlens.draw.figure import BLUE, GREEN, ORANGE, PINK, Curve, Figure, Layer, Panel
from orbitlens_papers.memorization.axes import Rows, decades, guide, marks, ticks
from orbitlens_papers.result import StudyResult

TRIANGLE = " A triangle: even the widest model did not learn it."


def trained(result: StudyResult) -> Figure:
    """Draw the fewest parameters that were enough in training."""
    found = [row for rows in result.data("5a")["searches"] for row in rows]
    return Figure(
        name="memorization-trained",
        title="What training finds instead",
        caption="The fewest trained parameters with which a transformer of one block gets 99 % of "
        "random labels right, by a search over its width; a mark a seed, lines through their "
        "geometric means. Embeddings are random, fixed and not counted. Counting: 3 bits a label "
        f"over 32 a weight.{'' if all(row['reached'] for row in found) else TRIANGLE}",
        panels=(_trained_lengths(found), _trained_numbers(found)),
        height=4.0,
    )


def _trained_lengths(found: Rows) -> Panel:
    layers: list[Layer] = []
    for each, colour, what in ((False, BLUE, "a sequence"), (True, PINK, "a token")):
        rows = [row for row in found if row["each"] is each]
        n = rows[0]["n_sequences"]
        chosen = [row for row in rows if row["n_sequences"] == n]
        layers += marks(chosen, "length", colour, f"one label {what}, N = {n}")
    lengths = sorted({float(row["length"]) for row in found})
    return Panel(
        layers=layers,
        title="longer sequences",
        x_label="tokens a sequence n",
        y_label="fewest parameters",
        x_log=True,
        y_log=True,
        x_ticks=ticks(lengths),
        y_ticks=decades([float(row["parameters"]) for row in found]),
    )


def _trained_numbers(found: Rows) -> Panel:
    length = found[-1]["length"]
    rows = [row for row in found if not row["each"] and row["length"] == length]
    drawn = marks(rows, "n_sequences", BLUE, "trained")
    line = drawn[0]
    assert isinstance(line, Curve)
    x, first = line.x, line.y[0]
    return Panel(
        layers=[
            *drawn,
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
