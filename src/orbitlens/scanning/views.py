"""A scan as a table of heads, as a map in a notebook, and as a figure."""

from collections.abc import Iterable, Iterator
from typing import Any

from orbitlens.draw.figure import ZERO
from orbitlens.results.html import HtmlTable, Shade
from orbitlens.results.plotting import GATHER, SPREAD
from orbitlens.scanning.scan_result import HeadScan, LayerScan, Reading, Scan

SCALES = (0.1, 0.25, 0.5, 1.0)  # ends of the colour scale of expansion indices
WIDEST = 32  # heads in a row of a map with numbers


def head_rows(scan: Scan) -> Iterator[dict[str, object]]:
    """Yield one row a head: its place and its readings; T1 to T5 say which theorems hold."""
    for layer, head in scan.heads():
        yield {
            "stack": layer.stack,
            "layer": layer.layer,
            "head": head.head,
            "tendency": head.tendency.value,
            "index": head.expansion_index,
            "alignment": head.alignment,
            "alignment_sigmas": head.alignment_sigmas,
            "rate_min": head.rates.min,
            "rate_mean": head.rates.mean,
            "rate_max": head.rates.max,
            "regime": head.regime.value,
            "context_index": _index(head.rotary),
            "context_survival": None if head.rotary is None else head.rotary.survival,
            "data_index": _index(head.data_aware),
            **_maps(head),
            **{certificate.name: certificate.holds for certificate in head.certificates},
        }


def _index(reading: Reading | None) -> float | None:
    return None if reading is None else reading.expansion_index


def _maps(head: HeadScan) -> dict[str, float]:
    names = ("ov_abscissa", "ov_radius", "ov_copying", "ov_norm", "ov_speed_limit")
    return {name: getattr(head, name) for name in (*names, "qk_symmetry", "qk_norm")}


def scale_end(indices: Iterable[float]) -> float:
    """Return the end of a colour scale for expansion indices.

    >>> scale_end([0.02, -0.3])
    0.5
    """
    largest = max((abs(index) for index in indices), default=SCALES[-1])
    return next(end for end in SCALES if largest <= end or end == SCALES[-1])


def _end(scan: Scan) -> float:
    return scale_end(head.expansion_index for _, head in scan.heads())


def _layer_name(scan: Scan, layer: LayerScan) -> str:
    return f"{layer.stack} {layer.layer}" if len(scan.model.stacks) > 1 else str(layer.layer)


def head_map(scan: Scan) -> HtmlTable:
    """Return the map of heads as a table: numbers are expansion indices, orange above 0."""
    widest = max((len(layer.heads) for layer in scan.layers), default=0)
    end = _end(scan)
    return HtmlTable(
        caption="Expansion index, layers downwards, heads across: blue gathers, orange spreads",
        columns=["layer", *(str(number) for number in range(widest))],
        rows=[
            [_layer_name(scan, layer), *(_shade(head, end, widest) for head in layer.heads)]
            for layer in scan.layers
        ],
    )


def _shade(head: HeadScan, end: float, widest: int) -> Shade:
    index = head.expansion_index
    share = min(1.0, abs(index) / end)
    colour = SPREAD if index > 0 else GATHER
    text = f"{index:+.2f}".replace("-", "−") if widest <= WIDEST else ""
    return Shade(text, f"{colour}{round(200 * share):02X}")  # colour and opacity


def scan_figure(scan: Scan, go: Any) -> Any:  # noqa: ANN401 - plotly ships no types
    """Return the map of heads."""
    widest = max((len(layer.heads) for layer in scan.layers), default=0)
    grid = [
        [h.expansion_index for h in layer.heads] + [None] * (widest - len(layer.heads))
        for layer in scan.layers
    ]
    end = _end(scan)
    names = [f"{layer.stack} {layer.layer}" for layer in scan.layers]
    shown = go.Heatmap(
        z=grid, y=names, zmin=-end, zmax=end, xgap=2, ygap=2,
        colorscale=[[0, GATHER], [0.5, ZERO], [1, SPREAD]],
        hovertemplate="%{y}, head %{x}: %{z:.3f}<extra></extra>",
    )  # fmt: skip
    drawn = go.Figure(shown)
    drawn.update_layout(
        title="Expansion index: blue gathers, orange spreads",
        height=180 + 30 * len(names),
        xaxis_title="head",
    )
    drawn.update_yaxes(autorange="reversed")
    return drawn
