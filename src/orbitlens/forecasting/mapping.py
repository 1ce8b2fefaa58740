"""A map of forecasts over two parameters: where an architecture is on the side that trains.

Enters: a `Blueprint` and two axes. Leaves: a `ForecastMap`, cells column by column, each with what
is forecast there and the verdict.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from orbitlens.draw.figure import Curve, Figure, Heat, Panel
from orbitlens.errors import InputError
from orbitlens.forecasting.api import forecast
from orbitlens.forecasting.blueprint import Blueprint
from orbitlens.forecasting.forecast_result import TrainingVerdict
from orbitlens.forecasting.trainability import measured_words
from orbitlens.results.base import Result
from orbitlens.results.html import HtmlTable
from orbitlens.results.tidy import data_frame

if TYPE_CHECKING:
    import pandas

WHOLE = ("layers", "width", "heads", "inner", "context", "vocabulary")
SWEPT = (*WHOLE, "init", "output_init", "residual_scale", "rotary_base")
SHADE = {TrainingVerdict.TRAINS: 1.0, TrainingVerdict.UNCLEAR: 0.5, TrainingVerdict.FAILS: 0.0}
MOST_CELLS = 2500


@dataclass(frozen=True, kw_only=True)
class MapAxis:
    """A parameter of a blueprint, and the values it takes."""

    name: str
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse what a blueprint does not have.

        Raises:
            InputError: with the parameters there are.
        """
        if self.name not in SWEPT:
            raise InputError(f"{self.name!r} cannot be swept. Parameters: {', '.join(SWEPT)}.")
        if not self.values:
            raise InputError(f"the axis {self.name!r} has no values; expected at least one.")

    def at(self, value: float) -> float | int:
        """Return a value as the blueprint takes it."""
        return round(value) if self.name in WHOLE else float(value)


@dataclass(frozen=True, kw_only=True)
class MapCell:
    """What is forecast at one point."""

    x: float
    y: float
    cosine: float  # behind the last layer
    gradient: float  # in front of the first layer, beside that behind the last
    rank: float  # effective, behind the last layer
    verdict: TrainingVerdict


@dataclass(frozen=True, kw_only=True, repr=False)
class ForecastMap(Result):
    """Forecasts over two parameters."""

    KIND: ClassVar[str] = "forecast map"

    blueprint: Blueprint
    x: MapAxis
    y: MapAxis
    cells: tuple[MapCell, ...]  # column by column

    def rows(self) -> list[list[MapCell]]:
        """Return the cells, the highest y first."""
        n = len(self.y.values)
        return [list(self.cells[row::n]) for row in reversed(range(n))]

    def frontier(self) -> list[float | None]:
        """Return for each x the largest y up to which every cell trains; None: not even the least.

        The frontier is that of a rising y: cells above one that does not train are not looked at.
        """
        n, found = len(self.y.values), []
        for column in range(len(self.x.values)):
            last = None
            for cell in sorted(self.cells[column * n : (column + 1) * n], key=lambda c: c.y):
                if cell.verdict is not TrainingVerdict.TRAINS:
                    break
                last = cell.y
            found.append(last)
        return found

    def summary(self) -> str:
        """Return how many cells train, in sentences."""
        counts = {kind: sum(c.verdict is kind for c in self.cells) for kind in TrainingVerdict}
        named = ", ".join(f"{kind.value}: {count}" for kind, count in counts.items())
        swept = f"{self.x.name} and {self.y.name}"
        return f"Of {len(self.cells)} combinations of {swept}: {named}. {measured_words()}"

    def to_pandas(self) -> "pandas.DataFrame":
        """Return one row a cell."""
        return data_frame(self._rows())

    def _rows(self) -> Iterator[dict[str, object]]:
        return (asdict(cell) | {"verdict": cell.verdict.value} for cell in self.cells)

    def _tables(self) -> Sequence[HtmlTable]:
        columns = [each.name for each in fields(MapCell)]
        values = [[row[name] for name in columns] for row in self._rows()]
        return [HtmlTable(caption="Cells", columns=columns, rows=values)]

    def _figure(self, go: Any) -> Any:  # noqa: ANN401 - plotly ships no types
        drawn = go.Figure(
            go.Heatmap(
                x=[f"{v:g}" for v in self.x.values],
                y=[f"{v:g}" for v in reversed(self.y.values)],
                z=[[SHADE[cell.verdict] for cell in row] for row in self.rows()],
                text=[[f"{cell.cosine:.2f}" for cell in row] for row in self.rows()],
                texttemplate="%{text}",
                zmin=0,
                zmax=1,
                showscale=False,
            )
        )
        drawn.update_layout(title="Mean cosine behind the last layer; light: trains")
        drawn.update_xaxes(type="category", title=self.x.name)
        drawn.update_yaxes(type="category", title=self.y.name)
        return drawn

    def figure(self) -> Figure:
        """Return the map drawn: shades are verdicts, numbers C, a line the frontier."""
        rows = self.rows()
        heat = Heat(
            values=[[1 - SHADE[cell.verdict] for cell in row] for row in rows],
            texts=[[f"{cell.cosine:.2f}" for cell in row] for row in rows],
            x_names=[f"{value:g}" for value in self.x.values],
            y_names=[f"{value:g}" for value in reversed(self.y.values)],
            colours="share",
        )
        plan = self.blueprint
        return Figure(
            name="forecast-map",
            title=f"Which {plan.norm}-norm stacks are forecast to train",
            caption="Numbers: mean cosine of tokens behind the last layer, untrained. Light: "
            "trainable; dark: not; between: cannot tell. Line: the frontier. " + measured_words(),
            panels=[
                Panel(
                    layers=[heat, *self._line()],
                    x_label=self.x.name,
                    y_label=self.y.name,
                    legend=False,
                )
            ],
            n_columns=1,
            height=0.34 * len(rows) + 1.2,
        )

    def _line(self) -> Iterator[Curve]:
        """Yield the frontier as steps between cells, in columns and rows of the picture."""
        n = len(self.y.values)
        place = {value: n - 1 - k for k, value in enumerate(sorted(self.y.values))}
        heights = [n - 0.5 if last is None else place[last] - 0.5 for last in self.frontier()]
        xs = [edge for k in range(len(heights)) for edge in (k - 0.5, k + 0.5)]
        yield Curve(
            x=xs, y=[h for h in heights for _ in range(2)], colour="#D55E00", width=2.4, silent=True
        )


def forecast_map(
    plan: Blueprint,
    x: MapAxis,
    y: MapAxis,
    *,
    seed: int = 0,
    progress: Callable[[int, int | None], None] | None = None,
) -> ForecastMap:
    """Forecast a blueprint at every combination of two parameters.

    Raises:
        InputError: both are the same, there are too many cells, or one of them fits no model.
    """
    if x.name == y.name:
        raise InputError(f"both axes sweep {x.name!r}; expected two parameters.")
    n_cells = len(x.values) * len(y.values)
    if n_cells > MOST_CELLS:
        raise InputError(f"{n_cells} cells were asked for; expected at most {MOST_CELLS}.")
    cells = []
    for a in x.values:
        for b in y.values:
            swept: dict[str, Any] = {x.name: x.at(a), y.name: y.at(b)}
            changed = replace(plan, **swept)
            found = forecast(changed, seed=seed, advise=False)
            cells.append(
                MapCell(
                    x=a,
                    y=b,
                    cosine=found.last.cosine,
                    gradient=found.depths[0].gradient,
                    rank=found.last.rank,
                    verdict=found.verdict,
                )
            )
            if progress is not None:
                progress(len(cells), n_cells)
    return ForecastMap(blueprint=plan, x=x, y=y, cells=tuple(cells))
