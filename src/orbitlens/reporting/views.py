"""A single result -> what a notebook shows of it: HTML, and a plotly figure.

Enters: a `Scan`, `Trace`, `Audit` or `Trajectory`. Leaves: HTML without any script, in a frame of
its own so that no style leaks; or a figure.
"""

from collections.abc import Callable
from typing import Any

from orbitlens.draw.figure import GRID, INK, MUTED
from orbitlens.errors import InputError, MissingPackageError
from orbitlens.flows.film import plane_limits, token_colours
from orbitlens.flows.picture import FlowPicture, flow_picture
from orbitlens.order.audit_result import Audit
from orbitlens.reporting import tables
from orbitlens.reporting.data import rounded
from orbitlens.reporting.markup import esc, table
from orbitlens.reporting.page import asset
from orbitlens.reporting.sections import head_grid, nice_end
from orbitlens.reporting.sections_order import shares, square
from orbitlens.reporting.words import depth_in_words, heads_in_words
from orbitlens.scanning.scan_result import Scan
from orbitlens.tracing.trace_result import Trace
from orbitlens.trajectory import Trajectory

SPREAD, GATHER, GREY = "#D55E00", "#0072B2", "#5B6675"
FRAMES = 40
SIDE = 360  # of a small picture, in pixels


def frame(content: str, height: int) -> str:
    """Return a page as a frame in another page; its text is escaped, so it cannot break out."""
    return (
        f'<iframe srcdoc="{esc(content)}" style="width:100%;height:{height}px;border:0" '
        'title="orbitlens"></iframe>'
    )


def as_html(result: object) -> str:
    """Return a result as HTML.

    Raises:
        InputError: it is no result of orbitlens.
    """
    body, height = _chosen(_BODIES, result)(result)
    style = f"<style>{asset('report.css')} body {{ padding: 10px; }}</style>"
    return frame(f'<!DOCTYPE html><meta charset="utf-8">{style}{body}', height)


def figure(result: object) -> Any:  # noqa: ANN401 - a plotly figure
    """Return a result as a plotly figure.

    Raises:
        InputError: it is no result of orbitlens.
        MissingPackageError: plotly is not installed.
    """
    draw = _chosen(_FIGURES, result)
    try:
        import plotly.graph_objects as go
    except ImportError as error:
        raise MissingPackageError("plot() needs plotly: pip install 'orbitlens[plot]'") from error
    drawn = draw(result, go)
    drawn.update_layout(
        template="plotly_white", font={"color": INK}, margin={"l": 60, "r": 20, "t": 60, "b": 50}
    )
    return drawn


def _chosen(table_of: dict[type, Callable[..., Any]], result: object) -> Callable[..., Any]:
    for kind, function in table_of.items():
        if isinstance(result, kind):
            return function
    known = ", ".join(kind.__name__ for kind in table_of)
    raise InputError(f"a {type(result).__name__} has no view. Expected one of: {known}.")


def _model_of(result: Trace) -> dict[str, Any]:
    return {"trace": rounded(result.to_json()), "bands": {}}


# --- HTML ------------------------------------------------------------------------------------


def _scan_body(result: Scan) -> tuple[str, int]:
    data = rounded(result.to_json())
    end = nice_end(abs(head.expansion_index) for _, head in result.heads())
    grid = head_grid(data, end)
    text = f"<p><b>{esc(data['model']['family'])}.</b> {esc(heads_in_words(result, {}))}</p>"
    return text + grid, 150 + 38 * len(result.layers)


def _trace_body(result: Trace) -> tuple[str, int]:
    model = _model_of(result)
    body = f"<p>{esc(depth_in_words(result))}</p>"
    body += table(tables.attention_layers(model)) + table(tables.agreement(model, main=True))
    return body, 330 + 34 * len(result.layers)


def _audit_body(result: Audit) -> tuple[str, int]:
    data = rounded(result.to_json())
    return f"<p>{esc(data['summary'])}</p>{square(data)}{shares(data)}", 330


def _trajectory_body(result: Trajectory) -> tuple[str, int]:
    picture = flow_picture(result, title="", n_frames=FRAMES)
    return f"<p>{esc(result.ending)}</p>{_svg(picture)}", SIDE + 80


def _svg(picture: FlowPicture) -> str:
    """Return where tokens went: a thin line each, and a dot where it ended."""
    (left, right), (low, high) = plane_limits(picture.plane)

    def spot(x: float, y: float) -> str:
        across, up = (x - left) / (right - left), (high - y) / (high - low)
        return f"{SIDE * across:.1f},{SIDE * up:.1f}"

    ways = picture.plane.positions.transpose(0, 1).tolist()
    lines, dots = [], []
    for way, colour in zip(ways, token_colours(picture), strict=True):
        points = " ".join(spot(x, y) for x, y in way)
        lines.append(f'<polyline points="{points}" fill="none" stroke="{GREY}" opacity=".35"/>')
        x, y = spot(*way[-1]).split(",")
        dots.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{esc(colour)}"/>')
    return (
        f'<svg viewBox="0 0 {SIDE} {SIDE}" width="{SIDE}" role="img" '
        f'aria-label="{esc(picture.ending)}">{"".join(lines)}{"".join(dots)}</svg>'
    )


# --- figures ---------------------------------------------------------------------------------


def _scan_figure(result: Scan, go: Any) -> Any:  # noqa: ANN401
    widest = max(len(layer.heads) for layer in result.layers)
    grid = [
        [h.expansion_index for h in layer.heads] + [None] * (widest - len(layer.heads))
        for layer in result.layers
    ]
    end = nice_end(abs(head.expansion_index) for _, head in result.heads())
    names = [f"{layer.stack} {layer.layer}" for layer in result.layers]
    shown = go.Heatmap(
        z=grid, y=names, zmin=-end, zmax=end, xgap=2, ygap=2,
        colorscale=[[0, GATHER], [0.5, "#F1F2F3"], [1, SPREAD]],
        hovertemplate="%{y}, head %{x}: %{z:.3f}<extra></extra>",
    )  # fmt: skip
    drawn = go.Figure(shown)
    drawn.update_layout(title="Expansion index: blue gathers, orange spreads",
                        height=180 + 30 * len(names), xaxis_title="head")  # fmt: skip
    drawn.update_yaxes(autorange="reversed")
    return drawn


def _trace_figure(result: Trace, go: Any) -> Any:  # noqa: ANN401
    found = tables.attention_layers(_model_of(result))
    names = [row[0] for row in found.rows]
    drawn = go.Figure()
    styles = (
        ("measured", INK, "solid"),
        ("predicted", SPREAD, "dash"),
        ("simulated", GATHER, "dot"),
    )
    for k, (name, colour, dash) in enumerate(styles, start=1):
        drawn.add_scatter(x=names, y=[row[k] for row in found.rows], name=name,
                          line={"color": colour, "dash": dash})  # fmt: skip
    drawn.update_layout(title=found.caption, xaxis_title="layer", xaxis_type="category")
    return drawn


def _audit_figure(result: Audit, go: Any) -> Any:  # noqa: ANN401
    found = tables.defects({"audit": rounded(result.to_json())})
    colours = dict(zip(tables.CELLS.values(), (INK, SPREAD, GATHER, GREY), strict=True))
    drawn = go.Figure()
    for k, name in enumerate(found.columns[1:], start=1):
        drawn.add_scatter(x=[row[0] for row in found.rows], y=[row[k] for row in found.rows],
                          name=name, line={"color": colours[name]})  # fmt: skip
    drawn.update_layout(
        title="Equivariance defect of each layer's output", yaxis_rangemode="tozero"
    )
    return drawn


def _trajectory_figure(result: Trajectory, go: Any) -> Any:  # noqa: ANN401
    picture = flow_picture(result, title="", n_frames=FRAMES)
    places, times = picture.plane.positions.tolist(), picture.times.tolist()
    marker = {"color": token_colours(picture), "size": 9}

    def tokens(k: int) -> Any:  # noqa: ANN401
        x, y = zip(*places[k], strict=True)
        return go.Scatter(x=x, y=y, mode="markers", marker=marker, showlegend=False)

    frames = [go.Frame(data=[tokens(k)], name=str(k)) for k in range(len(times))]
    drawn = go.Figure(data=[tokens(len(times) - 1)], frames=frames)
    (left, right), (low, high) = plane_limits(picture.plane)
    steps = [
        {"label": f"{t:.3g}", "method": "animate",
         "args": [[str(k)], {"mode": "immediate", "frame": {"duration": 0}}]}
        for k, t in enumerate(times)
    ]  # fmt: skip
    play = {"label": "Play", "method": "animate", "args": [None, {"frame": {"duration": 60}}]}
    drawn.update_layout(
        title=picture.ending, xaxis={"range": [left, right], "gridcolor": GRID},
        yaxis={"range": [low, high], "gridcolor": GRID}, font_color=MUTED,
        sliders=[{"active": len(steps) - 1, "steps": steps, "currentvalue": {"prefix": "t = "}}],
        updatemenus=[{"type": "buttons", "buttons": [play], "y": 1.15, "x": 1}],
    )  # fmt: skip
    return drawn


_BODIES: dict[type, Callable[..., tuple[str, int]]] = {
    Scan: _scan_body,
    Trace: _trace_body,
    Audit: _audit_body,
    Trajectory: _trajectory_body,
}
_FIGURES: dict[type, Callable[..., Any]] = {
    Scan: _scan_figure,
    Trace: _trace_figure,
    Audit: _audit_figure,
    Trajectory: _trajectory_figure,
}
