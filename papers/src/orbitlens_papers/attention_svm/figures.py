"""The figures of the attention-SVM study.

Enters: a result. Leaves: figures as data; what was not testable is left out.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from orbitlens.draw.figure import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PINK,
    Curve,
    Figure,
    Layer,
    Level,
    Panel,
    Points,
)
from orbitlens_papers.estimate import share
from orbitlens_papers.result import StudyResult

KINDS = {"plain": "descent on W", "factored": "descent on K and Q"}
KEYS = {"plain": "1a", "factored": "2a"}
NORMS = {"frobenius": (BLUE, "least Frobenius norm"), "nuclear": (ORANGE, "least nuclear norm")}


def draw_figures(result: StudyResult) -> tuple[Figure, ...]:
    """Return all figures that the result has data for."""
    drawn = [selection(result)]
    if result.data("3a")["picture"]["rays"]:
        drawn.append(plane(result))
    if result.data("1a") and result.data("2a"):
        drawn = [directions(result), spectra(result), *drawn]
    if any(end["seeds"] for end in result.data("7a").get("ends", ())):
        drawn.append(nonlinear(result))
    return tuple(drawn)


# --- directions ------------------------------------------------------------------------------


def directions(result: StudyResult) -> Figure:
    """Draw the cosine with both solutions over the steps, and its value at the end."""
    panels = [_along(result, kind) for kind in KINDS]
    panels.append(_ends(result))
    n = len(result.data("1a")["own"])
    return Figure(
        name="attention-svm-directions",
        title="Descent on W and on (K, Q) go in different directions: each to the SVM of its norm",
        caption=f"Cosine between the trained matrix and the attention SVM for the tokens selected "
        f"at the end, {n} random problems; bands are one standard deviation over problems. Right: "
        "at the end, one mark per problem, with two controls: the SVM of labels drawn anew, and a "
        "random matrix. Dotted: 0.97.",
        panels=panels,
        n_columns=3,
        height=3.6,
    )


def _along(result: StudyResult, kind: str) -> Panel:
    data = result.data(KEYS[kind])
    x = [step + 1.0 for step in data["steps"]]
    layers: list[Layer] = [Level(at=0.97)]
    for norm, (colour, label) in NORMS.items():
        mean, sd = data["curves"][norm]["mean"], data["curves"][norm]["sd"]
        layers.append(
            Curve(
                x=x,
                y=mean,
                low=[m - s for m, s in zip(mean, sd, strict=True)],
                high=[min(1.0, m + s) for m, s in zip(mean, sd, strict=True)],
                colour=colour,
                label=label,
            )
        )
    return Panel(
        layers=layers,
        title=KINDS[kind],
        x_label="step + 1",
        y_label="cosine with the solution",
        x_log=True,
        y_range=(-0.25, 1.06),
    )


def _ends(result: StudyResult) -> Panel:
    layers: list[Layer] = [Level(at=0.97)]
    rows = (
        ("own", BLUE, "own norm"),
        ("other", ORANGE, "other norm"),
        ("redrawn", PINK, "labels drawn anew"),
        ("random", GREY, "a random matrix"),
    )
    for number, (name, colour, label) in enumerate(rows):
        x, y = [], []
        for place, kind in enumerate(KINDS):
            values = result.data(KEYS[kind])[name]
            x += [place + 0.2 * number - 0.3 + _spread(k, len(values)) for k in range(len(values))]
            y += values
        layers.append(Points(x=x, y=y, colour=colour, label=label, size=3.2, opacity=0.7))
    return Panel(
        layers=layers,
        title="at the end",
        x_ticks=[(0.0, "W"), (1.0, "(K, Q)")],
        x_range=(-0.5, 1.5),
        y_range=(-0.45, 1.06),
        y_label="cosine with the solution",
    )


def _spread(k: int, n: int) -> float:
    """Return a small sideways shift, so that marks do not hide each other."""
    return 0.13 * ((k * 0.618) % 1 - 0.5) if n > 1 else 0.0


# --- spectra ---------------------------------------------------------------------------------


def spectra(result: StudyResult) -> Figure:
    """Draw singular values of what was found and of the solutions, and the ranks."""
    layers: list[Layer] = []
    for kind, colour, norm in (("plain", BLUE, "Frobenius"), ("factored", ORANGE, "nuclear")):
        data = result.data(KEYS[kind])["spectra"]
        x = [float(k + 1) for k in range(len(data["solution"]))]
        layers.append(Curve(x=x, y=data["solution"], colour=colour, label=f"SVM, {norm}"))
        layers.append(Points(x=x, y=data["descent"], colour=colour, label=KINDS[kind], size=6.5))
    panel = Panel(
        layers=layers,
        title="singular values, mean over problems",
        x_label="number",
        y_label="share of the norm",
        x_ticks=[(float(k), str(k)) for k in range(1, 11)],
    )
    return Figure(
        name="attention-svm-spectra",
        title="Training K and Q instead of W prefers matrices of low rank",
        caption="Left: singular values over the Frobenius norm; lines are the solutions, marks "
        "what descent found. Middle: nuclear norm of what descent found on each problem, no solver "
        "involved. Right: ranks of the solutions.",
        panels=(panel, _nuclear(result), _rank_counts(result)),
        n_columns=3,
        height=3.6,
    )


def _nuclear(result: StudyResult) -> Panel:
    data = result.data("2b")
    low = min(min(data["plain"]), min(data["factored"])) - 0.05
    high = max(max(data["plain"]), max(data["factored"]), max(data["again"])) + 0.05
    return Panel(
        layers=[
            Curve(x=[low, high], y=[low, high], colour=GREY, dashed=True, width=1.2),
            Points(
                x=data["plain"], y=data["factored"], colour=ORANGE, label="on K and Q", size=4.5
            ),
            Points(
                x=data["plain"],
                y=data["again"],
                colour=BLUE,
                label="on W, another start",
                size=4.5,
                symbol="square",
            ),
        ],
        title="nuclear norm at Frobenius norm 1",
        x_label="descent on W",
        y_label="the other descent",
        x_range=(low, high),
        y_range=(low, high),
    )


def _rank_counts(result: StudyResult) -> Panel:
    data = result.data("5a")
    layers: list[Layer] = []
    top = max(*data["nuclear"], *data["frobenius"])
    places = range(1, top + 1)
    for norm, (colour, label) in NORMS.items():
        counts = [data[norm].count(rank) / len(data[norm]) for rank in places]
        layers.append(
            Curve(x=[float(r) for r in places], y=counts, colour=colour, label=label, markers=True)
        )
    return Panel(
        layers=layers,
        title="rank of the solution",
        x_label="rank",
        y_label="share of problems",
        x_ticks=[(float(r), str(r)) for r in places],
        y_range=(-0.03, 1.05),
    )


# --- selection -------------------------------------------------------------------------------


def selection(result: StudyResult) -> Figure:
    """Draw how attention saturates, and how often it selects the best token by width."""
    data = result.data("3a")
    layers: list[Layer] = [Level(at=0.99)]
    layers += [
        Curve(
            x=[step + 1.0 for step in data["steps"]],
            y=data["curves"][kind],
            colour=colour,
            label=KINDS[kind],
        )
        for kind, colour in (("plain", BLUE), ("factored", ORANGE))
    ]
    return Figure(
        name="attention-svm-selection",
        title="Attention saturates, and in more dimensions it selects the better tokens",
        caption="Left: largest weight of softmax, mean over samples and problems; dotted: 0.99. "
        "Right: share of samples that select the best of their eight tokens, where chance is 1/8; "
        "bars are 95 % intervals.",
        panels=(
            Panel(
                layers=layers,
                title="saturation",
                x_label="step + 1",
                y_label="largest weight",
                x_log=True,
                y_range=(0.0, 1.06),
            ),
            _by_width(result.data("4b")),
        ),
        height=3.5,
    )


def _by_width(data: Mapping[str, Any]) -> Panel:
    layers: list[Layer] = []
    for kind, colour, shift in (("plain", BLUE, 0.98), ("factored", ORANGE, 1.02)):
        shares = [share(right, n, of="samples") for right, n in data["counts"][kind]]
        x = [width * shift for width in data["widths"]]
        layers.append(Curve(x=x, y=[f.value for f in shares], colour=colour, opacity=0.5))
        layers.append(
            Points(
                x=x,
                y=[f.value for f in shares],
                low=[f.low for f in shares],
                high=[f.high for f in shares],
                colour=colour,
                label=KINDS[kind],
            )
        )
    return Panel(
        layers=layers,
        title="best token selected",
        x_label="dimensions",
        y_label="share of samples",
        x_log=True,
        x_ticks=[(float(w), str(w)) for w in data["widths"]],
        y_range=(0.7, 1.02),
    )


# --- the plane -------------------------------------------------------------------------------


def plane(result: StudyResult) -> Figure:
    """Draw the smallest problem: tokens of two samples in the plane, and where W z goes."""
    data = result.data("3a")["picture"]
    panels = [_sample(data, number) for number in range(len(data["tokens"]))]
    return Figure(
        name="attention-svm-plane",
        title="The smallest problem: the score of a token is its inner product with W z",
        caption="Two samples of three tokens in the plane, one panel each. Curves: direction of W "
        "z over the steps, from the start near the centre outwards, as far out as the logarithm of "
        "the step. Dashed rays: the SVM solutions. The token that is selected in the end has a "
        "halo.",
        panels=panels,
        height=4.6,
    )


def _sample(data: Mapping[str, Any], number: int) -> Panel:
    tokens = data["tokens"][number]
    layers: list[Layer] = []
    for kind, colour in (("plain", BLUE), ("factored", ORANGE)):
        ray = _unit(data["rays"][kind][number])
        path = [_unit(look[number]) for look in data["paths"][kind]]
        n = len(path)
        layers.append(
            Curve(
                x=[0.0, 1.25 * ray[0]],
                y=[0.0, 1.25 * ray[1]],
                colour=colour,
                dashed=True,
                width=1.4,
            )
        )
        layers.append(
            Curve(
                x=[(0.15 + 0.95 * k / n) * p[0] for k, p in enumerate(path)],
                y=[(0.15 + 0.95 * k / n) * p[1] for k, p in enumerate(path)],
                colour=colour,
                label=KINDS[kind],
                markers=True,
            )
        )
        chosen = tokens[data["chosen"][kind][number]]
        layers.append(Points(x=[chosen[0]], y=[chosen[1]], colour=colour, size=14.0, opacity=0.35))
    layers.append(
        Points(
            x=[t[0] for t in tokens],
            y=[t[1] for t in tokens],
            colour=INK,
            symbol="diamond",
            label="tokens",
            size=6.0,
        )
    )
    best = tokens[data["optimal"][number]]
    layers.append(
        Points(
            x=[best[0]], y=[best[1]], colour=GREEN, symbol="diamond", label="best token", size=6.0
        )
    )
    return Panel(
        layers=layers,
        title=f"sample {number + 1}",
        x_range=(-1.35, 1.35),
        y_range=(-1.35, 1.35),
        square=True,
        x_label="first coordinate",
        y_label="second coordinate",
    )


def _unit(vector: Sequence[float]) -> tuple[float, float]:
    x, y = vector
    length = (x * x + y * y) ** 0.5 or 1.0
    return x / length, y / length


# --- a nonlinear head ------------------------------------------------------------------------


def nonlinear(result: StudyResult) -> Figure:
    """Draw cosines under a nonlinear head with the SVMs of shared, single and redrawn tokens."""
    ends = result.data("7a")["ends"]
    mixed = sum(sum(end["mixed"]) for end in ends)
    return Figure(
        name="attention-svm-nonlinear",
        title="Under a head of ReLUs an SVM that keeps several tokens on top comes nearer",
        caption="Cosine between W after descent and three solutions, one mark each: "
        f"{result.data('7a')['note']}. In {mixed} of them some sample's attention stays "
        "on several tokens, with shares that no SVM names. Diamonds: means. Dotted: 0.9.",
        panels=(
            _heads(ends, "shared", BLUE, "SVM of all tokens that share attention"),
            _heads(ends, "single", ORANGE, "SVM of the most attended tokens"),
            _heads(ends, "redrawn", PINK, "SVM for labels drawn anew"),
        ),
        n_columns=3,
        height=3.6,
    )


def _heads(ends: Sequence[Mapping[str, Any]], name: str, colour: str, title: str) -> Panel:
    x, y, centres, means = [], [], [], []
    for place, end in enumerate(ends):
        values = end["cosines"][name]
        x += [place + 3 * _spread(k, len(values)) for k in range(len(values))]
        y += values
        if values:
            centres.append(float(place))
            means.append(sum(values) / len(values))
    return Panel(
        layers=[
            Level(at=0.9),
            Points(x=x, y=y, colour=colour, size=3.5, opacity=0.6),
            Points(x=centres, y=means, colour=INK, size=8.0, symbol="diamond", label="mean"),
        ],
        title=title,
        x_label="dimensions",
        y_label="cosine with the solution",
        x_ticks=[(float(k), str(end["width"])) for k, end in enumerate(ends)],
        x_range=(-0.5, len(ends) - 0.5),
        y_range=(-1.0, 1.06),
    )
