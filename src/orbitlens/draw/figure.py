"""Figures as data: panels of curves, points, bars and tables of colour.

Enters: numbers from a result. Leaves: frozen dataclasses that `figure_html` and `figure_png` turn
into the same picture, one to explore and one to print. Colours are those of Okabe and Ito (2008).
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orbitlens.errors import InputError, MissingPackageError
from orbitlens.files import write_result

BLUE, ORANGE, GREEN, PINK, YELLOW, SKY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
)
GREY, INK, MUTED, GRID, PAPER = "#8A8F98", "#22262E", "#636A75", "#E3E6EA", "#FFFFFF"
PALETTE = (BLUE, ORANGE, GREEN, PINK, YELLOW, SKY)
ZERO = "#F1F2F3"  # the middle of a scale with two ends
MAPS = {  # colours at equal distances; the first two are those of ColorBrewer
    "sequential": (
        "#FFFFD9", "#EDF8B1", "#C7E9B4", "#7FCDBB", "#41B6C4", "#1D91C0", "#225EA8", "#253494",
        "#081D58",
    ),
    "diverging": (
        "#67001F", "#B2182B", "#D6604D", "#F4A582", "#FDDBC7", "#F7F7F7", "#D1E5F0", "#92C5DE",
        "#4393C3", "#2166AC", "#053061",
    ),
    "signed": (BLUE, ZERO, ORANGE),
    "share": (ZERO, BLUE),
}  # fmt: skip
Number = float | None  # None, or not a number: a gap


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line, with a band where `low` and `high` are given."""

    x: Sequence[float]
    y: Sequence[Number]
    label: str = ""
    colour: str = BLUE
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dashed: bool = False
    dotted: bool = False
    width: float = 1.8
    markers: bool = False
    opacity: float = 1.0
    silent: bool = False  # tells nothing when pointed at


def band(
    x: Sequence[float],
    columns: Sequence[Sequence[float]],
    *,
    colour: str,
    label: str,
    markers: bool = True,
) -> Curve:
    """Return the mean of each column, such as one over seeds, with a band that spans them all."""
    return Curve(
        x=x,
        y=[sum(column) / len(column) for column in columns],
        low=[min(column) for column in columns],
        high=[max(column) for column in columns],
        colour=colour,
        label=label,
        markers=markers,
    )


@dataclass(frozen=True, kw_only=True)
class Band:
    """The room between two curves, without a line of its own."""

    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    label: str = ""
    colour: str = GREY


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Upright bars from zero, or each from its own base."""

    x: Sequence[float]
    y: Sequence[float]
    label: str = ""
    colour: str = BLUE
    width: float = 0.8  # of a bar, in units of x
    base: Sequence[float] = ()  # where each bar starts; `y` is where it ends
    texts: Sequence[str] = ()  # shown when pointed at


@dataclass(frozen=True, kw_only=True)
class Points:
    """Marks, with bars where `low` and `high` are given."""

    x: Sequence[float]
    y: Sequence[float]
    label: str = ""
    colour: str = BLUE
    colours: Sequence[str] = ()  # of each mark, where they differ
    symbol: str = "circle"  # circle, square, triangle-up, triangle-down, diamond, x
    size: float = 6.0
    opacity: float = 0.9
    low: Sequence[float] = ()  # of y
    high: Sequence[float] = ()
    texts: Sequence[str] = ()  # shown when pointed at
    keys: Sequence[str] = ()  # what a page calls each mark, where marks can be chosen


@dataclass(frozen=True, kw_only=True)
class Forest:
    """Rows with a name, a value and its interval, from top to bottom."""

    names: Sequence[str]
    values: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    colours: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Heat:
    """A table of numbers as colours; the first row is on top."""

    values: Sequence[Sequence[Number]]
    x_names: Sequence[str] = ()
    y_names: Sequence[str] = ()
    texts: Sequence[Sequence[str]] = ()
    limits: tuple[float, float] = (0.0, 1.0)
    colours: str = "sequential"  # a name of MAPS
    bar: str = ""  # name of the colour bar; none if empty


@dataclass(frozen=True, kw_only=True)
class Level:
    """A straight reference line."""

    at: float
    label: str = ""
    vertical: bool = False
    colour: str = MUTED


Layer = Curve | Band | Bars | Points | Forest | Heat | Level


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One set of axes."""

    layers: Sequence[Layer]
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    x_log: bool = False
    y_log: bool = False
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    x_ticks: Sequence[tuple[float, str]] = ()
    y_ticks: Sequence[tuple[float, str]] = ()
    legend: bool = True
    square: bool = False
    bare: bool = False  # no axes at all, as for a simplex
    notes: Sequence[tuple[float, float, str]] = ()  # words at a place


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Panels side by side, in rows of `n_columns`."""

    name: str  # of its files
    title: str
    caption: str
    panels: Sequence[Panel]
    n_columns: int = 2
    height: float = 3.3  # inches a row
    widths: Sequence[float] = field(default_factory=tuple)  # of columns, relative

    def __post_init__(self) -> None:
        """Refuse a figure without anything in it."""
        if not self.panels:
            raise InputError(f"the figure {self.name!r} has no panels.")

    @property
    def n_rows(self) -> int:
        """Rows of panels."""
        return -(-len(self.panels) // self.n_columns)


def check_packages() -> None:
    """Refuse before a long run what could not be drawn after it.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingPackageError("figures need matplotlib: pip install 'orbitlens[plot]'.")


def write_figures(figures: Sequence[Figure], folder: Path) -> list[Path]:
    """Write every figure as a page (.html) and a picture (.png); return the files.

    Raises:
        InputError: a file cannot be written.
    """
    from orbitlens.draw.figure_html import html_of
    from orbitlens.draw.figure_png import png_of

    files = []
    for figure in figures:
        drawn = {"html": html_of(figure).encode("utf-8"), "png": png_of(figure)}
        for kind, data in drawn.items():
            file = folder / f"{figure.name}.{kind}"
            write_result(file, data)
            files.append(file)
    return files
