"""The figures of the in-context-autoregression study: solutions, heads, places.

Enters: a result. Leaves: figures as data, drawn from what the claims stored.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from orbitlens.draw.figure import (
    BLUE,
    GREY,
    ORANGE,
    PALETTE,
    PINK,
    Curve,
    Figure,
    Heat,
    Layer,
    Level,
    Panel,
    Points,
)
from orbitlens_papers.autoregression.step_figure import NAME, beside, gradient_step
from orbitlens_papers.result import StudyResult

ZERO = 1e-6  # a loss below it is zero up to the end of training


def draw_figures(result: StudyResult) -> tuple[Figure, ...]:
    """Return all figures."""
    return (
        solutions(result),
        heads(result),
        places(result),
        order(result),
        gradient_step(result),
        angles(result),
    )


# --- what is learnt --------------------------------------------------------------------------


def solutions(result: StudyResult) -> Figure:
    """Draw the map C, the overlap of heads and the weights of places, for both kinds of W."""
    data = result.data("1a")
    panels = []
    for label, solution in data["examples"].items():
        n_heads = len(solution["a"])
        scaled = [[solution["p"][-1] * value for value in row] for row in solution["c"]]
        panels += [
            _table(scaled, f"{label}: C · p_T", "coordinate k", "coordinate i"),
            _table(_overlaps(solution), f"overlap of {n_heads} heads", "B of head", "A of head"),
            _weights(solution["p"]),
        ]
    return Figure(
        name=f"{NAME}-solutions",
        title="What attention learns of sₜ₊₁ = W sₜ",
        caption="Solutions of zero loss, first seed. Unitary W, d heads: C is the identity, heads "
        "are orthogonal, and only the last place counts: W is read off s_T and s_{T−1}. Orthogonal "
        "W, d/2 heads: blocks of ones and the ratio −½ make 2 cos θ s_T − s_{T−1}.",
        panels=panels,
        n_columns=3,
        height=2.7,
        widths=(1.0, 1.15, 1.3),
    )


def _overlaps(solution: Mapping[str, Any]) -> list[list[float]]:
    """Return A_g . B_h over the mean of A_h . B_h."""
    gram = [
        [sum(x * y for x, y in zip(a, b, strict=True)) for b in solution["b"]]
        for a in solution["a"]
    ]
    own = sum(gram[k][k] for k in range(len(gram))) / len(gram)
    return [[value / own for value in row] for row in gram]


def _table(values: Sequence[Sequence[float]], title: str, x: str, y: str) -> Panel:
    heat = Heat(
        values=values,
        x_names=[str(k + 1) for k in range(len(values[0]))],
        y_names=[str(k + 1) for k in range(len(values))],
        texts=[[_brief(value) for value in row] for row in values],
        limits=(-1.0, 1.0),
        colours="diverging",
    )
    return Panel(layers=[heat], title=title, x_label=x, y_label=y)


def _brief(value: float) -> str:
    return "0" if abs(value) < 0.005 else f"{value:.2g}"


def _weights(p: Sequence[float]) -> Panel:
    layers: list[Layer] = [Level(at=0.0)]
    shown = [value / p[-1] for value in p]
    layers += [
        Curve(x=[float(t)] * 2, y=[0.0, value], colour=BLUE, width=3.0)
        for t, value in enumerate(shown, 1)
    ]
    places = [float(t) for t in range(1, len(p) + 1)]
    layers.append(Points(x=places, y=shown, colour=BLUE, size=6.0))
    return Panel(
        layers=layers,
        title="weights of places",
        x_label="place t",
        y_label="p_t / p_T",
        y_range=(-0.7, 1.15),
        x_ticks=[(float(t), str(t)) for t in range(1, len(p) + 1) if len(p) < 12 or t % 5 == 0],
    )


# --- how many heads --------------------------------------------------------------------------


def heads(result: StudyResult) -> Figure:
    """Draw the loss by the number of heads, and where single starts end."""
    data = result.data("3a")
    d = data["d"]
    x = [h / d for h in range(1, d + 1)]
    lines: list[Layer] = [
        _theory([0.0, 1.0], [1.0, 0.0], "1 − H/d", BLUE),
        _theory([0.0, 0.5, 1.0], [1.0, 0.0, 0.0], "1 − 2H/d", ORANGE),
    ]
    for key, colour, label, width in (
        ("circle", BLUE, "unitary W", 9.0),
        ("pairs", ORANGE, "orthogonal W", 5.5),
    ):
        flat = [(at, loss) for at, row in zip(x, data["losses"][key], strict=True) for loss in row]
        lines.append(
            Points(
                x=[at for at, _ in flat],
                y=[loss for _, loss in flat],
                colour=colour,
                label=label,
                size=width,
            )
        )
    return Figure(
        name=f"{NAME}-heads",
        title="How many heads it takes",
        caption="Left: loss by the number of heads, the best of all starts, one point per seed. "
        "Orthogonal W has conjugate eigenvalues, and a head carries a pair of them. Right: how "
        "many single starts get there; the others end in a local minimum.",
        panels=(
            Panel(
                layers=lines,
                title="best of all starts",
                x_label="heads over coordinates, H/d",
                y_label="loss per coordinate",
                y_range=(-0.05, 1.05),
            ),
            _starts(result),
        ),
        height=3.5,
    )


def _theory(x: Sequence[float], y: Sequence[float], label: str, colour: str = GREY) -> Curve:
    return Curve(x=x, y=y, colour=colour, dashed=True, width=1.2, label=label)


def _starts(result: StudyResult) -> Panel:
    by_heads = result.data("4a")["starts"]
    shares = []
    for seeds in by_heads.values():
        flat = [loss for starts in seeds for loss in starts]
        shares.append(sum(loss < ZERO for loss in flat) / len(flat))
    bars: list[Layer] = [
        Curve(x=[float(name)] * 2, y=[0.0, share], colour=ORANGE, width=14.0)
        for name, share in zip(by_heads, shares, strict=True)
    ]
    return Panel(
        layers=bars,
        title="single starts, orthogonal W",
        x_label="heads H",
        y_label="share that reaches zero loss",
        y_range=(0.0, 1.05),
        x_ticks=[(float(name), name) for name in by_heads],
        x_range=(0.5, len(by_heads) + 0.5),
    )


def places(result: StudyResult) -> Figure:
    """Draw the ratio of the last two places by heads, and against its rule."""
    ratios = result.data("4c")["ratios"]
    d = result.data("3a")["d"]
    layers: list[Layer] = [Level(at=-0.5, label="−½")]
    for name, values in ratios.items():
        layers.append(
            Points(
                x=beside(float(name), len(values), 0.06),
                y=values,
                colour=GREY if int(name) == d else ORANGE,
                size=6.5,
            )
        )
    points = result.data("4d")["points"]
    ends = [min(x for x, _ in points) - 0.05, max(x for x, _ in points) + 0.05]
    return Figure(
        name=f"{NAME}-places",
        title="The −½ rule, and the family it belongs to",
        caption="Orthogonal W. Left: the ratio of the last two weights of places; below d heads it "
        "is −½, with d heads (grey) it is free. Right: with d heads it follows from C, the map "
        "between coordinates; one point per row of C and seed.",
        panels=(
            Panel(
                layers=layers,
                title="ratio by number of heads",
                x_label="heads H",
                y_label="weight of place T − 1 over that of T",
                x_ticks=[(float(name), name) for name in ratios],
            ),
            Panel(
                layers=[
                    _theory(ends, ends, "the rule"),
                    Points(
                        x=[x for x, _ in points],
                        y=[y for _, y in points],
                        colour=BLUE,
                        label="trained, d heads",
                        size=6.5,
                    ),
                ],
                title="the family, H = d",
                x_label="−C_ij / (C_ii + C_ij)",
                y_label="weight of place T − 1 over that of T",
            ),
        ),
        height=3.3,
    )


def order(result: StudyResult) -> Figure:
    """Draw what is lost without order, and the loss formula against a Monte-Carlo."""
    d = result.data("3a")["d"]
    rows = (
        ("in order", result.data("3a")["losses"]["circle"][d - 1], BLUE),
        ("equal\nweights", result.data("7b")["losses"], PINK),
        ("shuffled", result.data("7a")["losses"], ORANGE),
    )
    least = result.data("7b")["least"]
    layers: list[Layer] = [
        Level(at=1.0, label="knowing nothing"),
        Curve(x=[0.7, 1.3], y=[least] * 2, colour=GREY, dashed=True, label="least possible"),
    ]
    layers += [
        Points(x=beside(float(place), len(losses)), y=losses, colour=colour, size=6.5)
        for place, (_, losses, colour) in enumerate(rows)
    ]
    return Figure(
        name=f"{NAME}-order",
        title="The position encoding is the algorithm",
        caption="Left: loss of d heads on unitary W, with tokens in order, with one weight for all "
        "places, and with tokens in random order; one point per seed. Right: the loss of random "
        "models, by formula and by Monte-Carlo. The released code, as we read it, counts "
        "place T − 1 twice; these models do not tell the two formulas apart, and the minimiser is "
        "the same.",
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


def _formula(result: StudyResult) -> Panel:
    rows = result.data("1e")["rows"]
    x = [row["sampled"] for row in rows]
    ends = [0.95 * min(x), 1.05 * max(x)]
    return Panel(
        layers=[
            _theory(ends, ends, "the same"),
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
