"""The result of `forecast`: what untrained layers do to tokens and gradients, by depth.

Enters: nothing (plain data). Leaves: frozen dataclasses.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from orbitlens.forecasting.blueprint import Blueprint
from orbitlens.results.base import Result
from orbitlens.results.html import HtmlTable
from orbitlens.results.tidy import data_frame

if TYPE_CHECKING:
    import pandas


class TrainingVerdict(StrEnum):
    """Whether a short training will learn anything."""

    TRAINS = "trainable"
    FAILS = "not trainable"
    UNCLEAR = "cannot tell"


@dataclass(frozen=True, kw_only=True)
class DepthForecast:
    """Tokens and gradients in front of a layer; the last one is behind the last layer."""

    layer: int
    cosine: float  # C, the mean over pairs of tokens
    log_spread: float  # S = ln(1 − C)
    size: float  # root mean square of a coordinate of the stream
    log_kept: float  # ln of the share of the first stream in this one, past all branches
    rank: float  # effective rank of the directions of a context (Roy and Vetterli)
    gradient: float  # its size here, beside that behind the last layer
    score_deviation: float | None  # standard deviation of the scores of the layer
    freezing: float | None  # that beside √(2 ln n): above 1 attention rests on a few tokens


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A change of the architecture, and what is forecast after it."""

    change: str
    cosine: float  # behind the last layer
    gradient: float  # at the first layer, beside that behind the last
    verdict: TrainingVerdict


@dataclass(frozen=True, kw_only=True, repr=False)
class ArchitectureForecast(Result):
    """What an architecture does before it has learnt anything."""

    KIND: ClassVar[str] = "forecast"

    name: str
    blueprint: Blueprint
    depths: tuple[DepthForecast, ...]
    readings: dict[str, float]  # that the verdict is from
    verdict: TrainingVerdict
    remedies: tuple[Remedy, ...]  # nearest first; empty where nothing collapses and it trains
    seconds: float
    flags: tuple[str, ...]

    @property
    def last(self) -> DepthForecast:
        """What leaves the last layer."""
        return self.depths[-1]

    @property
    def collapsed_at(self) -> int | None:
        """The first depth at which directions have collapsed."""
        from orbitlens.forecasting.words import COLLAPSED

        found = (each.layer for each in self.depths if each.cosine > COLLAPSED)
        return next(found, None)

    def summary(self) -> str:
        """Return what happens to tokens and gradients, and what would help."""
        from orbitlens.forecasting.words import summary_sentences

        return " ".join(summary_sentences(self))

    def to_pandas(self) -> "pandas.DataFrame":
        """Return one row a depth."""
        return data_frame(self._rows())

    def _rows(self) -> Iterator[dict[str, object]]:
        return (asdict(each) for each in self.depths)

    def _tables(self) -> Sequence[HtmlTable]:
        rows = list(self._rows())
        columns = list(rows[0])
        values = [[row[name] for name in columns] for row in rows]
        return [HtmlTable(caption="By depth", columns=columns, rows=values)]

    def _figure(self, go: Any) -> Any:  # noqa: ANN401 - plotly ships no types
        """Return C and the size of gradients by depth."""
        layers = [each.layer for each in self.depths]
        drawn = go.Figure()
        drawn.add_trace(go.Scatter(x=layers, y=[each.cosine for each in self.depths], name="C"))
        drawn.add_trace(
            go.Scatter(
                x=layers, y=[each.gradient for each in self.depths], name="gradient", yaxis="y2"
            )
        )
        drawn.update_layout(
            title=f"{self.name}, untrained",
            yaxis={"title": "mean cosine of tokens", "range": [0, 1]},
            yaxis2={"title": "gradient", "type": "log", "overlaying": "y", "side": "right"},
        )
        drawn.update_xaxes(title="layer")
        return drawn
