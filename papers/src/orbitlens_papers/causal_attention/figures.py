"""The figures of the causal-attention study.

Enters: a result. Leaves: figures as data.
"""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from orbitlens.draw.figure import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    SKY,
    YELLOW,
    Curve,
    Figure,
    Forest,
    Layer,
    Level,
    Panel,
    band,
)
from orbitlens_papers.causal_attention.session_figure import session
from orbitlens_papers.result import StudyResult

NAMES = (
    ("exhaustive", "all sets, exhaustive", GREEN),
    ("graph", "sets near in the graph", BLUE),
    ("other session", "… in that of another session", GREY),
    ("random attention", "… in that of random attention", GREY),
    ("attention, all sets", "all sets, most attention first", SKY),
    ("attention", "ranked by attention", ORANGE),
    ("gradient", "ranked by gradient × input", YELLOW),
    ("random", "in random order", PINK),
)


def draw_figures(result: StudyResult) -> tuple[Figure, ...]:
    """Return all figures."""
    return (
        identity(result),
        session(result),
        sizes(result),
        edges(result),
        conventions(result),
    )


# --- linear models ---------------------------------------------------------------------------


def identity(result: StudyResult) -> Figure:
    """Draw how well graphs of linear models come back."""
    totals = result.data("2a")["totals"]
    return Figure(
        name="causal-attention-identity",
        title="Graphs of linear models come back from their mixing matrix",
        caption="Left: F1 of the skeleton that tests on A Aᵀ give, by the number of samples that "
        "the correlations are taken to stand for; the band spans seeds, the upper dotted "
        "line is the threshold, and 64 is the width of the recommender below. Right: with two "
        f"latents, shares in {totals['found']:,} edges that ICD found; bars reach from the "
        "smallest to the largest of the seeds.",
        panels=(_f1_panel(result), _latent_panel(result)),
        widths=(1.0, 1.1),
        height=3.4,
    )


def _f1_panel(result: StudyResult) -> Panel:
    curves = result.data("1a")["by samples"]
    x = [float(n) for n in curves[0]]
    columns = [[curve[n] for curve in curves] for n in curves[0]]
    wrong = fmean(result.data("1a")["control"])
    return Panel(
        layers=[
            band(x, columns, colour=BLUE, label="A of the model"),
            Level(at=0.93),
            Level(at=wrong, label="random attention", colour=ORANGE),
        ],
        title="no latents: skeleton",
        x_label="samples",
        y_label="F1",
        x_log=True,
        x_ticks=[(n, f"{n:g}") for n in x if n != 1024],
        y_range=(0.0, 1.05),
        legend=False,
    )


def _latent_panel(result: StudyResult) -> Panel:
    rows = (
        ("direct edges found", "2a"),
        ("edges without an inducing path", "2b"),
        ("arrowheads that are right", "2c"),
    )
    names, values, colours = [], [], []
    for label, key in rows:
        data = result.data(key)
        for name, numbers, colour in (
            (label, data["result"], BLUE),
            ("… in the graph of another model", data["control"], GREY),
        ):
            names.append(name)
            values.append(numbers)
            colours.append(colour)
    forest = Forest(
        names=names,
        values=[fmean(numbers) for numbers in values],
        low=[min(numbers) for numbers in values],
        high=[max(numbers) for numbers in values],
        colours=colours,
    )
    return Panel(layers=[forest], title="two latents", x_label="share", x_range=(-0.05, 1.05))


# --- sizes and calls -------------------------------------------------------------------------


def sizes(result: StudyResult) -> Figure:
    """Draw sizes, calls and hits of all methods."""
    data = result.data("3a")
    n_sessions = len(data["rows"])
    single = sum(row["sizes"]["exhaustive"] == 1 for row in data["rows"]) / n_sessions
    hits = [model["hits"] for model in data["models"]]
    best = [model["best"] for model in data["models"]]
    return Figure(
        name="causal-attention-sizes",
        title="Explanations of a recommender: how many items, how many model calls",
        caption=f"{n_sessions} sessions of {len(hits)} recommenders, trained on sessions from a "
        f"generator (hit rate {fmean(hits):.2f}; {fmean(best):.2f} for a reader who knows the "
        "world); dots are means, bars span the seeds. A method that finds no set counts as all "
        f"items, and pays for an exhaustive search; in {single:.0%} of sessions a single item "
        "would do. Below right: sessions in which a parent of the recommended item stands.",
        panels=(
            _forest_panel(data, "size", "items in the set", "size of the set"),
            _forest_panel(data, "calls", "model calls", "model calls"),
            _calls_panel(data),
            _hits_panel(result),
        ),
        height=3.5,
    )


def _shown(example: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    return [row for row in NAMES if row[0] in example]


def _forest_panel(data: Mapping[str, Any], field: str, label: str, title: str) -> Panel:
    rows = _shown(data["methods"])
    numbers = [data["methods"][name][field] for name, _, _ in rows]
    forest = Forest(
        names=[words for _, words, _ in rows],
        values=[fmean(values) for values in numbers],
        low=[min(values) for values in numbers],
        high=[max(values) for values in numbers],
        colours=[colour for _, _, colour in rows],
    )
    return Panel(layers=[forest], title=title, x_label=f"{label}, mean")


def _calls_panel(data: Mapping[str, Any]) -> Panel:
    """Draw calls by the size of the smallest set there is."""
    layers: list[Layer] = []
    for name, words, colour in _shown(data["methods"]):
        by_size: dict[int, list[float]] = {}
        for row in data["rows"]:
            by_size.setdefault(row["sizes"]["exhaustive"], []).append(row["calls"][name])
        x = sorted(size for size, calls in by_size.items() if len(calls) > 2) or sorted(by_size)
        if name in ("random attention", "random", "gradient"):
            continue
        layers.append(
            Curve(
                x=[float(size) for size in x],
                y=[fmean(by_size[size]) for size in x],
                label=words,
                colour=colour,
                markers=True,
            )
        )
    ticks = sorted({float(row["sizes"]["exhaustive"]) for row in data["rows"]})
    return Panel(
        layers=layers,
        title="model calls by size of the smallest set",
        x_label="items in the smallest set there is",
        y_label="model calls, mean",
        x_ticks=[(value, f"{value:g}") for value in ticks],
    )


def _hits_panel(result: StudyResult) -> Panel:
    shares = [share for share in result.data("4a")["shares"] if share]
    if not shares:
        return Panel(layers=[Level(at=0.0)], title="no session had a parent of its item")
    rows = [row for row in NAMES if row[0] in shares[0] and row[0] != "attention"]
    rows.insert(1, ("attention, as many", "as many, most attention", ORANGE))
    numbers = [[share[name] for share in shares] for name, _, _ in rows]
    forest = Forest(
        names=[words for _, words, _ in rows],
        values=[fmean(values) for values in numbers],
        low=[min(values) for values in numbers],
        high=[max(values) for values in numbers],
        colours=[colour for _, _, colour in rows],
    )
    return Panel(
        layers=[forest],
        title="sets with a true parent of the item",
        x_label="share of sessions",
        x_range=(-0.03, 1.03),
    )


# --- edges of the generator ------------------------------------------------------------------

SKELETONS = (
    ("planted", "attention made from the true edges", GREEN),
    ("trained", "trained attention, mean of heads", BLUE),
    ("any head", "… edges of any head", SKY),
    ("as many by attention", "as many pairs, most attention", ORANGE),
    ("as many at random", "as many pairs at random", GREY),
    ("random attention", "random attention", GREY),
)


def edges(result: StudyResult) -> Figure:
    """Draw how well skeletons have the edges of the generator."""
    data = result.data("4b")
    rows = [(words, data["scores"][name], colour) for name, words, colour in SKELETONS]
    forest = Forest(
        names=[words for words, _, _ in rows],
        values=[fmean(values) for _, values, _ in rows],
        low=[min(values) for _, values, _ in rows],
        high=[max(values) for _, values, _ in rows],
        colours=[colour for _, _, colour in rows],
    )
    threshold = result.finding("4c").claim.threshold
    return Figure(
        name="causal-attention-edges",
        title="Graphs of attention against the edges of the generator",
        caption=f"F1 of skeletons in {data['sessions']} sessions: pairs of an item and a parent of "
        "it that stands earlier, with the recommended item in the last place. Dots are means, bars "
        "span the seeds; the dotted line is the threshold of 4c. Graphs are learnt from 64 "
        "samples, the width; what is made from the true edges shows how much these can give.",
        panels=(
            Panel(
                layers=[forest, Level(at=threshold, vertical=True)],
                x_label="F1",
                x_range=(-0.03, 1.03),
            ),
        ),
        n_columns=1,
        height=3.2,
    )


# --- conventions -----------------------------------------------------------------------------


def conventions(result: StudyResult) -> Figure:
    """Draw how graphs change with the number of samples, the level and the head."""
    return Figure(
        name="causal-attention-conventions",
        title="What a graph of attention depends on",
        caption="Share of edges, of those in either of two graphs of trained heads, that both "
        "have; bands span seeds. Left and middle: against the graph at 64 samples, the width, and "
        "level 0.01 (where it is 1); the dashed line is the share of pairs that are "
        "edges. Right: the same, beside graphs of the other head and of another session.",
        panels=(
            _convention_panel(result, "6a", "samples", 64.0),
            _convention_panel(result, "6b", "level of the tests", 0.01),
            _heads_panel(result),
        ),
        n_columns=3,
        height=3.4,
    )


def _convention_panel(result: StudyResult, key: str, label: str, base: float) -> Panel:
    data = result.data(key)["varied"]
    alike = {float(v): values for v, values in data["alike"].items()} | {base: [1.0]}
    density = {float(v): values for v, values in data["density"].items()}
    density[base] = data["base"]["density"]
    x = sorted(alike)
    return Panel(
        layers=[
            band(x, [alike[v] for v in x], colour=BLUE, label="edges in common"),
            Curve(
                x=x,
                y=[fmean(density[v]) for v in x],
                colour=GREY,
                dashed=True,
                label="pairs that are edges",
            ),
        ],
        title=f"by {label}",
        x_label=label,
        y_label="share",
        x_log=True,
        x_ticks=[(v, f"{v:g}") for v in x],
        y_range=(0.0, 1.05),
    )


def _heads_panel(result: StudyResult) -> Panel:
    six, seven = result.data("6a"), result.data("7a")
    rows = (
        ("4 × the samples", six["result"], BLUE),
        ("level 0.05", result.data("6b")["result"], BLUE),
        ("other head", seven["result"], ORANGE),
        ("other session", seven["control"], GREY),
    )
    forest = Forest(
        names=[name for name, _, _ in rows],
        values=[fmean(values) for _, values, _ in rows],
        low=[min(values) for _, values, _ in rows],
        high=[max(values) for _, values, _ in rows],
        colours=[colour for _, _, colour in rows],
    )
    return Panel(layers=[forest], title="edges in common", x_label="share", x_range=(-0.03, 1.03))
