"""What `orbitlens forecast` shows on a terminal."""

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from orbitlens.forecasting.forecast_result import ArchitectureForecast, DepthForecast
from orbitlens.forecasting.words import COLLAPSED, summary_sentences
from orbitlens.terminal.fitted_table import Column, FittedTable

COLUMNS = tuple(
    Column(name)
    for name in ("depth", "mean cosine", "stream size", "rank", "gradient", "score s.d.", "frozen")
)
MOST_ROWS = 17


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
        "gradient: beside that behind the last layer; frozen: score s.d. / √(2 ln n), above 1 "
        "attention rests on a few tokens",
        style="dim",
    )
    if result.remedies:
        yield Text("\nChanges that keep directions apart:")
        for remedy in result.remedies:
            yield Text(f"  {remedy.change}: mean cosine {remedy.cosine:.2f}")
    yield Text(
        f"{plan.context} tokens drawn from {plan.vocabulary}, {1000 * result.seconds:.0f} ms",
        style="dim",
    )


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
        f"{each.size:.3g}",
        f"{each.rank:.1f}",
        f"{each.gradient:.3g}",
        "" if each.score_deviation is None else f"{each.score_deviation:.2f}",
        "" if each.freezing is None else f"{each.freezing:.2f}",
    ]
