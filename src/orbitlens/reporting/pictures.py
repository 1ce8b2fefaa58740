"""One model of a report's JSON -> pictures of its sections as PNG, by matplotlib.

Enters: JSON. Leaves: the bytes of images. They draw the same tables as the page.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from orbitlens.draw.figure import GRID, INK, MUTED
from orbitlens.reporting import tables
from orbitlens.reporting.markup import Model, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPREAD, GATHER, THIRD, GREY = "#D55E00", "#0072B2", "#009E73", "#5B6675"
BANDS = {"untrained twin": GREY, "shuffled": GATHER}
LINES = {"encoding and mask": INK, "encoding alone": SPREAD, "mask alone": GATHER, "neither": GREY}
WIDTH = 11.0  # inches
DPI = 130


def model_pictures(model: Model) -> Iterator[tuple[str, bytes]]:
    """Go through the sections that a model has, each with its picture."""
    drawings: list[tuple[str, bool, Callable[[Model], Figure]]] = [
        ("heads", model["scan"] is not None, _heads),
        ("depth", model["trace"] is not None, _depth),
        ("agreement", model["trace"] is not None, _agreement),
        ("orbits", model["orbits"] is not None, _orbits),
        ("order", model["audit"] is not None, _order),
        ("slices", _has_slices(model), _slices),
    ]
    for name, there, draw in drawings:
        if there:
            yield name, _png(draw(model))


def _has_slices(model: Model) -> bool:
    audit = model["audit"]
    return audit is not None and bool(audit["slices"]) and bool(audit["slices"]["variants"])


def _png(figure: "Figure") -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=DPI)
    return stream.getvalue()


def _figure(title: str, height: float) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.suptitle(_plain_text(title), x=0.01, ha="left", color=INK, fontsize=13)
    return figure


def _plain_text(text: str) -> str:
    return text.replace("$", r"\$")  # matplotlib would read it as mathematics


def _tidy(axes: "Axes", title: str, xlabel: str = "") -> None:
    axes.set_title(_plain_text(title), loc="left", fontsize=10, color=INK)
    axes.set_xlabel(xlabel, color=MUTED, fontsize=9)
    axes.tick_params(colors=MUTED, labelsize=8, length=0)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)


def _column(table: Table, name: str) -> list[Any]:
    k = table.columns.index(name)
    return [row[k] for row in table.rows]


def _line(axes: "Axes", table: Table, name: str, colour: str, style: str = "-") -> None:
    values = [float("nan") if v is None else v for v in _column(table, name)]
    axes.plot([str(row[0]) for row in table.rows], values, style, color=colour, marker="o",
              markersize=4, linewidth=1.8, label=name)  # fmt: skip
    _fewer_names(axes, [str(row[0]) for row in table.rows])


def _fewer_names(axes: "Axes", names: Sequence[str]) -> None:
    step = max(1, len(names) // 8)
    axes.set_xticks(range(0, len(names), step), [n.replace("layer ", "") for n in names[::step]])


# --- sections --------------------------------------------------------------------------------


def _heads(model: Model) -> "Figure":
    layers = model["scan"]["layers"]
    widest = max(len(layer["heads"]) for layer in layers)
    grid = [[float("nan")] * widest for _ in layers]
    for row, layer in zip(grid, layers, strict=True):
        for k, head in enumerate(layer["heads"]):
            row[k] = head["expansion_index"]
    end = max(abs(v) for row in grid for v in row if v == v) or 1.0
    figure = _figure(f"{model['name']}: expansion index of heads", 1.6 + 0.32 * len(layers))
    axes = figure.add_subplot()
    shown = axes.imshow(grid, cmap=_diverging(), vmin=-end, vmax=end, aspect="auto")
    _tidy(axes, "blue gathers tokens, orange spreads them", "head")
    axes.grid(visible=False)
    axes.set_yticks(range(len(layers)), [tables.place(model["scan"], x) for x in layers])
    axes.set_ylabel("layer", color=MUTED, fontsize=9)
    figure.colorbar(shown, ax=axes, shrink=0.9)
    return figure


def _diverging() -> Any:  # noqa: ANN401 - a colour map of matplotlib
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("index", [GATHER, "#F1F2F3", SPREAD])


def _depth(model: Model) -> "Figure":
    shown = [("parts", name, title) for name, title in tables.PARTS.items()]
    there = model["trace"]["layers"][0]["metrics"]
    shown += [("metrics", name, title) for name, title in tables.METRICS.items() if name in there]
    figure = _figure(f"{model['name']}: through depth", 2.4 * -(-len(shown) // 3) + 0.5)
    for k, (kind, name, title) in enumerate(shown):
        axes = figure.add_subplot(-(-len(shown) // 3), 3, k + 1)
        table = tables.over_depth(model, kind, name)
        for control, colour in BANDS.items():
            if f"{control}, lowest" in table.columns:
                low, high = (_column(table, f"{control}, {end}") for end in ("lowest", "highest"))
                axes.fill_between(range(len(low)), low, high, color=colour, alpha=0.3,
                                  label=control, linewidth=1)  # fmt: skip
        _line(axes, table, "measured", SPREAD)
        if "floor" in table.columns:
            _line(axes, table, "floor", THIRD, ":")
        _tidy(axes, f"{title}, ln change" if kind == "parts" else title)
    figure.axes[0].legend(fontsize=7, frameon=False)
    return figure


def _agreement(model: Model) -> "Figure":
    figure = _figure(f"{model['name']}: predicted, simulated, measured", 4.2)
    left, right = figure.subplots(1, 2)
    table = tables.attention_layers(model)
    for name, colour, style in (
        ("measured", INK, "-"), ("predicted", SPREAD, "--"), ("simulated", GATHER, ":"),
    ):  # fmt: skip
        _line(left, table, name, colour, style)
    _tidy(left, "attention: ln change of squared distances", "layer")
    left.legend(fontsize=8, frameon=False)
    heads = tables.attention_heads(model)
    x, y = _column(heads, "predicted"), _column(heads, "measured")
    ends = [min(x + y), max(x + y)]
    right.plot(ends, ends, ":", color=GREY, linewidth=1)
    right.scatter(x, y, s=26, color=SPREAD, alpha=0.75, edgecolors="white")
    _tidy(right, "heads: measured against predicted", "predicted")
    return figure


def _orbits(model: Model) -> "Figure":
    found = model["orbits"]
    figure = _figure(f"{model['name']}: {len(found['tokens'])} tokens through depth", 6.4)
    flat, solid = figure.add_subplot(1, 2, 1), figure.add_subplot(1, 2, 2, projection="3d")
    last, colours = found["positions"][-1], list(range(len(found["tokens"])))
    for n in colours:
        way = list(zip(*(frame[n] for frame in found["positions"]), strict=True))
        flat.plot(way[0], way[1], color=GREY, linewidth=0.6, alpha=0.4)
        solid.plot(*way, color=GREY, linewidth=0.6, alpha=0.4)
    ends = list(zip(*last, strict=True))
    flat.scatter(ends[0], ends[1], c=colours, cmap="cividis", s=30, edgecolors="white", zorder=3)
    solid.scatter(*ends, c=colours, cmap="cividis", s=26)
    shares = [f"{name} direction, {share:.0%}" for name, share in
              zip(("first", "second", "third"), found["explained"], strict=True)]  # fmt: skip
    _tidy(flat, "where they end, and how they came there (2-D)", shares[0])
    flat.set_ylabel(shares[1], color=MUTED, fontsize=9)
    solid.set_title("the same in 3-D", loc="left", fontsize=10, color=INK)
    solid.tick_params(labelsize=7, colors=MUTED)
    return figure


def _order(model: Model) -> "Figure":
    figure = _figure(f"{model['name']}: sense of order", 3.8)
    left, middle, right = figure.subplots(1, 3)
    table = tables.defects(model)
    for name in table.columns[1:]:
        _line(left, table, name, LINES[name])
    _tidy(left, "equivariance defect", "output of layer")
    left.legend(fontsize=7, frameon=False)
    rows = [row for row in tables.swaps(model).rows if str(row[0]).startswith("swap")]
    if rows:
        sizes, means = [row[1] for row in rows], [row[2] for row in rows]
        arms = [[m - row[3] for m, row in zip(means, rows, strict=True)],
                [row[4] - m for m, row in zip(means, rows, strict=True)]]  # fmt: skip
        middle.errorbar(sizes, means, yerr=arms, color=SPREAD, ecolor=GREY, marker="o",
                        markersize=4)  # fmt: skip
        middle.set_xscale("log", base=2)
    _tidy(middle, "swaps by distance", "tokens apart")
    next_to = tables.neighbours(model)
    if next_to.rows:
        right.bar(_column(next_to, "position"), _column(next_to, "mean effect"), color=SPREAD)
    _tidy(right, "swaps of neighbours", "position")
    return figure


def _slices(model: Model) -> "Figure":
    figure = _figure(f"{model['name']}: slices", 4.0)
    left, right = figure.subplots(1, 2)
    table = tables.identity(model)
    names = list(dict.fromkeys(row[0] for row in table.rows))
    states = list(dict.fromkeys(row[1] for row in table.rows))
    grid = [[float("nan")] * len(states) for _ in names]
    for name, state, value in table.rows:
        grid[names.index(name)][states.index(state)] = value
    left.imshow(grid, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    _tidy(left, f"{table.columns[2]} decoded, residuals taken out", "output of")
    left.grid(visible=False)
    left.set_yticks(range(len(names)), names)
    _fewer_names(left, states)
    probes = tables.probes(model)
    for name, colour in (("its token", GATHER), ("previous", THIRD), ("next", GREY),
                         ("place, R²", SPREAD)):  # fmt: skip
        if any(value is not None for value in _column(probes, name)):
            _line(right, probes, name, colour)
    _tidy(right, "what a state tells", "output of")
    right.legend(fontsize=8, frameon=False)
    return figure
