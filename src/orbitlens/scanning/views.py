"""A scan as a table of heads, as a map in a notebook, and as a figure."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from orbitlens.draw.figure import BLUE, ORANGE, ZERO
from orbitlens.results.html import HtmlTable, Shade
from orbitlens.scanning.scan_result import HeadScan, LayerScan, Reading, Scan, TokenEffect

SCALES = (0.1, 0.25, 0.5, 1.0)  # ends of a colour scale
INDEX = "Expansion index, from the weights: blue opposed, orange aligned maps"
EFFECT = "Measured change of ln(1 − C) by a head: blue gathers directions, orange spreads them"
WIDEST = 32  # heads in a row of a map with numbers


def head_rows(scan: Scan) -> Iterator[dict[str, object]]:
    """Yield one row a head: its place and its readings; T1 ... N4 say which theorems hold."""
    for layer, head in scan.heads():
        yield {
            "stack": layer.stack,
            "layer": layer.layer,
            "head": head.head,
            "orientation": head.orientation.value,
            "index": head.expansion_index,
            **_effect(head.on_text),
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


def _effect(effect: TokenEffect | None) -> dict[str, float | None]:
    names = ("log_change", "predicted", "raw_log_change")
    return {name: None if effect is None else getattr(effect, name) for name in names}


def _index(reading: Reading | None) -> float | None:
    return None if reading is None else reading.expansion_index


def _maps(head: HeadScan) -> dict[str, float]:
    names = ("ov_abscissa", "ov_radius", "ov_copying", "ov_norm", "ov_speed_limit")
    return {name: getattr(head, name) for name in (*names, "qk_symmetry", "qk_norm")}


def scale_end(values: Iterable[float]) -> float:
    """Return the end of a colour scale for expansion indices and for changes by heads.

    >>> scale_end([0.02, -0.3])
    0.5
    """
    largest = max((abs(value) for value in values), default=SCALES[-1])
    return next(end for end in SCALES if largest <= end or end == SCALES[-1])


def _layer_name(scan: Scan, layer: LayerScan) -> str:
    return f"{layer.stack} {layer.layer}" if len(scan.model.stacks) > 1 else str(layer.layer)


def _index_of(head: HeadScan) -> float:
    return head.expansion_index


def _change_by(head: HeadScan) -> float:
    assert head.on_text is not None  # asked only of a scan with a text
    return head.on_text.log_change


def index_map(scan: Scan) -> HtmlTable:
    """Return the map of heads as a table: numbers are expansion indices, orange above 0."""
    return _map(scan, INDEX, _index_of)


def effect_map(scan: Scan) -> HtmlTable:
    """Return what heads did to directions on a text as a map, orange where they spread them."""
    return _map(scan, EFFECT, _change_by)


def _map(scan: Scan, caption: str, value: Callable[[HeadScan], float]) -> HtmlTable:
    widest = max((len(layer.heads) for layer in scan.layers), default=0)
    end = scale_end(value(head) for _, head in scan.heads())
    return HtmlTable(
        caption=f"{caption}; layers downwards, heads across",
        columns=["layer", *(str(number) for number in range(widest))],
        rows=[
            [
                _layer_name(scan, layer),
                *(_shade(value(head), end, numbered=widest <= WIDEST) for head in layer.heads),
            ]
            for layer in scan.layers
        ],
    )


def _shade(value: float, end: float, *, numbered: bool) -> Shade:
    share = min(1.0, abs(value) / end)
    text = f"{value:+.2f}".replace("-", "−") if numbered else ""
    return Shade(text, f"{ORANGE if value > 0 else BLUE}{round(200 * share):02X}")  # with opacity


def scan_figure(scan: Scan, go: Any) -> Any:  # noqa: ANN401 - plotly ships no types
    """Return the map of heads: what they did on a text, if one was read, else their indices."""
    title, value = (INDEX, _index_of) if scan.text is None else (EFFECT, _change_by)
    widest = max((len(layer.heads) for layer in scan.layers), default=0)
    grid = [
        [value(head) for head in layer.heads] + [None] * (widest - len(layer.heads))
        for layer in scan.layers
    ]
    end = scale_end(value(head) for _, head in scan.heads())
    names = [f"{layer.stack} {layer.layer}" for layer in scan.layers]
    shown = go.Heatmap(
        z=grid, y=names, zmin=-end, zmax=end, xgap=2, ygap=2,
        colorscale=[[0, BLUE], [0.5, ZERO], [1, ORANGE]],
        hovertemplate="%{y}, head %{x}: %{z:.3f}<extra></extra>",
    )  # fmt: skip
    drawn = go.Figure(shown)
    drawn.update_layout(title=title, height=180 + 30 * len(names), xaxis_title="head")
    drawn.update_yaxes(autorange="reversed")
    return drawn
