"""The figure of claim 7: separated vectors, and what depth few parameters take.

Enters: a result. Leaves: a figure as data.
"""

from orbitlens.draw.figure import BLUE, GREEN, ORANGE, PINK, Curve, Figure, Panel, Points
from orbitlens_papers.memorization.axes import Rows, decades, guide, ticks
from orbitlens_papers.result import StudyResult

FORMS = (
    ("root", BLUE, "groups of √N"),
    ("narrow", PINK, "deep and narrow"),
    ("wide", ORANGE, "shallow and wide"),
)


def separated(result: StudyResult) -> Figure:
    """Draw parameters and depth over N, and parameters over depth for one N."""
    data = result.data("7a")
    rows, n = data["rows"], data["sizes"][0]["n_sequences"]
    return Figure(
        name="memorization-separated",
        title="Separated vectors: few parameters take a deep network",
        caption="Transformers on sequences of 8 real vectors out of 8 N, map of tokens and all, "
        "each asked for every label; means over seeds. Slopes over N with groups of √N: parameters "
        f"{result.data('7b')['slope']:.2f}, depth {result.data('7d')['slope']:.2f}; shallow and "
        f"wide, parameters {result.data('7b')['wide_slope']:.2f}. Deep and narrow has the weights "
        f"of groups of √N. Right, N = {n:,}, one seed: every id more in a group is some dozens of "
        "layers more. For N as small as here the shallow and wide one has the fewest "
        "parameters, or small groups have: bit extraction pays for large N only.",
        panels=(
            _over_number(rows, "parameters", "parameters", "∝ √N"),
            _over_number(rows, "depth", "layers", "∝ √N"),
            _over_depth(data["sizes"], rows["wide"]),
        ),
        n_columns=3,
        height=3.6,
    )


def _mean(rows: Rows, field: str) -> tuple[list[float], list[float]]:
    """Return the mean of a field by N."""
    x = sorted({float(row["n_sequences"]) for row in rows})
    by = [[float(row[field]) for row in rows if row["n_sequences"] == n] for n in x]
    return x, [sum(values) / len(values) for values in by]


def _over_number(rows: dict[str, Rows], field: str, label: str, power: str) -> Panel:
    layers, every = [], []
    for name, colour, words in FORMS:
        if (name, field) == ("narrow", "parameters"):
            continue  # the same as with groups of √N
        x, y = _mean(rows[name], field)
        every.append(y)
        layers.append(Curve(x=x, y=y, colour=colour, label=words, markers=True))
    x, y = _mean(rows["root"], field)
    return Panel(
        layers=[*layers, guide(x, y[0], 0.5, power)],
        title=f"{label} over sequences",
        x_label="sequences N",
        y_label=label,
        x_log=True,
        y_log=True,
        x_ticks=ticks(x),
        y_ticks=decades(*every),
    )


def _over_depth(sizes: Rows, wide: Rows) -> Panel:
    """Draw parameters over depth as groups grow, with one layer each as the widest of all."""
    n = sizes[0]["n_sequences"]
    x = [float(row["depth"]) for row in sizes]
    y = [float(row["parameters"]) for row in sizes]
    flat = next(row for row in wide if row["n_sequences"] == n)
    return Panel(
        layers=[
            Curve(x=x, y=y, colour=GREEN, label="groups of 1, 2, 4, …", markers=True),
            Points(
                x=[float(flat["depth"])],
                y=[float(flat["parameters"])],
                colour=ORANGE,
                symbol="square",
                size=6.5,
                label="shallow and wide",
            ),
        ],
        title=f"N = {n:,}",
        x_label="layers",
        y_label="parameters",
        x_log=True,
        y_log=True,
        x_ticks=decades(x, [float(flat["depth"])]),
        y_ticks=decades(y, [float(flat["parameters"])]),
    )
