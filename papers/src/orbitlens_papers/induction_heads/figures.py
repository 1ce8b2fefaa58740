"""The figures of the induction-heads study.

Enters: a result. Leaves: figures as data, drawn from what the claims stored.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from orbitlens.draw.figure import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    Curve,
    Figure,
    Heat,
    Layer,
    Level,
    Panel,
    Points,
)
from orbitlens_papers.induction_heads.lag_figure import random_lags
from orbitlens_papers.result import StudyResult

CHAINS = {"a": "{1, 2}", "b": "{1, 3}"}
PARENTS = {"a": (1, 2), "b": (1, 3)}


def draw_figures(result: StudyResult) -> tuple[Figure, ...]:
    """Return all figures."""
    return (
        selector(result),
        copier(result),
        classifier(result),
        attention(result),
        worth(result),
        joint(result),
        information(result),
        random_lags(result),
    )


# --- the three stages ------------------------------------------------------------------------


def selector(result: StudyResult) -> Figure:
    """Draw the share of every set of heads over the first stage."""
    panels = []
    for letter, name in CHAINS.items():
        data = result.data(f"1{letter}")
        curve, parents = data["curve"], list(PARENTS[letter])
        layers: list[Layer] = [Level(at=0.9, label="wanted")]
        others = [k for k, lags in enumerate(data["sets"]) if lags != parents]
        own = data["sets"].index(parents)
        for order, place in enumerate([*others, own]):
            layers.append(
                Curve(
                    x=curve["step"],
                    y=[row[place] for row in curve["shares"]],
                    colour=ORANGE if place == own else GREY,
                    width=2.4 if place == own else 1.2,
                    label=_set_label(place == own, order, len(others)),
                )
            )
        panels.append(
            Panel(
                layers=layers,
                title=f"parents {name}",
                x_label="step of stage one",
                y_label="share c²/Σc²",
                y_range=(-0.03, 1.05),
            )
        )
    return Figure(
        name="induction-heads-selector",
        title="Stage one: which heads belong together",
        caption="Share of every set of at most two heads, the empty one included, while the "
        "selector alone is trained; the first seed.",
        panels=panels,
        height=3.2,
    )


def _set_label(is_own: bool, order: int, n_others: int) -> str:
    if is_own:
        return "the set of the parents"
    return f"the {n_others} other sets" if order == 0 else ""


def copier(result: StudyResult) -> Figure:
    """Draw where the heads of the first layer look, before and after."""
    data = result.data("2b")
    titles = {
        "before": "before training",
        "after": "after stage two",
        "alike": "control: heads that started alike",
    }
    panels = [
        Panel(
            layers=[_lags(data[key], bar="weight" if key == "alike" else "")],
            title=title,
            x_label="lag",
            y_label="head" if key == "before" else "",
        )
        for key, title in titles.items()
    ]
    return Figure(
        name="induction-heads-copier",
        title="Stage two: heads settle on lags",
        caption="Weights of the first layer's heads by lag, parents {1, 3}, first seed. Heads 1 "
        "and 3 are those that the selector uses; nothing asks the others to settle.",
        panels=panels,
        n_columns=3,
        height=3.0,
        widths=(1.0, 1.0, 1.2),
    )


def _lags(values: Sequence[Sequence[float]], *, bar: str) -> Heat:
    names = [str(k + 1) for k in range(len(values))]
    return Heat(
        values=values,
        x_names=names,
        y_names=names,
        texts=[[f"{value:.2f}" for value in row] for row in values],
        limits=(0.0, 1.0),
        bar=bar,
    )


def classifier(result: StudyResult) -> Figure:
    """Draw the loss through all stages with its references, and the scale a."""
    panels = []
    for letter, name in CHAINS.items():
        data = result.data(f"3{letter}")
        panels.append(_losses(data, f"loss, parents {name}"))
    panels.append(_scales(result))
    return Figure(
        name="induction-heads-classifier",
        title="Stage three: the loss falls to that of counting n-grams",
        caption="Training loss through the three stages, first seed, beside what counting in the "
        "same held-out contexts gives; right: the scale of the second layer's attention. Selector "
        "and copier hardly move the loss as long as a is small.",
        panels=panels,
        n_columns=3,
        height=3.6,
    )


def _losses(data: Mapping[str, Any], title: str) -> Panel:
    layers: list[Layer] = []
    start = 0.0
    for stage, colour, label in zip(
        data["stages"], (ORANGE, GREEN, BLUE), ("selector", "copier", "classifier"), strict=True
    ):
        x = [start + step for step in stage["step"]]
        layers.append(Curve(x=x, y=stage["loss"], colour=colour, label=label, width=2.4))
        start = x[-1] + 1.0
    test = data["test"]["plain"][0]
    layers += [
        Level(at=test["unigram"], label="counting tokens"),
        Level(at=test["ngram"], label="counting n-grams"),
        Curve(
            x=[0.0, start],
            y=[test["law"]] * 2,
            colour=GREY,
            dashed=True,
            width=1.2,
            label="knowing the law",
        ),
    ]
    top = max(test["unigram"], *(max(stage["loss"]) for stage in data["stages"]))
    return Panel(
        layers=layers,
        title=title,
        x_label="step, stage after stage",
        y_label="nats",
        y_range=(0.0, 1.12 * top),
    )


def _scales(result: StudyResult) -> Panel:
    layers: list[Layer] = [Level(at=1.0, label="100 × the start")]
    for letter, name in CHAINS.items():
        stage = result.data(f"3{letter}")["stages"][2]
        colour = BLUE if letter == "a" else PINK
        layers.append(Curve(x=stage["step"], y=stage["a"], colour=colour, label=f"parents {name}"))
    return Panel(
        layers=layers, title="scale of attention", x_label="step of stage three", y_label="a"
    )


# --- one context -----------------------------------------------------------------------------


def attention(result: StudyResult) -> Figure:
    """Draw where the second layer looks in one held-out context."""
    panels = [
        _context(result.data(f"3{letter}")["example"], f"parents {name}")
        for letter, name in CHAINS.items()
    ]
    return Figure(
        name="induction-heads-attention",
        title="Where the trained model looks in one context",
        caption="Attention of the second layer over one held-out context of 100 tokens. Orange: "
        "places whose parents hold the same tokens as those of the place to predict. The model is "
        "right as often as such places are.",
        panels=panels,
        n_columns=1,
        height=2.2,
    )


def _context(example: Mapping[str, Any], title: str) -> Panel:
    layers: list[Layer] = []
    places = [float(example["first"] + k) for k in range(len(example["attention"]))]
    for is_match, colour, label in (
        (False, GREY, "other places"),
        (True, ORANGE, "parents match"),
    ):
        chosen = [k for k, match in enumerate(example["match"]) if match is is_match]
        heights = [example["attention"][k] for k in chosen]
        layers += [
            Curve(x=[places[k]] * 2, y=[0.0, y], colour=colour, width=2.2)
            for k, y in zip(chosen, heights, strict=True)
        ]
        layers.append(
            Points(x=[places[k] for k in chosen], y=heights, colour=colour, label=label, size=4.5)
        )
    return Panel(layers=layers, title=title, x_label="place in the context", y_label="attention")


SHOWN = (
    ("plain", "as trained", BLUE),
    ("long", "400 tokens", GREEN),
    ("less_fixed", "α = 0.3", PINK),
    ("degree 1", "no products", ORANGE),
    ("shuffled", "random order", GREY),
)


def worth(result: StudyResult) -> Figure:
    """Draw losses over that of counting n-grams: as trained, elsewhere, and of the controls."""
    panels = []
    for key, chain in (("3a", "{1, 2}"), ("3b", "{1, 3}")):
        layers: list[Layer] = [Level(at=1.0, label="counting n-grams")]
        for place, (name, _, colour) in enumerate(SHOWN):
            ratios = [row["model"] / row["ngram"] for row in _rows(result, key, chain, name)]
            shift = [0.05 * (k - (len(ratios) - 1) / 2) for k in range(len(ratios))]
            layers.append(Points(x=[place + s for s in shift], y=ratios, colour=colour, size=6.5))
        panels.append(
            Panel(
                layers=layers,
                title=f"parents {chain}",
                y_label="loss over that of counting n-grams",
                x_ticks=[(float(k), label) for k, (_, label, _) in enumerate(SHOWN)],
                x_range=(-0.5, len(SHOWN) - 0.5),
            )
        )
    return Figure(
        name="induction-heads-worth",
        title="What the trained model is worth, where it was not trained, and without its parts",
        caption="Held-out loss over that of the n-gram estimator on the same contexts; a point a "
        "seed. Contexts of 400 tokens and less fixed laws were never trained on.",
        panels=panels,
        height=3.4,
    )


def _rows(result: StudyResult, key: str, chain: str, name: str) -> Sequence[Mapping[str, float]]:
    rows: Sequence[Mapping[str, float]]
    if name in {"long", "less_fixed"}:
        rows = result.data("5a" if name == "long" else "5b")["losses"][chain]
    else:
        rows = result.data(key)["test"][name]
    return rows


# --- all weights at once ---------------------------------------------------------------------


def joint(result: StudyResult) -> Figure:
    """Draw selector, copier and classifier when all weights are trained at once."""
    data = result.data("4a")
    panels = [_together(curve, f"parents {name}") for name, curve in data["curves"].items()]
    return Figure(
        name="induction-heads-joint",
        title="All weights at once: what comes first?",
        caption="Share of the parents' set, least weight of their heads on their lags, and the "
        "scale of attention over its largest, in one run of normalised descent on everything. "
        "Dotted lines: when each passes 0.8, 0.95 and 1.",
        panels=panels,
        height=3.4,
    )


def _together(curve: Mapping[str, Any], title: str) -> Panel:
    top = max(*curve["a"], 1e-9)
    rows = (
        ("selected", ORANGE, "selector: share of the parents' set"),
        ("copied", GREEN, "copier: weight on the lag"),
        ("a", BLUE, f"classifier: a / {top:.2g}"),
    )
    layers: list[Layer] = []
    for (key, colour, label), at in zip(rows, curve["times"], strict=True):
        scale = top if key == "a" else 1.0
        y = [value / scale for value in curve[key]]
        layers.append(Curve(x=curve["step"], y=y, colour=colour, label=label, width=2.2))
        if at >= 0:
            layers.append(Level(at=float(at), vertical=True, colour=colour))
    return Panel(layers=layers, title=title, x_label="step", y_label="share", y_range=(-0.03, 1.05))


# --- information -----------------------------------------------------------------------------


def information(result: StudyResult) -> Figure:
    """Draw plain and modified information of every set of lags."""
    panels = []
    for name, rows in result.data("6a")["sets"].items():
        for kind, words in (("modified", "modified χ²"), ("plain", "plain χ²")):
            panels.append(_bars(rows, kind, f"{words} information, parents {name}"))
    return Figure(
        name="induction-heads-information",
        title="Which lags tell most about the next token",
        caption="χ² information between the tokens at a set of lags and the next token, mean over "
        "laws, from long sequences. Plain information never falls when a lag is added; weighed by "
        "how often a match happens it has its peak at the parents (orange).",
        panels=panels,
        height=2.6,
    )


def _bars(rows: Sequence[Mapping[str, Any]], kind: str, title: str) -> Panel:
    layers: list[Layer] = [
        Curve(
            x=[float(k)] * 2,
            y=[0.0, row[kind]],
            colour=ORANGE if row["parents"] else GREY,
            width=9.0,
        )
        for k, row in enumerate(rows)
    ]
    return Panel(
        layers=layers,
        title=title,
        x_label="lags in the set",
        y_label="information",
        x_ticks=[(float(k), "".join(map(str, row["lags"]))) for k, row in enumerate(rows)],
        y_range=(0.0, 1.08 * max(row[kind] for row in rows)),
    )
