"""What `orbitlens forecast` shows on a terminal."""

import math
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from orbitlens.forecasting.comparison import ComparedForecast, ForecastComparison
from orbitlens.forecasting.forecast_result import (
    ArchitectureForecast,
    DepthForecast,
    TrainingVerdict,
)
from orbitlens.forecasting.mapping import ForecastMap
from orbitlens.forecasting.trainability import measured_words
from orbitlens.forecasting.words import COLLAPSED, summary_sentences
from orbitlens.terminal.colours import ABOVE, BELOW, NEITHER
from orbitlens.terminal.fitted_table import Column, FittedTable

COLUMNS = tuple(
    Column(name)
    for name in (
        "depth",
        "mean cosine",
        "kept",
        "stream size",
        "rank",
        "gradient",
        "score s.d.",
        "frozen",
    )
)
MOST_ROWS = 17
VERDICT_STYLES = {
    TrainingVerdict.TRAINS: ABOVE,
    TrainingVerdict.FAILS: BELOW,
    TrainingVerdict.UNCLEAR: NEITHER,
}


def forecast_view(result: ArchitectureForecast, console: Console) -> Iterator[RenderableType]:
    """Yield the summary, some depths, and changes that would help."""
    plan = result.blueprint
    yield Text(
        f"{result.name}: {plan.layers} layers, width {plan.width}, {plan.heads} heads, "
        f"{plan.norm}-norm, {plan.position} positions, {plan.activation}, first weights "
        f"{plan.init:g}\n"
    )
    for sentence in summary_sentences(result):
        yield Text(sentence)
    yield Text("")
    yield FittedTable(columns=COLUMNS, rows=[_row(each) for each in _some(result.depths)])
    yield Text(
        "kept: share of the embeddings, past all branches; gradient: beside that behind the last "
        "layer; frozen: score s.d. / √(2 ln n), above 1 attention rests on a few tokens",
        style="dim",
    )
    if result.remedies:
        yield Text("\nChanges after which it is forecast to train:")
        for remedy in result.remedies:
            yield Text(f"  {remedy.change}: mean cosine {remedy.cosine:.2f}")
    yield Text(
        f"{plan.context} tokens drawn from {plan.vocabulary}, {1000 * result.seconds:.0f} ms",
        style="dim",
    )


def comparison_view(result: ForecastComparison, console: Console) -> Iterator[RenderableType]:
    """Yield one line an architecture."""
    names = ["", "mean cosine", "gradient", "rank", "verdict"]
    if result.n_built:
        names = ["", "mean cosine", "built", "most off", "gradient", "built", "verdict"]
    columns = tuple(Column(name) for name in names)
    yield FittedTable(columns=columns, rows=[_compared(row) for row in result.rows])
    yield Text(result.summary())
    yield Text(measured_words(), style="dim")


def _compared(row: ComparedForecast) -> list[str | Text]:
    verdict = Text(row.verdict.value, style=VERDICT_STYLES[row.verdict])
    cells: list[str | Text] = [
        row.name,
        f"{row.cosine:.3f}",
        f"{row.gradient:.3g}",
        f"{row.rank:.1f}",
        verdict,
    ]
    if row.built_cosine is not None:
        cells[2:2] = [f"{row.built_cosine:.3f}", f"{row.largest_error:.3f}"]
        cells[5:6] = [f"{row.built_gradient:.3g}"]
    return cells


def map_view(result: ForecastMap, console: Console) -> Iterator[RenderableType]:
    """Yield the map: a mark a combination, as `phase` has it."""
    utf = (console.encoding or "").lower().startswith("utf")
    marks = {
        TrainingVerdict.TRAINS: "▲" if utf else "O",
        TrainingVerdict.FAILS: "▼" if utf else "X",
        TrainingVerdict.UNCLEAR: "·" if utf else ".",
    }
    text = Text(f"{result.y.name} (upwards) against {result.x.name} (across)\n", style="bold")
    for row in result.rows():
        text.append(f"{row[0].y:>10.4g}  ", style="not bold")
        for cell in row:
            style = VERDICT_STYLES[cell.verdict]
            text.append(f"{marks[cell.verdict]} ", style=f"not bold {style}")
        text.append("\n")
    ends = ", ".join(f"{value:.4g}" for value in result.x.values)
    text.append(" " * 12 + ends + "\n", style="not bold")
    yield text
    yield Text(", ".join(f"{marks[kind]} {kind.value}" for kind in TrainingVerdict))
    yield Text(result.summary())


def _some(depths: tuple[DepthForecast, ...]) -> list[DepthForecast]:
    n = len(depths)
    if n <= MOST_ROWS:
        return list(depths)
    chosen = sorted({round(k * (n - 1) / (MOST_ROWS - 1)) for k in range(MOST_ROWS)})
    return [depths[k] for k in chosen]


def _row(each: DepthForecast) -> list[str | Text]:
    style = "bold red" if each.cosine > COLLAPSED else ""
    return [
        str(each.layer),
        Text(f"{each.cosine:.3f}", style=style),
        f"{math.exp(each.log_kept):.2g}",
        f"{each.size:.3g}",
        f"{each.rank:.1f}",
        f"{each.gradient:.3g}",
        "" if each.score_deviation is None else f"{each.score_deviation:.2f}",
        "" if each.freezing is None else f"{each.freezing:.2f}",
    ]
