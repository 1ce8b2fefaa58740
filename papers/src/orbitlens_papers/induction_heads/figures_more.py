"""Figures of the induction-heads study beyond the three stages: worth, order, information.

Enters: a result. Leaves: figures as data.
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
    Layer,
    Level,
    Panel,
    Points,
)
from orbitlens_papers.result import StudyResult

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
    found: Sequence[Mapping[str, float]]
    if name in {"long", "less_fixed"}:
        found = result.data("5a" if name == "long" else "5b")["losses"][chain]
    else:
        found = result.data(key)["test"][name]
    return found


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
