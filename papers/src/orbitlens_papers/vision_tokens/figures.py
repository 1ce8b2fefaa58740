"""The figures of the study of vision tokenizers.

Enters: a result. Leaves: figures as data.
"""

from collections.abc import Mapping, Sequence

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
)
from orbitlens_papers import estimate
from orbitlens_papers.estimate import Estimate
from orbitlens_papers.result import StudyResult
from orbitlens_papers.vision_tokens.gains import BUDGETS, MAIN, NARROW
from orbitlens_papers.vision_tokens.training import LOOKS

SHOWN = {  # arms at the main budget that are compared with the plain one, and their colour
    "token norm": GREY,
    "MoTo": BLUE,
    "MoTo, replacing": SKY,
    "MoTo, random layout": GREY,
    "TokenProp": GREEN,
    "both": ORANGE,
    "conv stem": PINK,
}


def draw_figures(result: StudyResult) -> tuple[Figure, ...]:
    """Return all figures."""
    return (gains(result), short(result), layouts(result), spectra(result), pixels(result))


# --- gains -----------------------------------------------------------------------------------


def gains(result: StudyResult) -> Figure:
    """Draw gains by arm with their intervals, and accuracy by number of labels."""
    data = result.data("3b")
    n, few = (len(data["arms"][f"{name}, {MAIN}"]) for name in ("plain", "conv stem"))
    return Figure(
        name="vision-tokenizers-gains",
        title="What each tokenizer brings (MoTo and TokenProp are reconstructions)",
        caption=f"Left: accuracy at {MAIN} labels less that of the same model without, over pairs "
        f"of runs with the same labelled images, batches and start: {n} for MoTo, TokenProp "
        f"and both, {few} for the others. Right: accuracy by number of labels. Bars are 95 % "
        f"intervals. Data: {data['source']}.",
        panels=(_forest(data["arms"]), _budgets(data["arms"])),
        widths=(1.25, 1.0),
        height=4.2,
    )


def _forest(arms: Mapping[str, Sequence[float]]) -> Panel:
    plain = arms[f"plain, {MAIN}"]
    gains = {name: _gain(arms[f"{name}, {MAIN}"], plain) for name in SHOWN}
    forest = Forest(
        names=["MoTo and TokenProp" if name == "both" else name for name in gains],
        values=[100 * gain.value for gain in gains.values()],
        low=[100 * max(gain.low, -1.0) for gain in gains.values()],
        high=[100 * min(gain.high, 1.0) for gain in gains.values()],
        colours=list(SHOWN.values()),
    )
    return Panel(
        layers=[forest, Level(at=0.0, vertical=True)],
        title=f"gain at {MAIN} labels",
        x_label="gain in accuracy (points)",
    )


def _gain(own: Sequence[float], other: Sequence[float]) -> Estimate:
    n = min(len(own), len(other))  # pairs: of some arms only half were trained
    return estimate.difference(own[:n], other[:n])


def _budgets(arms: Mapping[str, Sequence[float]]) -> Panel:
    layers: list[Layer] = []
    shift = {"plain": 0.97, "both": 1.03}
    for name, label, colour in (("plain", "plain", BLUE), ("both", "MoTo and TokenProp", ORANGE)):
        means = [estimate.mean(arms[f"{name}, {n}"]) for n in BUDGETS]
        x = [n * shift[name] for n in BUDGETS]
        y = [100 * value.value for value in means]
        layers += [
            Curve(x=x, y=y, colour=colour, width=1.2),
            Points(
                x=x,
                y=y,
                low=[100 * max(0.0, value.low) for value in means],
                high=[100 * min(1.0, value.high) for value in means],
                colour=colour,
                label=label,
            ),
        ]
    return Panel(
        layers=layers,
        title="accuracy by number of labels",
        x_label="labelled images",
        y_label="accuracy (%)",
        x_log=True,
        x_ticks=[(float(n), f"{n:,}") for n in BUDGETS],
    )


# --- more pairs, shorter runs -------------------------------------------------------------------


def short(result: StudyResult) -> Figure:
    """Draw every pair's gain by number of labels, of the runs of 750 steps and of 200."""
    data = [(key, result.data(key)) for key in ("7a", "7b", "7c")]
    n = len(next(iter(data[0][1]["accuracies"].values())))
    return Figure(
        name="vision-tokenizers-short",
        title="The gain in shorter runs (MoTo and TokenProp are reconstructions)",
        caption="Accuracy with both designs less that of the same model without, by number of "
        f"labels: 200 steps and {n} pairs on the left, the runs of claim 3 on the right. Small "
        f"dots are pairs, bars are 95 % intervals of their mean. Data: {data[0][1]['source']}.",
        panels=(
            _pairs(result, ("7a", "7b", "7c"), "200 steps", ORANGE),
            _pairs(result, ("3a", "3b", "3c"), "750 steps", BLUE),
        ),
        height=3.6,
    )


def _pairs(result: StudyResult, keys: Sequence[str], title: str, colour: str) -> Panel:
    layers: list[Layer] = [Level(at=0.0)]
    for place, key in enumerate(keys):
        own, other = (
            result.data(key)["accuracies"][f"{name}, {BUDGETS[place]}"]
            for name in ("both", "plain")
        )
        points = [100 * (a - b) for a, b in zip(own, other, strict=True)]
        x, found = float(place), estimate.mean(points)
        layers += [
            Points(x=[x - 0.12] * len(points), y=points, colour=colour, size=4.0, opacity=0.5),
            Points(
                x=[x + 0.12],
                y=[found.value],
                low=[max(-100.0, found.low)],
                high=[min(100.0, found.high)],
                colour=colour,
                symbol="square",
                size=7.0,
            ),
        ]
    return Panel(
        layers=layers,
        title=title,
        x_label="labelled images",
        y_label="gain in accuracy (points)",
        x_ticks=[(float(place), f"{n:,}") for place, n in enumerate(BUDGETS)],
        x_range=(-0.5, len(keys) - 0.5),
        legend=False,
    )


# --- layouts ---------------------------------------------------------------------------------


def layouts(result: StudyResult) -> Figure:
    """Draw one image and the share of each region in its tokens, for a form in each row."""
    data = result.data("3b")
    panels = []
    for name, row in data["pictures"].items():
        form = name.removesuffix(f", {MAIN}").replace("MoTo, replacing", "MoTo, replacing form")
        panels.append(_picture(row["image"], form))
        panels += [_region(region, k) for k, region in enumerate(row["layout"])]
    return Figure(
        name="vision-tokenizers-layouts",
        title="Layouts: which tokens MoTo, as reconstructed, puts together",
        caption="An image that was not trained on, and the share S of each of four regions in its "
        "tokens (dark: all of it), in a trained model of each form. The layout starts as a random "
        f"map of tokens and is trained through the modulation alone. Data: {data['source']}.",
        panels=panels,
        n_columns=1 + len(next(iter(data["pictures"].values()))["layout"]),
        height=2.2,
    )


def _picture(image: Sequence[Sequence[float]], title: str) -> Panel:
    values = [value for row in image for value in row]
    heat = Heat(values=image, limits=(min(values), max(values)))
    return Panel(layers=[heat], title=title, square=True, bare=True)


def _region(region: Sequence[Sequence[float]], number: int) -> Panel:
    texts = [[f"{value:.1f}" for value in row] for row in region]
    heat = Heat(values=region, texts=texts)
    return Panel(layers=[heat], title=f"region {number + 1}", square=True, bare=True)


# --- spectra ---------------------------------------------------------------------------------

KINDS = (
    ("tokens", "tokens as they enter", GREY, False),
    ("normalised over tokens", "normalised over the image", SKY, True),
    ("modulated", "modulated", ORANGE, False),
)


def spectra(result: StudyResult) -> Figure:
    """Draw eigenvalues of the tokens' covariance before and behind MoTo, for each form."""
    data = result.data("3b")
    panels = [
        _spectrum(row["spectra"], name.removesuffix(f", {MAIN}"))
        for name, row in data["pictures"].items()
    ]
    return Figure(
        name="vision-tokenizers-spectra",
        title="Spread of tokens before and behind MoTo, as reconstructed",
        caption="Eigenvalues of the covariance of tokens over held-out images and places, largest "
        "first, each spectrum divided by its sum; one trained model of each form. "
        f"Data: {data['source']}.",
        panels=panels,
        height=3.8,
    )


def _spectrum(row: Mapping[str, Sequence[float]], name: str) -> Panel:
    layers: list[Layer] = []
    titles = {"MoTo": "residual form", "MoTo, replacing": "replacing form"}
    for key, label, colour, dashed in KINDS:
        values = row[key]
        total = sum(values)
        layers.append(
            Curve(
                x=[float(k + 1) for k in range(len(values))],
                y=[max(value / total, 1e-9) for value in values],
                colour=colour,
                label=label,
                dashed=dashed,
            )
        )
    return Panel(
        layers=layers,
        title=titles.get(name, name),
        x_label="number of the eigenvalue",
        y_label="share of the spread",
        y_log=True,
    )


# --- pixels ----------------------------------------------------------------------------------


def pixels(result: StudyResult) -> Figure:
    """Draw how much of their pixels tokens keep, and when models have learned."""
    data, narrow = result.data("3b"), result.data("4a")
    return Figure(
        name="vision-tokenizers-pixels",
        title="What tokens keep of their pixels (TokenProp is a reconstruction)",
        caption="Left: held-out R² of patches read linearly off tokens, at the width of the main "
        "models and in narrow ones; bars are 95 % intervals over pairs. Right: accuracy on a fifth "
        f"of the images as training ends, one line per run. Data: {data['source']}.",
        panels=(_r2_panel(data["r2"], narrow["best"]), _looks_panel(result)),
        height=4.0,
    )


def _r2_panel(r2: Mapping[str, Sequence[float]], best: float) -> Panel:
    names = ("narrow", "narrow, TokenProp", "plain", "TokenProp", "both", "conv stem")
    means = [estimate.mean(r2[f"{name}, {MAIN}"]) for name in names]
    forest = Forest(
        names=[_with_width(name) for name in names],
        values=[value.value for value in means],
        low=[max(0.0, value.low) for value in means],
        high=[min(1.0, value.high) for value in means],
        colours=[GREY, GREEN, GREY, GREEN, ORANGE, PINK],
    )
    return Panel(
        layers=[forest, Level(at=best, label="best of width 16", vertical=True)],
        title=f"patches read off tokens, {MAIN} labels",
        x_label="R²",
        x_range=(0.78, 1.03),
    )


def _with_width(name: str) -> str:
    width = NARROW if name.startswith("narrow") else "main width"
    rest = name.removeprefix("narrow").removeprefix(", ").replace("plain", "")
    words = f"width {width}" if isinstance(width, int) else width
    return f"{words}, {rest}" if rest else words


def _looks_panel(result: StudyResult) -> Panel:
    layers: list[Layer] = []
    for key, n in (("3a", 200), ("3b", 400), ("3c", 1000)):
        data = result.data(key)
        for name, colour in ((f"plain, {n}", BLUE), (f"both, {n}", ORANGE)):
            for k, looks in enumerate(data["looks"][name]):
                label = "" if k or n != MAIN else _arm_words(name)
                y = [100 * value for value in looks]
                x = [100 * share for share in LOOKS]
                layers.append(Curve(x=x, y=y, colour=colour, label=label, width=0.9))
    return Panel(
        layers=layers,
        title="200, 400 and 1,000 labels, as training ends",
        x_label="steps done (%)",
        y_label="accuracy (%)",
    )


def _arm_words(name: str) -> str:
    return "MoTo and TokenProp" if name.startswith("both") else "plain"
