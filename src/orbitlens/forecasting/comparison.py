"""Several forecasts side by side, and beside untrained models that are built.

Enters: blueprints by name. Leaves: a `ForecastComparison`, a row for each.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from orbitlens.forecasting.api import forecast
from orbitlens.forecasting.blueprint import Blueprint
from orbitlens.forecasting.built import BuiltCourse, built_course
from orbitlens.forecasting.forecast_result import ArchitectureForecast, TrainingVerdict
from orbitlens.results.base import Result
from orbitlens.results.html import HtmlTable
from orbitlens.results.tidy import data_frame

if TYPE_CHECKING:
    import pandas

LEAST_DRAWS = 3  # forecasts of which a row is the mean


@dataclass(frozen=True, kw_only=True)
class ComparedForecast:
    """One architecture."""

    name: str
    cosine: float  # behind the last layer, mean over draws
    gradient: float  # in front of the first layer beside that behind the last, geometric mean
    rank: float
    verdict: TrainingVerdict  # of the first draw
    built_cosine: float | None  # the same of models that were built; None: none were
    built_gradient: float | None
    largest_error: float | None  # of C, over all layers


@dataclass(frozen=True, kw_only=True, repr=False)
class ForecastComparison(Result):
    """Forecasts side by side."""

    KIND: ClassVar[str] = "forecast comparison"

    rows: tuple[ComparedForecast, ...]
    n_built: int  # models of each

    def summary(self) -> str:
        """Return how many train, and how near built models were."""
        counts = {kind: sum(r.verdict is kind for r in self.rows) for kind in TrainingVerdict}
        said = ", ".join(f"{kind.value}: {n}" for kind, n in counts.items() if n)
        text = f"Of {len(self.rows)} architectures: {said}."
        errors = [row.largest_error for row in self.rows if row.largest_error is not None]
        if errors:
            text += (
                f" Beside {self.n_built} models built of each, the mean cosine is off by at most "
                f"{max(errors):.3f} in any layer (median of the largest: "
                f"{statistics.median(errors):.3f})."
            )
        return text

    def to_pandas(self) -> "pandas.DataFrame":
        """Return one row an architecture."""
        return data_frame(self._rows())

    def _rows(self) -> Iterator[dict[str, object]]:
        return (asdict(row) | {"verdict": row.verdict.value} for row in self.rows)

    def _tables(self) -> Sequence[HtmlTable]:
        columns = [each.name for each in fields(ComparedForecast)]
        values = [[row[name] for name in columns] for row in self._rows()]
        return [HtmlTable(caption="Side by side", columns=columns, rows=values)]

    def _figure(self, go: Any) -> Any:  # noqa: ANN401 - plotly ships no types
        names = [row.name for row in self.rows]
        drawn = go.Figure(go.Bar(name="forecast", x=names, y=[row.cosine for row in self.rows]))
        if self.n_built:
            drawn.add_trace(go.Bar(name="built", x=names, y=[r.built_cosine for r in self.rows]))
        drawn.update_yaxes(title="mean cosine behind the last layer")
        return drawn


def compared(
    plans: Mapping[str, Blueprint],
    *,
    built: int = 0,
    progress: Callable[[int, int | None], None] | None = None,
) -> ForecastComparison:
    """Forecast every blueprint; with `built`, build so many untrained models of each beside it."""
    rows = []
    for name, plan in plans.items():
        draws = max(built, LEAST_DRAWS)
        found = [forecast(plan, seed=seed, advise=False) for seed in range(draws)]
        models = [built_course(plan, seed) for seed in range(built)]
        rows.append(_row(name, found, models))
        if progress is not None:
            progress(len(rows), len(plans))
    return ForecastComparison(rows=tuple(rows), n_built=built)


def _row(
    name: str, found: Sequence[ArchitectureForecast], models: Sequence[BuiltCourse]
) -> ComparedForecast:
    told = _means([[each.cosine for each in one.depths] for one in found])
    truth = _means([model.cosines for model in models]) if models else None
    return ComparedForecast(
        name=name,
        cosine=told[-1],
        gradient=_geometric([one.depths[0].gradient for one in found]),
        rank=statistics.fmean(one.last.rank for one in found),
        verdict=found[0].verdict,
        built_cosine=None if truth is None else truth[-1],
        built_gradient=_geometric([model.gradient for model in models]) if models else None,
        largest_error=(
            None if truth is None else max(abs(a - b) for a, b in zip(told, truth, strict=True))
        ),
    )


def _means(courses: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.fmean(values) for values in zip(*courses, strict=True)]


def _geometric(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(max(value, 1e-300)) for value in values))
