"""More figures of the in-context-autoregression study: order, the gradient step, small angles.

Enters: a result. Leaves: figures as data.
"""

from collections.abc import Sequence

from orbitlens.draw.figure import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALETTE,
    PINK,
    SKY,
    Curve,
    Figure,
    Layer,
    Level,
    Panel,
    Points,
)
from orbitlens_papers.result import StudyResult

NAME = "in-context-autoregression"
KINDS = (("structured", BLUE), ("free", ORANGE))


def order(result: StudyResult) -> Figure:
    """Draw what is lost without order, and the loss formula against a Monte-Carlo."""
    d = result.data("3a")["d"]
    rows = (
        ("in order", result.data("3a")["losses"]["circle"][d - 1], BLUE),
        ("equal\nweights", result.data("7b")["losses"], PINK),
        ("shuffled", result.data("7a")["losses"], ORANGE),
    )
    layers: list[Layer] = [Level(at=1.0, label="knowing nothing")]
    least = result.data("7b")["least"]
    layers.append(
        Curve(x=[0.7, 1.3], y=[least] * 2, colour=GREY, dashed=True, label="least possible")
    )
    for place, (_, losses, colour) in enumerate(rows):
        layers.append(
            Points(x=_beside(float(place), len(losses)), y=losses, colour=colour, size=6.5)
        )
    return Figure(
        name=f"{NAME}-order",
        title="The position encoding is the algorithm",
        caption="Left: loss of d heads on unitary W, with tokens in order, with one weight for all "
        "places, and with tokens in random order; a point a seed. Right: the loss of random "
        "models, by formula and by Monte-Carlo. Place T − 1 counted twice, as in the released code "
        "as we read it, is too much; the minimiser is the same.",
        panels=(
            Panel(
                layers=layers,
                title="loss without order",
                y_label="loss per coordinate",
                x_ticks=[(float(k), name) for k, (name, _, _) in enumerate(rows)],
                x_range=(-0.5, 2.5),
                y_range=(-0.05, 1.12),
            ),
            _formula(result),
        ),
        height=3.4,
    )


def _beside(place: float, n: int, step: float = 0.07) -> list[float]:
    """Return places next to each other, around one."""
    return [place + step * (k - (n - 1) / 2) for k in range(n)]


def _formula(result: StudyResult) -> Panel:
    rows = result.data("1e")["rows"]
    x = [row["sampled"] for row in rows]
    ends = [0.95 * min(x), 1.05 * max(x)]
    return Panel(
        layers=[
            Curve(x=ends, y=ends, colour=GREY, dashed=True, width=1.2, label="the same"),
            Points(x=x, y=[r["once"] for r in rows], colour=BLUE, label="counted once", size=7.0),
            Points(
                x=x,
                y=[r["twice"] for r in rows],
                colour=ORANGE,
                symbol="x",
                label="counted twice",
                size=7.0,
            ),
        ],
        title="expected loss of random models",
        x_label="Monte-Carlo",
        y_label="formula",
    )


# --- the gradient step -----------------------------------------------------------------------


def gradient_step(result: StudyResult) -> Figure:
    """Draw trained attention beside one gradient step, and the step by length of context."""
    data = result.data("5a")
    settings = ("commuting", "not commuting")
    errors: list[Layer] = [Level(at=1.0)]
    cosines: list[Layer] = [Level(at=1.0)]
    for shift, (kind, colour) in zip((-0.18, 0.18), KINDS, strict=True):
        found = [data["runs"][f"{setting}, {kind}"] for setting in settings]
        xs = [x for k, runs in enumerate(found) for x in _beside(k + shift, len(runs), 0.05)]
        flat = [run for runs in found for run in runs]
        ratios = [run["mse"] / run["step_mse"] for run in flat]
        errors.append(Points(x=xs, y=ratios, colour=colour, label=kind, size=6.5))
        if kind == "structured":
            raw = [run["cosine"] for run in flat]
            cosines.append(
                Points(x=xs, y=raw, colour=SKY, symbol="x", label="structured, as trained")
            )
        label = "structured, turned upright" if kind == "structured" else kind
        cosines.append(
            Points(x=xs, y=[run["aligned"] for run in flat], colour=colour, label=label, size=6.5)
        )
    ticks = [(float(k), name) for k, name in enumerate(settings)]
    return Figure(
        name=f"{NAME}-gradient-step",
        title="Attention on tokens (0, sₜ, sₜ₋₁), and one step of gradient descent",
        caption="With the theorem's structure attention is the step of best length; with all "
        "entries free it does better than the step, in a slightly other direction. A point a seed. "
        "How a plane's turn is split between value and score hardly changes the loss; upright "
        "means that values do not turn. Right: what one step leaves, by the number of tokens.",
        panels=(
            _by_setting(errors, "error", "error over that of the step", ticks),
            _by_setting(cosines, "direction", "cosine with the step", ticks),
            _lengths(result),
        ),
        n_columns=3,
        height=3.3,
    )


def _by_setting(
    layers: Sequence[Layer], title: str, label: str, ticks: Sequence[tuple[float, str]]
) -> Panel:
    return Panel(layers=layers, title=title, y_label=label, x_ticks=ticks, x_range=(-0.5, 1.5))


def _lengths(result: StudyResult) -> Panel:
    data = result.data("5a")["by_length"]
    x = [float(n) for n in data["lengths"]]
    return Panel(
        layers=[
            Curve(x=x, y=data[name], colour=colour, label=name, markers=True)
            for name, colour in (("commuting", GREEN), ("not commuting", PINK))
        ],
        title="error of the best step",
        x_label="tokens in the context, T",
        y_label="squared error, |s| = 1",
        x_log=True,
        x_ticks=[(value, str(int(value))) for value in x],
        y_range=(0.0, 1.0),
    )


# --- small angles ----------------------------------------------------------------------------


def angles(result: StudyResult) -> Figure:
    """Draw weights of places when angles are small."""
    data = result.data("6a")
    panels = []
    whole, *others = data["weights"]
    for title, names in (("angles from the whole circle", [whole]), ("small angles", others)):
        layers: list[Layer] = [Level(at=0.0)]
        for colour, name in zip(PALETTE, names, strict=False):
            p = data["weights"][name]
            layers.append(
                Curve(
                    x=[float(t) for t in range(1, len(p) + 1)],
                    y=p,
                    colour=colour,
                    label=f"μ = {name}, loss {data['losses'][name]:.1g}",
                    markers=True,
                    width=1.4,
                )
            )
        panels.append(Panel(layers=layers, title=title, x_label="place t", y_label="p_t"))
    return Figure(
        name=f"{NAME}-angles",
        title="Small angles: the encoding spreads over places",
        caption="Weights of places trained alone, heads fixed, on angles from 0 to 2π/μ. Nearby "
        "tokens are then nearly the same, and descent uses many of them.",
        panels=panels,
        height=3.3,
    )
