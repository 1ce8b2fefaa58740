"""The figure of claim 7: separated vectors, and what depth few parameters take.

Enters: a result. Leaves: a figure as data.
"""

from collections.abc import Mapping

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
        title="Separated vectors: parameters are saved at the price of depth",
        caption="Transformers on sequences of 8 real vectors out of 8 N, map of tokens and all, "
        "each asked for every label; means over seeds. Slopes over N with groups of √N: parameters "
        f"{result.data('7b')['slope']:.2f}, depth {result.data('7d')['slope']:.2f}; shallow and "
        f"wide, parameters {result.data('7b')['wide_slope']:.2f}, and fewer of them up to N = "
        f"{_shallow_is_smaller(rows):,}. Deep and narrow has the weights of groups of √N. Right, "
        f"one seed: parameters over layers as groups grow; at N = {n:,} there are fewest with "
        f"{min(data['sizes'], key=lambda row: row['parameters'])['size']} ids a group.",
        panels=(
            _over_number(rows, "parameters", "parameters", "∝ √N"),
            _over_number(rows, "depth", "layers", "∝ √N"),
            _over_depth(data["sizes"], rows["wide"]),
        ),
        n_columns=3,
        height=3.6,
    )


def _shallow_is_smaller(rows: Mapping[str, Rows]) -> int:
    """Return the largest N at which one layer each has fewer parameters than groups of √N; or 0."""
    x, root = _mean(rows["root"], "parameters")
    _, wide = _mean(rows["wide"], "parameters")
    return max((round(n) for n, a, b in zip(x, wide, root, strict=True) if a < b), default=0)


def _mean(rows: Rows, field: str) -> tuple[list[float], list[float]]:
    """Return the mean of a field by N."""
    x = sorted({float(row["n_sequences"]) for row in rows})
    by = [[float(row[field]) for row in rows if row["n_sequences"] == n] for n in x]
    return x, [sum(values) / len(values) for values in by]


def _over_number(rows: Mapping[str, Rows], field: str, label: str, power: str) -> Panel:
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
