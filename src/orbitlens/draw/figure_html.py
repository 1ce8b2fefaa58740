"""A figure as one HTML page that works offline, by plotly.

Enters: a `Figure`. Leaves: a page with plotly's own script inside; every string is escaped.
"""

import html
from typing import Any

from orbitlens.draw.figure import (
    GRID,
    INK,
    MAPS,
    MUTED,
    PAPER,
    Curve,
    Figure,
    Forest,
    Heat,
    Layer,
    Level,
    Panel,
    Points,
)

POLICY = (
    "default-src 'none'; img-src data: blob:; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
)
STYLE = (
    "body{font-family:system-ui,sans-serif;margin:1.5rem auto;max-width:1100px;padding:0 1rem;"
    f"color:{INK};background:{PAPER}}}h1{{font-size:1.3rem}}p{{color:{MUTED};line-height:1.5}}"
)


def html_of(figure: Figure) -> str:
    """Return the page's text."""
    chart = _chart(figure).to_html(
        full_html=False, include_plotlyjs=True, config={"displaylogo": False, "responsive": True}
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<title>{html.escape(figure.title)}</title><link rel="icon" href="data:,">'
        f"<style>{STYLE}</style></head><body><h1>{html.escape(figure.title)}</h1>{chart}"
        f"<p>{html.escape(figure.caption)}</p></body></html>\n"
    )


def _chart(figure: Figure) -> Any:  # noqa: ANN401 - plotly ships no types
    from plotly.subplots import make_subplots

    chart = make_subplots(
        rows=figure.n_rows,
        cols=figure.n_columns,
        subplot_titles=[html.escape(panel.title) for panel in figure.panels],
        column_widths=list(figure.widths) or None,
        horizontal_spacing=0.11,
        vertical_spacing=0.13 if figure.n_rows > 1 else 0.1,
    )
    for number, panel in enumerate(figure.panels):
        _panel(chart, panel, number, figure)
    chart.update_layout(
        height=140 + 330 * figure.n_rows,
        plot_bgcolor=PAPER,
        paper_bgcolor=PAPER,
        font={"color": INK, "size": 12},
        margin={"l": 60, "r": 20, "t": 60, "b": 50},
        legend={"orientation": "h", "y": -0.14},
    )
    return chart


def _panel(chart: Any, panel: Panel, number: int, figure: Figure) -> None:  # noqa: ANN401
    row, column = divmod(number, figure.n_columns)
    place = {"row": row + 1, "col": column + 1}
    for layer in panel.layers:
        for trace in _traces(layer, number if panel.legend else -1):
            chart.add_trace(trace, **place)
        if isinstance(layer, Level):
            _level(chart, layer, place)
    axis: dict[str, Any] = {"gridcolor": GRID, "zeroline": False, "visible": not panel.bare}
    x: dict[str, Any] = {**axis, "title": html.escape(panel.x_label)}
    y: dict[str, Any] = {**axis, "title": html.escape(panel.y_label)}
    for sides, log, ends, ticks in (
        (x, panel.x_log, panel.x_range, panel.x_ticks),
        (y, panel.y_log, panel.y_range, panel.y_ticks),
    ):
        if log:
            sides["type"] = "log"
        if ends:
            sides["range"] = [_log10(e) if log else e for e in ends]
        if ticks:
            sides["tickvals"] = [value for value, _ in ticks]
            sides["ticktext"] = [html.escape(name) for _, name in ticks]
    _special_axes(panel, x, y)
    if panel.square:
        y["scaleanchor"] = f"x{number + 1 if number else ''}"
    chart.update_xaxes(**x, **place)
    chart.update_yaxes(**y, **place)
    for at_x, at_y, text in panel.notes:
        chart.add_annotation(x=at_x, y=at_y, text=html.escape(text), showarrow=False, **place)


def _special_axes(panel: Panel, x: dict[str, Any], y: dict[str, Any]) -> None:
    """Name rows and columns of tables; the first row is on top."""
    for layer in panel.layers:
        if isinstance(layer, Forest):
            y["tickvals"] = list(range(len(layer.names)))[::-1]
            y["ticktext"] = [html.escape(name) for name in layer.names]
        if isinstance(layer, Heat):
            y["autorange"] = "reversed"
            for names, sides in ((layer.x_names, x), (layer.y_names, y)):
                if names:
                    sides["tickvals"] = list(range(len(names)))
                    sides["ticktext"] = [html.escape(name) for name in names]


def _log10(value: float) -> float:
    import math

    return math.log10(value)


def _traces(layer: Layer, group: int) -> list[Any]:
    import plotly.graph_objects as go

    if isinstance(layer, Curve):
        return _curve(layer, group)
    if isinstance(layer, Points):
        return [_points(layer, group)]
    if isinstance(layer, Forest):
        return _forest(layer)
    if isinstance(layer, Heat):
        low, high = layer.limits
        return [
            go.Heatmap(
                z=[list(row) for row in layer.values],
                zmin=low,
                zmax=high,
                colorscale=MAPS[layer.colours],
                showscale=False,
                text=[[html.escape(t) for t in row] for row in layer.texts] or None,
                texttemplate="%{text}" if layer.texts else None,
                hovertemplate="%{z:.3g}<extra></extra>",
            )
        ]
    return []


def _named(label: str, group: int) -> dict[str, Any]:
    shown = bool(label) and group >= 0
    return {"name": html.escape(label), "showlegend": shown, "legendgroup": f"{group} {label}"}


def _curve(layer: Curve, group: int) -> list[Any]:
    import plotly.graph_objects as go

    named = _named(layer.label, group)
    traces = []
    if len(layer.low):
        traces.append(
            go.Scatter(
                x=[*layer.x, *list(layer.x)[::-1]],
                y=[*layer.high, *list(layer.low)[::-1]],
                fill="toself",
                fillcolor=layer.colour,
                opacity=0.18,
                line={"width": 0},
                hoverinfo="skip",
                showlegend=False,
            )
        )
    traces.append(
        go.Scatter(
            x=list(layer.x),
            y=list(layer.y),
            mode="lines+markers" if layer.markers else "lines",
            line={
                "color": layer.colour,
                "width": layer.width,
                "dash": "dash" if layer.dashed else "solid",
            },
            opacity=layer.opacity,
            **named,
        )
    )
    return traces


def _points(layer: Points, group: int) -> Any:  # noqa: ANN401
    import plotly.graph_objects as go

    bars = None
    if len(layer.low):
        bars = {
            "type": "data",
            "symmetric": False,
            "array": [h - y for h, y in zip(layer.high, layer.y, strict=True)],
            "arrayminus": [y - low for low, y in zip(layer.low, layer.y, strict=True)],
            "color": layer.colour,
        }
    return go.Scatter(
        x=list(layer.x),
        y=list(layer.y),
        mode="markers",
        marker={
            "color": layer.colour,
            "size": layer.size * 1.3,
            "symbol": layer.symbol,
            "opacity": layer.opacity,
            "line": {"color": PAPER, "width": 0.6},
        },
        error_y=bars,
        text=[html.escape(text) for text in layer.texts] or None,
        **_named(layer.label, group),
    )


def _forest(layer: Forest) -> list[Any]:
    import plotly.graph_objects as go

    rows = list(range(len(layer.names)))[::-1]
    traces = []
    for row, value, low, high, colour in zip(
        rows, layer.values, layer.low, layer.high, layer.colours, strict=True
    ):
        traces.append(
            go.Scatter(
                x=[value],
                y=[row],
                mode="markers",
                marker={"color": colour, "size": 9},
                error_x={
                    "type": "data",
                    "symmetric": False,
                    "array": [high - value],
                    "arrayminus": [value - low],
                    "color": colour,
                },
                showlegend=False,
                hovertemplate="%{x:.4g}<extra></extra>",
            )
        )
    return traces


def _level(chart: Any, layer: Level, place: dict[str, int]) -> None:  # noqa: ANN401
    draw = chart.add_vline if layer.vertical else chart.add_hline
    at = {"x": layer.at} if layer.vertical else {"y": layer.at}
    draw(
        **at,
        line={"color": layer.colour, "width": 1.2, "dash": "dot"},
        annotation_text=html.escape(layer.label),
        **place,
    )
