"""A flow as one HTML page, by plotly: it holds all it needs and asks the network for nothing."""

import base64
import html
import json
import math
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from orbitlens.draw.flow_picture import ALONE, FlowPicture, Plane, Ticks
from orbitlens.draw.flow_style import (
    CURVE,
    FAR_SIZE,
    FEW,
    FRAME_MS,
    GRID,
    INK,
    MOST_HISTORY_POINTS,
    MUTED,
    OKABE_ITO,
    PAPER,
    SideChart,
    as_sentence,
    cluster_symbol,
    history_opacity,
    legend_entries,
    nearness,
    plane_limits,
    side_charts,
    token_colours,
    trail_length,
)

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


CHART_AXES = ("2", "3")  # plotly's names of the axes of the side charts


# A trail is drawn as windows over one another: the share of its length, and the opacity.
BANDS = ((1.0, 0.22), (0.6, 0.28), (0.25, 0.4))


# Where axes are on a wide screen, and on a narrow one with the charts below the picture.
WIDE = {
    "x": [0, 0.56],
    "y": [0, 1],
    "x2": [0.65, 1],
    "y2": [0.62, 0.97],
    "x3": [0.65, 1],
    "y3": [0.1, 0.43],
}


NARROW = {
    "x": [0, 1],
    "y": [0.55, 1],
    "x2": [0.1, 1],
    "y2": [0.29, 0.41],
    "x3": [0.1, 1],
    "y3": [0.06, 0.19],
}


PAGE = string.Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:;
  script-src 'unsafe-inline'; style-src 'unsafe-inline'">
<title>$title</title>
<style>
:root { color-scheme: light dark; --ink: $ink; --muted: $muted; --grid: $grid; --paper: $paper;
  --accent: #0072B2; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #E6E8EC; --muted: #A3ABB7; --grid: #30363F; --paper: #16181D; --accent: #56B4E9; }
  #flow .scatterlayer, .legend i { filter: brightness(1.35); }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 14px/1.45 $font; }
main { display: flex; flex-direction: column; max-width: 1200px; height: 100vh; min-height: 460px;
  max-height: 900px; margin: 0 auto; padding: 14px 22px 10px; }
h1 { margin: 0; font-size: 19px; font-weight: 600; overflow-wrap: anywhere; }
p { margin: 2px 0 0; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; color: var(--muted); font-size: 13px; }
.legend i { display: inline-block; width: 9px; height: 9px; margin-right: 5px; border-radius: 50%; }
.plot { flex: 1 1 0; min-height: 0; margin-top: 6px; overflow: hidden; }
.plot > div { height: 100%; }
.player { display: flex; align-items: center; gap: 12px; margin-top: 4px; }
.player button { width: 76px; padding: 5px 0; border: 1px solid var(--muted); border-radius: 6px;
  background: transparent; color: var(--ink); font: inherit; cursor: pointer; }
.player input { flex: 1; min-width: 0; accent-color: var(--accent); }
.player output { min-width: 86px; text-align: right; font-variant-numeric: tabular-nums; }
.notes { margin-top: 5px; color: var(--muted); font-size: 12px; }
#flow text { fill: var(--muted) !important; }
#flow .gridlayer path { stroke: var(--grid) !important; }
#flow .annotation .bg { fill: var(--paper) !important; }
#flow .xy .point { stroke: var(--paper) !important; }
#flow .hoverlayer text { fill: #fff !important; }
@media (max-width: 640px) {
  main { height: auto; max-height: none; padding: 12px 14px; } .plot { flex: none; height: 640px; }
}
</style>
</head>
<body>
<main>
<h1>$title</h1>
<p>$ending</p>
<p class="legend">$legend</p>
<div class="plot">$plot</div>
<div class="player">
<button type="button" id="play">Play</button>
<input type="range" id="moment" min="0" max="$last" value="$last" aria-label="Moment">
<output id="clock" for="moment"></output>
</div>
<p class="notes">$notes</p>
</main>
</body>
</html>
""")


# The page has its own controls: plotly's cannot be reached by keyboard. It also draws the trails,
# since a frame of its own for each moment would hold every position many times over.
PLAYER = string.Template("""
window.addEventListener('load', function () {
  const flow = $data, last = flow.times.length - 1;
  const plot = document.getElementById('flow'), button = document.getElementById('play');
  const slider = document.getElementById('moment'), clock = document.getElementById('clock');
  const floats = s => new Float32Array(Uint8Array.from(atob(s), c => c.charCodeAt(0)).buffer);
  const place = floats(flow.positions), near = flow.near && floats(flow.near);
  let timer = null, narrow = false;

  function trail(tokens, first, k, hides) {
    const x = [], y = [];
    for (const i of tokens) {
      for (let f = first; f <= k; f++) {
        const at = f * flow.n_tokens + i, shown = !(hides && near && near[at] < 0.5);
        x.push(shown ? place[2 * at] : null);
        y.push(shown ? place[2 * at + 1] : null);
      }
      x.push(null);
      y.push(null);
    }
    return { x, y };
  }
  function tokens(k) {
    const from = k * flow.n_tokens, to = from + flow.n_tokens;
    const both = place.subarray(2 * from, 2 * to);
    const dots = { x: both.filter((_, j) => j % 2 === 0), y: both.filter((_, j) => j % 2 === 1) };
    if (near) {
      const share = Array.from(near.subarray(from, to));
      dots.marker = { ...flow.marker, opacity: share.map(s => 0.4 + 0.6 * s),
        size: share.map(s => flow.marker.size * (flow.far_size + (1 - flow.far_size) * s)) };
    }
    return dots;
  }
  function moving(k) {
    const data = [], t = flow.moments[k];
    for (const length of flow.trails) {
      for (const group of flow.groups) {
        data.push(trail(group, Math.max(0, k - length), k, length < flow.trails[0]));
      }
    }
    data.push(tokens(k));
    for (const chart of flow.charts) {
      data.push({ x: [t, t], y: chart.limits }, { x: [t], y: [chart.values[k]] });
    }
    return data;
  }
  function show(k) {
    slider.value = k;
    clock.textContent = 't = ' + flow.times[k];
    Plotly.animate(plot, { data: moving(k), traces: flow.traces }, {
      mode: 'immediate', transition: { duration: 0 }, frame: { duration: 0, redraw: false } });
  }
  const now = () => Number(slider.value);
  function label() { button.textContent = timer ? 'Pause' : now() === last ? 'Replay' : 'Play'; }
  function pause() { cancelAnimationFrame(timer); timer = null; label(); }
  function play() {
    if (now() === last) { show(0); }
    const start = performance.now() - now() * flow.frame_ms;
    // A slow machine leaves frames out rather than play the flow in slow motion.
    function step() {
      const k = Math.min(last, Math.floor((performance.now() - start) / flow.frame_ms));
      if (k > now()) { show(k); }
      if (k === last) { pause(); } else { timer = requestAnimationFrame(step); }
    }
    timer = requestAnimationFrame(step);
    label();
  }
  function arrange() {
    const wants = window.innerWidth <= 640;
    if (wants !== narrow) { narrow = wants; Plotly.relayout(plot, flow.layouts[narrow ? 1 : 0]); }
  }
  button.addEventListener('click', () => timer ? pause() : play());
  slider.addEventListener('input', () => { pause(); show(now()); });
  window.addEventListener('resize', arrange);
  Plotly.Plots.resize(plot);
  arrange();
  show(last);
  label();
  if (!matchMedia('(prefers-reduced-motion: reduce)').matches) { play(); }
});
""")


def write_html(picture: FlowPicture, file: Path) -> None:
    """Write a page that plays the flow and needs nothing else."""
    import plotly.io

    charts = side_charts(picture)
    still, moving = _still_traces(picture, charts), _moving_traces(picture, charts)
    data = _player_data(picture, charts, range(len(still), len(still) + len(moving)))
    plot = plotly.io.to_html(
        {"data": [*still, *moving], "layout": _layout(picture.plane, charts)},
        config={"responsive": True, "displaylogo": False, "displayModeBar": False},
        auto_play=False,
        include_plotlyjs=True,
        post_script=PLAYER.substitute(data=json.dumps(data).replace("<", "\\u003c")),
        full_html=False,
        validate=False,
        div_id="flow",
    )
    file.write_text(_page(picture, plot), encoding="utf-8")


def _page(picture: FlowPicture, plot: str) -> str:
    dot = '<i style="background:{}"></i>'
    legend = "".join(
        f"<span>{dot.format(colour) if colour else ''}{words}</span>"
        for colour, words in legend_entries(picture)
    )
    return PAGE.substitute(
        title=html.escape(picture.title),
        ending=html.escape(as_sentence(picture.ending)),
        legend=legend,
        plot=plot,
        last=len(picture.times) - 1,
        notes=html.escape(as_sentence("; ".join(picture.notes))),
        font=FONT,
        ink=INK,
        muted=MUTED,
        grid=GRID,
        paper=PAPER,
    )


def _player_data(picture: FlowPicture, charts: list[SideChart], traces: range) -> dict[str, object]:
    """Return what the page's script plays, each number once."""
    depth, length = picture.plane.depth, trail_length(picture)
    return {
        "frame_ms": FRAME_MS,
        "times": [f"{t:.4g}" for t in picture.times.tolist()],
        "moments": picture.times.tolist(),
        "n_tokens": len(picture.labels),
        "positions": _base64(picture.plane.positions.numpy()),
        "near": None if depth is None else _base64(nearness(depth).numpy()),
        "far_size": FAR_SIZE,
        "marker": _marker(picture),
        "groups": list(_groups(picture).values()),
        "trails": [max(1, round(share * length)) for share, _ in _bands(picture)],
        "charts": [{"limits": c.limits, "values": _or_none(c.values)} for c in charts],
        "traces": list(traces),
        "layouts": [
            {f"{name[0]}axis{name[1:]}.domain": span for name, span in domains.items()
             if name[1:] in ("", *CHART_AXES[: len(charts)])}
            for domains in (WIDE, NARROW)
        ],
    }  # fmt: skip


def _bands(picture: FlowPicture) -> list[tuple[float, float]]:
    """Return the bands of a trail, the whole way below them where that is not too much to draw."""
    n_frames, n_tokens, _ = picture.plane.positions.shape
    if n_frames * n_tokens > MOST_HISTORY_POINTS:
        return list(BANDS)
    return [(n_frames / trail_length(picture), history_opacity(picture)), *BANDS]


def _base64(values: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f4").tobytes()).decode()


def _or_none(values: Float[Tensor, " steps"]) -> list[float | None]:
    """Return numbers as JSON takes them; a gap where there is no finite one."""
    return [v if math.isfinite(v) else None for v in values.tolist()]


def _groups(picture: FlowPicture) -> dict[str, list[int]]:
    """Return the tokens of each colour."""
    groups: dict[str, list[int]] = {}
    for k, colour in enumerate(token_colours(picture)):
        groups.setdefault(colour, []).append(k)
    return groups


def _line(axis: str, **line: object) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [],
        "y": [],
        "xaxis": f"x{axis}",
        "yaxis": f"y{axis}",
        "line": line,
        "hoverinfo": "skip",
        "cliponaxis": False,
    }


def _still_traces(picture: FlowPicture, charts: list[SideChart]) -> list[dict[str, Any]]:
    """Return what does not move: guides, and the curves beside the picture."""
    x: list[float | None] = []
    y: list[float | None] = []
    for guide in picture.plane.guides:
        x += [*guide.points[:, 0].tolist(), None]
        y += [*guide.points[:, 1].tolist(), None]
    traces = [_line("", color="rgba(128,136,148,0.28)", width=1) | {"x": x, "y": y}]
    for axis, chart in zip(CHART_AXES, charts, strict=False):
        curve = {"x": picture.times.tolist(), "y": _or_none(chart.values)}
        traces.append(_line(axis, color=CURVE, width=2) | curve)
    return traces


def _moving_traces(picture: FlowPicture, charts: list[SideChart]) -> list[dict[str, Any]]:
    """Return the traces that the page's script fills: trails, tokens, time markers."""
    traces = [
        _line("", color=colour, width=1.2) | {"opacity": opacity}
        for _, opacity in _bands(picture)
        for colour in _groups(picture)
    ]
    dots = {"mode": "markers", "marker": _marker(picture)}
    hover = {"hoverinfo": "text", "text": _token_names(picture)}
    traces.append(_line("") | dots | hover)
    for axis in CHART_AXES[: len(charts)]:
        traces.append(_line(axis, color=OKABE_ITO[1], width=1))
        point = {"mode": "markers", "marker": {"color": OKABE_ITO[1], "size": 7}}
        traces.append(_line(axis) | point)
    return traces


def _marker(picture: FlowPicture) -> dict[str, object]:
    labels = picture.labels.tolist()
    return {
        "color": token_colours(picture),
        "symbol": [cluster_symbol(k)[0] for k in labels],
        "size": 8 if len(labels) <= FEW else 6,
        "line": {"width": 1, "color": "rgba(255,255,255,0.85)"},
    }


def _token_names(picture: FlowPicture) -> list[str]:
    """Return what is shown when a reader points at a token."""
    pairs = zip(picture.token_index.tolist(), picture.labels.tolist(), strict=True)
    sizes = picture.cluster_sizes
    return [
        f"token {i}<br>"
        + ("ends alone" if k == ALONE else f"cluster {k + 1}, of {sizes[k]} tokens")
        for i, k in pairs
    ]


def _layout(plane: Plane, charts: list[SideChart]) -> dict[str, Any]:
    layout: dict[str, Any] = {
        "font": {"family": FONT, "size": 12, "color": MUTED},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 8, "r": 14, "t": 20, "b": 8},
        "hovermode": "closest",
        "hoverlabel": {"bgcolor": INK, "bordercolor": INK, "font": {"color": "#FFFFFF"}},
        "showlegend": False,
        "annotations": [*_ring_labels(plane), *_chart_titles(charts)],
        **_plane_axes(plane),
    }
    for axis, chart in zip(CHART_AXES, charts, strict=False):
        layout[f"xaxis{axis}"] = _axis(f"x{axis}") | {"showgrid": False, "nticks": 6}
        layout[f"yaxis{axis}"] = _axis(f"y{axis}") | {"range": chart.limits} | _ticks(chart.ticks)
    layout[f"xaxis{axis}"]["title"] = _axis_title("time")
    return layout


def _axis(name: str) -> dict[str, Any]:
    other = {"x": "y", "y": "x"}[name[0]] + name[1:]
    return {
        "domain": WIDE[name],
        "anchor": other,
        "zeroline": False,
        "gridcolor": GRID,
        "fixedrange": True,
        "ticks": "outside",  # unseen: they keep labels off the charts
        "ticklen": 4,
        "tickcolor": "rgba(0,0,0,0)",
    }


def _axis_title(words: str) -> dict[str, Any]:
    return {"text": words, "standoff": 2, "font": {"size": 12}}


def _plane_axes(plane: Plane) -> dict[str, Any]:
    axes = {}
    for name, title, limits in zip("xy", plane.axes, plane_limits(plane), strict=True):
        axis = _axis(name) | {"range": limits, "title": _axis_title(title)}
        axis |= {"automargin": True, "constrain": "domain"}
        if not any(plane.axes):
            axis |= {"showticklabels": False, "showgrid": False}
        axes[f"{name}axis"] = axis
    if plane.is_map:
        axes["yaxis"]["scaleanchor"] = "x"
    if plane.y_ticks:
        axes["yaxis"] |= _ticks(plane.y_ticks)
    return axes


def _ticks(ticks: Ticks) -> dict[str, object]:
    return {"tickvals": [y for y, _ in ticks], "ticktext": [words for _, words in ticks]}


def _ring_labels(plane: Plane) -> Iterator[dict[str, Any]]:
    for guide in plane.guides:
        if guide.label:
            x, y = guide.points[0].tolist()
            yield {"x": x, "y": y, "text": guide.label, "showarrow": False, "bgcolor": PAPER}


def _chart_titles(charts: list[SideChart]) -> Iterator[dict[str, Any]]:
    for axis, chart in zip(CHART_AXES, charts, strict=False):
        yield {
            "xref": f"x{axis} domain",
            "yref": f"y{axis} domain",
            "x": 0,
            "y": 1,
            "xanchor": "left",
            "yanchor": "bottom",
            "yshift": 4,
            "text": chart.title,
            "showarrow": False,
        }
