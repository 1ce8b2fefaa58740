"""The figure of claims 5: attention on pairs of tokens beside one step of gradient descent.

Enters: a result. Leaves: a figure as data, drawn from what the claims stored.
"""

from collections.abc import Sequence

from orbitlens.draw.figure import (
    BLUE,
    GREEN,
    ORANGE,
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


def gradient_step(result: StudyResult) -> Figure:
    """Draw trained attention beside one gradient step, and the step by length of context."""
    structured = result.data("5a")["runs"]
    # Of the free models 5c has the cosines and 5d the errors.
    free = [result.data("5d")["numbers"], result.data("5c")["settings"]]
    settings = ("commuting", "not commuting")
    errors: list[Layer] = [Level(at=1.0)]
    cosines: list[Layer] = [Level(at=1.0)]
    for shift, (kind, colour) in zip((-0.18, 0.18), KINDS, strict=True):
        if kind == "structured":
            own = [structured[f"{setting}, {kind}"] for setting in settings]
            ratios = [[run["mse"] / run["step_mse"] for run in runs] for runs in own]
            turned, raw = (
                [[r[key] for r in runs] for runs in own] for key in ("aligned", "cosine")
            )
            label = "structured, turned upright"
            cosines.append(_seeds(raw, shift, SKY, "structured, as trained", symbol="x"))
        else:
            ratios, turned = ([part[setting] for setting in settings] for part in free)
            label = kind
        errors.append(_seeds(ratios, shift, colour, kind))
        cosines.append(_seeds(turned, shift, colour, label))
    ticks = [(float(k), name) for k, name in enumerate(settings)]
    return Figure(
        name=f"{NAME}-gradient-step",
        title="Attention on tokens (0, sₜ, sₜ₋₁), and one step of gradient descent",
        caption="With the theorem's structure attention is the step of best length; with all "
        "entries free it does better than the step, in a slightly other direction. One point per "
        "seed. How a plane's turn is split between value and score hardly changes the loss; "
        "upright means that values do not turn. Right: error of one step by number of tokens.",
        panels=(
            _by_setting(errors, "error", "error over that of the step", ticks),
            _by_setting(cosines, "direction", "cosine with the step", ticks),
            _lengths(result),
        ),
        n_columns=3,
        height=3.3,
    )


def _seeds(
    by_setting: Sequence[Sequence[float]],
    shift: float,
    colour: str,
    label: str,
    symbol: str = "circle",
) -> Points:
    """Return a point a seed, beside each other, for every setting."""
    x = [v for k, runs in enumerate(by_setting) for v in beside(k + shift, len(runs), 0.03)]
    y = [value for runs in by_setting for value in runs]
    return Points(x=x, y=y, colour=colour, label=label, symbol=symbol)


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


def beside(place: float, n: int, step: float = 0.07) -> list[float]:
    """Return places next to each other, around one."""
    return [place + step * (k - (n - 1) / 2) for k in range(n)]
